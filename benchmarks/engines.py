"""The engines that BM25 over strides is compared with, all over the same passages, with k1 0.9 and b 0.4.

Preparation is not timed: building the index, and converting queries to the engine's form. The time is that of answering
all queries in their order. Each engine has one thread, except `ON_ALL_CORES`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import bm25s
import numpy as np
import tantivy

from benchmarks.collection import Collection
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import search_streams

Engine: TypeAlias = Callable[[int], object]
"""Answers all queries with this many hits each."""
ON_ALL_CORES = "stream, all cores"
_ADDED_AT_ONCE = 10_000


def ours(bm25: BM25, collection: Collection) -> Iterator[tuple[str, Engine]]:
    """A stream on one core; lookups for one query a call, as in generation, and for many; a stream on each core."""
    words = [[f"w{term}" for term in query] for query in collection.queries]
    rows = [bm25.terms(query) for query in words]
    yield "stream", lambda k: search_streams(bm25.collection, bm25._batch(rows, k), 1)
    yield "lookup, one by one", lambda k: [bm25.retrieve_terms([row], k) for row in rows]
    yield "lookup", lambda k: search_lookups(bm25.collection, bm25._batch(rows, k))
    yield ON_ALL_CORES, lambda k: bm25.retrieve_terms(rows, k)


def with_bm25s(collection: Collection, _folder: Path) -> Iterator[tuple[str, Engine]]:
    """bm25s with its numba backend."""
    logging.getLogger("bm25s").setLevel(logging.ERROR)
    vocabulary = {str(term): term for term in range(_vocabulary(collection))}
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numba")
    tokens = bm25s.tokenization.Tokenized(ids=list(collection), vocab=vocabulary)
    retriever.index(tokens, show_progress=False)
    del tokens
    yield "bm25s", lambda k: retriever.retrieve(collection.queries, k=k, show_progress=False, n_threads=1)


def with_tantivy(collection: Collection, folder: Path) -> Iterator[tuple[str, Engine]]:
    """tantivy, whose k1 and b are fixed at 1.2 and 0.75."""
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
    """Lucene in this process, through the Anserini of Pyserini; nothing if Pyserini or Java is missing."""
    if search := lucene(collection.texts(), folder):
        texts = [" ".join(_words(query)) for query in collection.queries]
        yield "Lucene", lambda k: search(texts, k)


def lucene(texts: Iterable[str], folder: Path) -> Callable[[Sequence[str], int], Any] | None:
    """The search of an index of texts for queries, with one thread; None if Pyserini or Java is missing."""
    try:
        from pyserini.pyclass import autoclass

        indexer = autoclass("io.anserini.index.SimpleIndexer")(str(folder))
        searcher_class, list_class = autoclass("io.anserini.search.SimpleSearcher"), autoclass("java.util.ArrayList")
    except Exception as error:  # noqa: BLE001  (a missing or older Java may raise anything)
        print(f"Lucene is not measured: Pyserini cannot be started ({type(error).__name__}: {error}).\n")
        return None
    documents = (json.dumps({"id": str(number), "contents": text}) for number, text in enumerate(texts))
    while batch := list(islice(documents, _ADDED_AT_ONCE)):
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


def _vocabulary(collection: Collection) -> int:
    return max(int(np.max(collection.terms)), *(max(query, default=0) for query in collection.queries)) + 1


RIVALS: tuple[Callable[[Collection, Path], Iterator[tuple[str, Any]]], ...] = (with_bm25s, with_tantivy, with_lucene)
