"""The engines that BM25 is compared with, all over the same passages and with one thread.

Preparation is not timed: building the index, and converting queries to the engine's form. The time is that of answering
all queries in their order.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import bm25s
import numpy as np
import Stemmer
import tantivy

from benchmarks.collection import Collection
from ralm.retrieval.bm25.search import BM25, search_streams

Engine: TypeAlias = Callable[[int], object]
"""Answers all queries with this many hits each."""
Search: TypeAlias = Callable[[Sequence[str], int], Any]
"""Finds so many hits for each text."""


def ours(bm25: BM25, collection: Collection) -> Iterator[tuple[str, Engine]]:
    """Yield a stream, for queries that follow each other, and lookups of one query a call, as in generation."""
    rows = [bm25.terms(_words(query)) for query in collection.queries]
    yield "stream", lambda k: search_streams(bm25.collection, bm25._batch(rows, k), 1)
    yield "lookup", lambda k: [bm25.retrieve_terms([row], k) for row in rows]


def with_bm25s(collection: Collection, _folder: Path) -> Iterator[tuple[str, Engine]]:
    """Yield bm25s with its numba backend."""
    terms = max(int(np.max(collection.terms)), *(max(query, default=0) for query in collection.queries)) + 1
    vocabulary = {str(term): term for term in range(terms)}
    retriever = _bm25s_of(bm25s.tokenization.Tokenized(ids=list(collection), vocab=vocabulary))
    yield "bm25s", lambda k: retriever.retrieve(collection.queries, k=k, show_progress=False, n_threads=1)


def with_tantivy(collection: Collection, folder: Path) -> Iterator[tuple[str, Engine]]:
    """Yield tantivy, whose k1 and b are fixed at 1.2 and 0.75."""
    folder.mkdir()
    schema = tantivy.SchemaBuilder().add_text_field("body", stored=False, tokenizer_name="whitespace").build()
    index = tantivy.Index(schema, path=str(folder))
    writer = index.writer(heap_size=2_000_000_000, num_threads=1)
    for text in collection.texts():
        writer.add_document(tantivy.Document(body=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    parsed = [index.parse_query(" ".join(_words(query)) or "none", ["body"]) for query in collection.queries]
    yield "tantivy", lambda k: [searcher.search(query, k) for query in parsed]


def with_lucene(collection: Collection, folder: Path) -> Iterator[tuple[str, Engine]]:
    """Yield Lucene in this process, through the Anserini of Pyserini; nothing if Pyserini or Java is missing."""
    if search := lucene_search(collection.texts(), folder):
        texts = [" ".join(_words(query)) for query in collection.queries]
        yield "Lucene", lambda k: search(texts, k)


OTHERS = (with_bm25s, with_tantivy, with_lucene)


def bm25s_search(texts: Sequence[str]) -> Search:
    """Return the search of bm25s in texts, with the tokenisation of queries."""
    english: dict[str, Any] = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    retriever = _bm25s_of(bm25s.tokenize(texts, **english))

    def search(queries: Sequence[str], k: int) -> Any:
        tokens = bm25s.tokenize(queries, return_ids=False, **english)
        return retriever.retrieve(tokens, corpus=texts, k=k, show_progress=False, n_threads=1)

    return search


def _bm25s_of(tokens: Any) -> Any:
    logging.getLogger("bm25s").setLevel(logging.ERROR)
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numba")
    retriever.index(tokens, show_progress=False)
    return retriever


def lucene_search(texts: Iterable[str], folder: Path) -> Search | None:
    """Return the search of Lucene in texts; None if Pyserini or Java is missing."""
    try:
        from pyserini.pyclass import autoclass

        indexer = autoclass("io.anserini.index.SimpleIndexer")(str(folder))
        searcher_class, list_class = autoclass("io.anserini.search.SimpleSearcher"), autoclass("java.util.ArrayList")
    except Exception as error:  # noqa: BLE001  (a missing or older Java may raise anything)
        print(f"Lucene is not measured: Pyserini cannot be started ({type(error).__name__}: {error}).\n")
        return None
    documents = (json.dumps({"id": str(number), "contents": text}) for number, text in enumerate(texts))
    while batch := [*islice(documents, 10_000)]:
        indexer.addRawDocuments(batch)
    indexer.close()
    searcher = searcher_class(str(folder))
    searcher.set_bm25(0.9, 0.4)

    def search(queries: Sequence[str], k: int) -> Any:
        listed, ids = list_class(), list_class()
        for number, query in enumerate(queries):
            listed.add(query)
            ids.add(str(number))
        return searcher.batch_search(listed, ids, k, 1)

    return search


def _words(query: list[int]) -> list[str]:
    return [f"w{term}" for term in query]
