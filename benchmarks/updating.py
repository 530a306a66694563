"""Changing an index, against building it.

    python -m benchmarks.updating [PASSAGES] [--share 0.01]

Builds an index of PASSAGES synthetic passages (default 500,000), four of each document. Then replaces one document,
adds a share of passages, and removes that share of the documents, drawn at random. Prints processor seconds of each,
the ratio to building, and the size of the index, which is needed twice while it changes.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import synthetic
from ralm.records import Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.update import update_index

PASSAGES_A_DOCUMENT = 4


def passages(texts: Iterable[str], prefix: str) -> Iterator[Passage]:
    for number, text in enumerate(texts):
        yield Passage(number, f"{prefix}{number // PASSAGES_A_DOCUMENT}", "", text)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of some work."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main(count: int, share: float, folder: Path) -> None:
    added = int(count * share)
    collection = synthetic.collection(count + added)
    every = [*collection.texts()]
    kept, new = every[:count], every[count:]
    documents = count // PASSAGES_A_DOCUMENT
    drawn = np.random.default_rng(0).choice(documents, int(documents * share), replace=False).tolist()
    index = folder / "index"
    build_index(passages(kept[:9], "d"), index)  # loads the kernels
    update_index(index, passages(new[:4], "n"), remove=["d0"])
    works: dict[str, Callable[[], object]] = {
        f"build {count:,} passages": lambda: build_index(passages(kept, "d"), index, force=True),
        "replace one document": lambda: update_index(index, islice(passages(new, "d"), 4), replace=True),
        f"add {added:,} passages": lambda: update_index(index, passages(new, "n")),
        f"remove {len(drawn):,} documents": lambda: update_index(index, remove=[f"d{number}" for number in drawn]),
    }
    print("| work | processor seconds | of building |\n|---|---|---|")
    spent: list[float] = []
    for name, work in works.items():
        spent.append(seconds(work))
        print(f"| {name} | {spent[-1]:.2f} | {spent[-1] / spent[0]:.0%} |", flush=True)
    print(f"\nthe index: {sum(file.stat().st_size for file in index.rglob('*') if file.is_file()) / 1e6:,.0f} MB")


if __name__ == "__main__":
    os.environ.setdefault("RALM_PROGRESS", "0")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", type=int, nargs="?", default=500_000)
    parser.add_argument("--share", type=float, default=0.01)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        main(given.passages, given.share, Path(made))
