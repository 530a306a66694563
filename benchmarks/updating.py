"""Adding 1% of passages to an index, and removing them, against building it anew, and searching it.

    python -m benchmarks.updating [PASSAGES] [--share 0.01] [--updates 1] [--repeats 5]

Builds an index of PASSAGES synthetic passages (default 500,000), and one with the added passages in it. Then adds the
same passages, in UPDATES parts, to the first one, and removes as many documents from it as it added. Prints seconds,
and milliseconds a query for each state of the index, on one core, with the ratio to the index that was built at once.
The hits of both must be the same.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import engines, synthetic
from benchmarks.collection import Collection
from benchmarks.retrieval import ONE_CORE, on_cores
from ralm.records import Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import update_index

HITS = (1, 16)


def passages(texts: Iterable[str], first: int) -> Iterator[Passage]:
    """Each text as a document of one passage; documents are numbered from `first` on."""
    for number, text in enumerate(texts):
        yield Passage(number, str(first + number), "", text)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def searched(states: dict[str, Index], collection: Collection, repeats: int) -> None:
    """Print the time of each way of searching each index; the runs of the indexes take turns."""
    ways = {name: dict(engines.ours(index.bm25, collection)) for name, index in states.items()}
    at_once = next(iter(states))
    print(f"\n{'':24}" + "".join(f"{name:>26}" for name in states))
    for way in ("stream", "lookup, one by one", "lookup"):
        for k in HITS:
            spent: dict[str, list[float]] = {name: [] for name in states}
            for turn in range(repeats + 1):
                for name in states:
                    taken = seconds(partial(ways[name][way], k))
                    if turn:  # the first is a warm-up
                        spent[name].append(taken)
            best = {name: min(times) * 1e3 / len(collection.queries) for name, times in spent.items()}
            cells = (f"{best[name]:14.4f} ms ({best[name] / best[at_once]:5.2f}x)" for name in states)
            print(f"{way:>18} k = {k:<3}" + "".join(f"{cell:>26}" for cell in cells), flush=True)


def same_hits(states: dict[str, Index], collection: Collection) -> None:
    """Raise AssertionError unless all indexes give the same hits."""
    queries = [" ".join(f"w{term}" for term in query) for query in collection.queries]
    expected, *others = (index.bm25.retrieve(queries, 16) for index in states.values())
    for other in others:
        np.testing.assert_array_equal(other.numbers_QK, expected.numbers_QK)
        np.testing.assert_array_equal(other.scores_QK, expected.scores_QK)
    print(f"the same {expected.numbers_QK.size:,} hits from {', '.join(states)}")


def compare(folder: Path, collection: Collection, added: int, updates: int, repeats: int) -> None:
    """Build, add and remove, and print what each costs."""
    count = len(collection) - added
    texts = collection.texts()
    building = seconds(lambda: build_index(passages(islice(texts, count), 0), folder / "index"))
    new = list(texts)
    build_index(passages(collection.texts(), 0), folder / "at-once")
    print(f"built {count:,} passages in {building:.1f} s")
    adding = []
    for part in range(updates):
        begin, end = (added * one // updates for one in (part, part + 1))
        some = passages(new[begin:end], count + begin)
        adding.append(seconds(partial(update_index, folder / "index", some)))
    print(
        f"added {added:,} passages in {updates} updates of {statistics.median(adding):.2f} s (median): "
        f"{building / statistics.median(adding):.0f} times faster than building"
    )
    states = {name: open_index(folder / name) for name in ("at-once", "index")}
    print(f"segments: {[one.left for one in states['index'].segments]}")
    same_hits(states, collection)
    with on_cores(ONE_CORE):
        searched(states, collection, repeats)
    gone = [str(number) for number in np.random.default_rng(0).choice(len(collection), added, replace=False)]
    removing = seconds(lambda: update_index(folder / "index", remove=gone))
    print(f"\nremoved {added:,} documents in {removing:.2f} s: {building / removing:.0f} times faster than building")
    left = set(range(len(collection))) - {int(number) for number in gone}
    kept = (text for number, text in enumerate(collection.texts()) if number in left)
    build_index(passages(kept, 0), folder / "at-once", force=True)
    states = {name: open_index(folder / name) for name in ("at-once", "index")}
    same_hits(states, collection)
    with on_cores(ONE_CORE):
        searched(states, collection, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("passages", type=int, nargs="?", default=500_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    added = int(args.passages * args.share)
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), synthetic.collection(args.passages + added), added, args.updates, args.repeats)


if __name__ == "__main__":
    os.environ.setdefault("RALM_PROGRESS", "0")
    main()
