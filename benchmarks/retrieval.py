"""BM25 over stride queries, and indexing: ours against bm25s (numba), tantivy and Lucene, over real and synthetic text.

    python -m benchmarks.retrieval [--passages N ...] [--repeats R]

Prints how many passages a second are indexed, analysis included, and for each collection the milliseconds of a query:
the median of some runs over all queries in their order, and how many times as long as a stream of ours takes. All
engines have one core and k1 0.9, b 0.4. Nothing else should run on the machine. Linux only.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import engines, synthetic
from benchmarks.collection import Collection, real_collection, real_passages
from benchmarks.measuring import DATA, print_table
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.search import BM25

HITS = (1, 16)


def build(folder: Path, texts: Iterable[str]) -> BM25:
    """Build and open an index."""
    folder.mkdir()
    builder = BM25Builder(folder)
    for text in texts:
        builder.add(text)
    passages = builder.finish().passages
    return BM25(open_arrays(folder), passages)


def indexing_rows(texts: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield the passages that each engine indexes in a second of processor time."""
    with TemporaryDirectory() as folder:
        build(Path(folder) / "first", texts[:100])  # compiles
        works: dict[str, Callable[[], object]] = {
            "ralm": lambda: build(Path(folder) / "all", texts),
            "bm25s": lambda: engines.bm25s_search(texts),
        }
        ours = 0.0
        for name, work in works.items():
            begin = time.process_time()
            work()
            rate = len(texts) / (time.process_time() - begin)
            ours = ours or rate
            yield {"engine": name, "passages": len(texts), "passages a second": rate, "times as long": ours / rate}


def query_rows(collection: Collection, repeats: int) -> Iterator[dict[str, object]]:
    """Yield the milliseconds of a query for each engine and number of hits."""
    queries = len(collection.queries)
    terms = np.mean([len(set(query)) for query in collection.queries])
    print(f"\n{collection.name}: {len(collection):,} passages, {queries:,} queries of {terms:.1f} terms")
    stream: dict[int, float] = {}
    with TemporaryDirectory() as folder:
        ours = engines.ours(build(Path(folder) / "ours", collection.texts()), collection)
        others = (other(collection, Path(folder) / other.__name__) for other in engines.OTHERS)
        for name, answer in chain(ours, chain.from_iterable(others)):
            for k in HITS:
                milliseconds = median_seconds(answer, k, repeats) / queries * 1e3
                ratio = milliseconds / stream.setdefault(k, milliseconds)
                yield {"engine": name, "k": k, "ms a query": milliseconds, "times a stream": ratio}


def median_seconds(answer: engines.Engine, k: int, repeats: int) -> float:
    """Return the seconds of all queries, after a first run that does not count."""
    answer(k)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        answer(k)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="*", default=[100_000, 500_000, 2_000_000], help="synthetic ones")
    parser.add_argument(
        "--real", action=argparse.BooleanOptionalAction, default=DATA.exists(), help="the texts of DATA"
    )
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # else the JVM would have threads on other cores
    texts = [*(real_passages() if args.real else synthetic.collection(args.passages[0]).texts())]
    print_table(indexing_rows(texts))
    if args.real:
        print_table(query_rows(real_collection(texts), args.repeats))
    for size in args.passages:
        print_table(query_rows(synthetic.collection(size), args.repeats))


if __name__ == "__main__":
    main()
