"""BM25 over stride queries: ours against bm25s (numba), tantivy and Lucene, over real text and a synthetic collection.

    python -m benchmarks.retrieval [--passages N ...] [--repeats R] [--out FILE]

Prints, for each collection, milliseconds per query (the median of some runs, queries in their order) and how many times
as long the others take; then how the cost grows with the number of passages, and a prediction for 21 million. `--out`
appends JSON lines: text, engine, passages, k, cores, ms_per_query. Every engine, whatever its threads, is pinned to one
core, except `stream, all cores`. Nothing else should run on the machine. Linux only.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks import engines, synthetic
from benchmarks.collection import DATA, WIKIPEDIA, Collection, real_collection, real_passages
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import BM25Builder
from ralm.retrieval.bm25.search import BM25

SIZES = [100_000, 500_000, 2_000_000]
HITS = (1, 16)
ALL_CORES = os.sched_getaffinity(0)
ONE_CORE = {max(ALL_CORES)}
Row: TypeAlias = dict[str, Any]


def built(folder: Path, texts: Iterable[str]) -> BM25:
    """Our index; prints what it cost."""
    folder.mkdir()
    begin, busy = time.perf_counter(), time.process_time()
    builder = BM25Builder(folder)
    for text in texts:
        builder.add(text)
    counts = builder.finish()
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"built in {seconds:.0f} s ({counts.passages / busy:,.0f} passages a second of processor time): "
        f"{counts.postings:,} postings, {counts.terms:,} terms, {size / 1e6:,.0f} MB, "
        f"{size / counts.postings:.2f} bytes a posting"
    )
    bm25 = BM25(open_arrays(folder), counts.passages)
    begin = time.perf_counter()
    layout = bm25.collection.postings
    size = sum(array.nbytes for array in (layout.highest, layout.present, layout.before))
    print(f"{len(layout.most_M)} common terms laid out in {time.perf_counter() - begin:.1f} s, {size / 1e6:,.0f} MB")
    return bm25


def median(engine: engines.Engine, k: int, queries: int, repeats: int) -> float:
    """Milliseconds per query, after a warm-up run."""
    engine(k)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        engine(k)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / queries * 1e3


def measured(collection: Collection, repeats: int) -> Iterator[Row]:
    """One row for each engine and k."""
    terms = np.mean([len(set(query)) for query in collection.queries])
    print(
        f"\n{collection.name}: {len(collection):,} passages, {len(collection.queries):,} queries of {terms:.1f} terms"
    )
    with tempfile.TemporaryDirectory() as folder:
        bm25 = built(Path(folder) / "ours", collection.texts())
        rivals = (rival(collection, _new(Path(folder) / rival.__name__)) for rival in engines.RIVALS)
        for name, engine in chain(engines.ours(bm25, collection), chain.from_iterable(rivals)):
            cores = len(ALL_CORES) if name == engines.ON_ALL_CORES else 1
            for k in HITS:
                row = {"text": collection.name, "engine": name, "passages": len(collection), "k": k, "cores": cores}
                with on_cores(ALL_CORES if cores > 1 else ONE_CORE):
                    yield row | {"ms_per_query": median(engine, k, len(collection.queries), repeats)}


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Pin this thread, and the threads that it starts, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def show(rows: Sequence[Row]) -> None:
    """Print the table of one collection; ratios are to one stream with the same k."""
    base = {row["k"]: row["ms_per_query"] for row in rows if row["engine"] == "stream"}
    print("\nengine               k   ms a query   times a stream")
    for row in rows:
        ratio = row["ms_per_query"] / base[row["k"]]
        print(f"{row['engine']:18} {row['k']:3}   {row['ms_per_query']:10.4f}   {ratio:8.2f}", flush=True)


def growth(rows: Sequence[Row]) -> None:
    """Print cost against size: the power of N fitted through all sizes, and through the two largest."""
    print(f"\nengine               k   grows as   at the end   ms a query at {WIKIPEDIA:,}")
    for name in dict.fromkeys(row["engine"] for row in rows):
        for k in HITS:
            some = [row for row in rows if row["engine"] == name and row["k"] == k]
            if len(some) > 1:
                sizes, spent = (np.log([row[column] for row in some]) for column in ("passages", "ms_per_query"))
                fits = [np.polyfit(sizes[first:], spent[first:], 1) for first in (0, -2)]
                predicted = [np.exp(np.polyval(fit, np.log(WIKIPEDIA))) for fit in fits]
                print(
                    f"{name:18} {k:3}   N^{fits[0][0]:.2f}     N^{fits[1][0]:.2f}       "
                    f"{min(predicted):.2f} to {max(predicted):.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="*", default=SIZES, help="sizes of the synthetic collection")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    collections: list[Callable[[], Collection]] = [partial(synthetic.collection, size) for size in args.passages]
    if DATA.exists():
        collections.insert(0, real_collection)
        texts = list(real_passages())
        with tempfile.TemporaryDirectory() as folder:
            print("\nreal text, analysis included")
            built(Path(folder) / "index", texts)
        del texts
    found: list[Row] = []
    os.sched_setaffinity(0, ONE_CORE)  # else an engine such as the JVM would have threads on other cores
    for collection in collections:
        rows = []
        for row in measured(collection(), args.repeats):
            rows.append(row)
            if args.out:
                with args.out.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
        show(rows)
        found += rows
    growth([row for row in found if row["text"] == "synthetic"])


if __name__ == "__main__":
    main()
