"""The time of BM25 with a filter, in times of the same search without one, by the share of passages that pass.

    python -m benchmarks.filters [--passages 500000] [--hits 10] [--repeats 5]

The collection is synthetic. Passages pass at random, or in runs of 50 such as the passages of a document; the second is
what metadata mostly gives. Queries are looked up, or go through a stream in the order of their text. Each run
measures all of them in turn, in processor time on one core, and a ratio is the median over runs. Linux only.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import synthetic
from ralm.records import BoolArray
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.lookup import search_lookups
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.bm25.stream import search_streams

SHARES = (0.5, 0.1, 0.01, 0.0001)
RUN = 50
ONE_CORE = {max(os.sched_getaffinity(0))}
LOOKED_UP = 64


def seconds(search: Callable[[], object]) -> float:
    begin = time.process_time()
    search()
    return time.process_time() - begin


def passing(count: int, share: float, run: int) -> BoolArray:
    drawn = np.random.default_rng(0).random(-(-count // run)) < share
    if not drawn.any():
        drawn[len(drawn) // 2] = True
    return np.repeat(drawn, run)[:count]


def looked_up(bm25: BM25, queries: list[list[int]], k: int) -> Callable[[], object]:
    return lambda: search_lookups(bm25.collection, bm25._batch(queries, k))


def streamed(bm25: BM25, queries: list[list[int]], k: int) -> Callable[[], object]:
    return lambda: search_streams(bm25.collection, bm25._batch(queries, k), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=500_000)
    parser.add_argument("--hits", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    os.sched_setaffinity(0, ONE_CORE)
    collection = synthetic.collection(given.passages)
    with tempfile.TemporaryDirectory() as folder:
        builder = BM25Builder(Path(folder))
        for text in collection.texts():
            builder.add(text)
        builder.finish()
        bm25 = BM25(open_arrays(Path(folder)), given.passages)
        queries = [bm25.terms([f"w{term}" for term in query]) for query in collection.queries]
        ways = {"lookup": (looked_up, queries[:: max(1, len(queries) // LOOKED_UP)]), "stream": (streamed, queries)}
        print("\n| | passes | in runs of | ms a query | times unfiltered | least and most |\n|---|---|---|---|---|---|")
        for name, (make, some) in ways.items():
            searches = {(1.0, 1): make(bm25, some, given.hits)}
            for run in (1, RUN):
                for share in SHARES:
                    rows = passing(given.passages, share, run)
                    narrow = bm25.only(rows)
                    searches[share, run] = make(narrow, some, given.hits)
            for search in searches.values():
                search()
            times = [{key: seconds(search) for key, search in searches.items()} for _ in range(given.repeats)]
            for share, run in searches:
                ratios = [one[share, run] / one[1.0, 1] for one in times]
                spent = statistics.median(one[share, run] for one in times) / len(some) * 1e3
                print(
                    f"| {name} | {share:.2%} | {run} | {spent:.3f} | {statistics.median(ratios):.2f} | "
                    f"{min(ratios):.2f} to {max(ratios):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
