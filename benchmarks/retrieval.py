"""Stride queries over BM25 indexes: ours against bm25s and tantivy, same passages, same queries, in one process.

    python -m benchmarks.retrieval [--passages 100000 500000 2000000] [--out FILE]

Needs `requirements/bench.txt`. A synthetic collection (`benchmarks.synthetic`) and four articles' windows of 24 words,
three words apart, about 15 distinct terms each. All engines get term numbers, or words that need no analysis. Each is
warmed up, then timed `--repeats` times; the median is printed, in milliseconds a query. `stream` answers all queries
of a text, `online` one after another, `scan` reads every posting. All on one core but where the name says otherwise;
tantivy is left out above 500,000 passages, where it is built too slowly to wait for.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import tantivy

from benchmarks import synthetic
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import Builder
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import Stream

SIZES = [100_000, 500_000, 2_000_000]
HITS = (1, 16)
MOST_OF_TANTIVY = 500_000
Engine = Callable[[int], None]


def ours(folder: Path, passages: int) -> BM25:
    """Our index of the collection."""
    folder.mkdir()
    builder = Builder(folder, BM25Options())
    begin = time.perf_counter()
    for passage in synthetic.passages(passages):
        builder.add(" ".join([f"w{term}" for term in passage.tolist()]))
    counts = builder.finish()
    seconds = time.perf_counter() - begin
    size = sum(file.stat().st_size for file in folder.iterdir()) / counts.postings
    print(f"{passages:,} passages, {counts.postings:,} postings of {size:.2f} bytes, built in {seconds:.0f} s\n")
    return BM25(open_arrays(folder), passages)


def with_ours(bm25: BM25, queries: Sequence[Sequence[int]]) -> Iterator[tuple[str, Engine]]:
    """Our ways of answering; the terms are looked up before."""
    rows = [bm25.terms([f"w{term}" for term in query]) for query in queries]
    yield "stream", lambda k: _discard(Stream(bm25.collection, k).search(rows))

    def online(k: int) -> None:
        stream = Stream(bm25.collection, k)
        for row in rows:
            stream.search([row])

    yield "online", online

    def scan(k: int) -> None:
        for first in range(0, len(rows), 32):  # too few at once for a stream
            bm25.retrieve_terms(rows[first : first + 32], k)

    yield "scan", scan
    if len(os.sched_getaffinity(0)) > 1:
        yield f"stream x {len(os.sched_getaffinity(0))}", lambda k: _discard(bm25.retrieve_terms(rows, k))


def with_bm25s(passages: int, queries: Sequence[Sequence[int]]) -> Iterator[tuple[str, Engine]]:
    """bm25s with its numba backend."""
    logging.getLogger("bm25s").setLevel(logging.ERROR)
    tokens = [passage.tolist() for passage in synthetic.passages(passages)]
    vocabulary = {str(term): term for term in range(synthetic.VOCABULARY)}
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numba")
    retriever.index(bm25s.tokenization.Tokenized(ids=tokens, vocab=vocabulary), show_progress=False)
    wanted = [list(query) for query in queries]
    yield "bm25s", lambda k: _discard(retriever.retrieve(wanted, k=k, show_progress=False, n_threads=1))


def with_tantivy(folder: Path, passages: int, queries: Sequence[Sequence[int]]) -> Iterator[tuple[str, Engine]]:
    """tantivy with one segment."""
    if passages > MOST_OF_TANTIVY:
        return
    folder.mkdir()
    schema = tantivy.SchemaBuilder().add_text_field("body", stored=False, tokenizer_name="whitespace").build()
    index = tantivy.Index(schema, path=str(folder))
    writer = index.writer(heap_size=1_000_000_000, num_threads=1)
    for passage in synthetic.passages(passages):
        writer.add_document(tantivy.Document(body=" ".join([f"w{term}" for term in passage.tolist()])))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    parsed = [index.parse_query(" ".join(f"w{term}" for term in query), ["body"]) for query in queries]

    def search(k: int) -> None:
        for query in parsed:
            searcher.search(query, k)

    yield "tantivy", search


def _discard(_: Any) -> None:
    """Answers are not looked at here: tests do that."""


def measured(engine: Engine, k: int, queries: int, repeats: int) -> float:
    """Milliseconds a query: the median of some runs after the first."""
    engine(k)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        engine(k)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / queries * 1e3


def rows_for(passages: int, repeats: int) -> Iterator[dict[str, Any]]:
    """What is measured for one size of the collection."""
    queries = synthetic.queries()
    with tempfile.TemporaryDirectory() as folder:
        bm25 = ours(Path(folder) / "ours", passages)
        begin = time.perf_counter()
        common = len(bm25.collection.common.place_of)
        print(f"bounds of {common:,} common terms read in {time.perf_counter() - begin:.1f} s\n", flush=True)
        engines = [with_ours(bm25, queries), with_bm25s(passages, queries)]
        engines.append(with_tantivy(Path(folder) / "tantivy", passages, queries))
        for group in engines:
            for name, engine in group:
                cores = int(name.rpartition(" x ")[2]) if " x " in name else 1
                for k in HITS:
                    spent = measured(engine, k, len(queries), repeats)
                    yield {"engine": name, "passages": passages, "k": k, "cores": cores, "ms_per_query": spent}


def growth(rows: Sequence[dict[str, Any]]) -> None:
    """Cost against size: the fitted power of each engine, and what it says of 21 million passages."""
    print("engine        k   fitted growth   predicted ms a query at 21M")
    for name in dict.fromkeys(row["engine"] for row in rows):
        for k in HITS:
            some = [row for row in rows if row["engine"] == name and row["k"] == k]
            if len(some) > 1:
                sizes, spent = (np.log([row[column] for row in some]) for column in ("passages", "ms_per_query"))
                power, constant = np.polyfit(sizes, spent, 1)
                print(f"{name:12} {k:2}   N^{power:.2f}          {np.exp(constant + power * np.log(21e6)):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    for passages in args.passages:
        rows = []
        for row in rows_for(passages, args.repeats):
            rows.append(row)
            if args.out:
                with args.out.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
        for row in rows:
            base = {other["k"]: other["ms_per_query"] for other in rows if other["engine"] == "stream"}
            print(
                f"{row['passages']:9,}  k {row['k']:2}  {row['engine']:12} {row['ms_per_query']:8.3f} ms a query  "
                f"{row['ms_per_query'] / base[row['k']]:6.1f} x stream",
                flush=True,
            )
        found += rows
    growth(found)


if __name__ == "__main__":
    main()
