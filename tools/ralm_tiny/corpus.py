"""The training text: documentation of installed packages, a little medicine and encyclopedia, no standard library.

Knows where text comes from and what must not be in it; knows nothing of tokens. Writes one JSON object per line with
the fields of a `Document`.
"""

import argparse
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path

from ralm.demo import docstrings_of_package, standard_library_documentation
from ralm.records import Document

DATA_CHARACTERS = 6_000_000
PACKAGE_CAP = 3_000_000
"""The most characters from one package, so that its style (generated API pages) does not dominate."""

OVERLAP_WORDS = 8
OVERLAP_SHARE = 0.05
"""A document that shares this much of its 8-grams with the standard library's documentation is a copy of it."""


def main() -> None:
    """Collect, decontaminate and write the training text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--packages", type=Path, nargs="+", required=True, help="folders such as site-packages")
    parser.add_argument("--data", type=Path, help="folder with medquad/ and wikipedia_passages/; left out if not given")
    args = parser.parse_args()

    folders = sorted({p.name: p for root in args.packages for p in sorted(root.iterdir()) if p.is_dir()}.items())
    forbidden = _grams(chain.from_iterable(d.text.split() for d in standard_library_documentation()))
    with ProcessPoolExecutor() as pool:
        documentation = pool.map(partial(_package, forbidden=forbidden), [p for _, p in folders])
        counts: dict[str, int] = {}
        with args.output.open("w", encoding="utf-8") as out:
            for (name, _), documents in zip(folders, documentation, strict=True):
                counts[name] = _write(out.write, documents)
            if args.data:
                for name, file in (("medquad", "corpus"), ("wikipedia_passages", "passages")):
                    rows = _rows(args.data / name / f"{file}.jsonl.gz", name.split("_")[0])
                    counts[name] = _write(out.write, _capped(rows, DATA_CHARACTERS))
    print("\n".join(f"{count:>10,}  {name}" for name, count in counts.items() if count))


def _package(path: Path, forbidden: frozenset[int]) -> list[Document]:
    """A package's docstrings and prose, without copies of the standard library's, at most `PACKAGE_CAP` characters."""
    documents = [*docstrings_of_package(path), *_markup(path)]
    return _capped((d for d in documents if not _is_copy(d.text, forbidden)), PACKAGE_CAP)


def _markup(path: Path) -> Iterator[Document]:
    for file in sorted(file for suffix in (".rst", ".md") for file in path.rglob(f"*{suffix}")):
        if file.is_file() and "site-packages" not in file.relative_to(path).parts:
            yield Document(str(file.relative_to(path.parent)), file.stem, file.read_text("utf-8", errors="replace"))


def _rows(file: Path, name: str) -> Iterator[Document]:
    """Yield the documents of a file of JSON lines; held-out files are never opened."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            yield Document(f"{name}:{row['id']}", row["title"], row["text"])


def _grams(words: Iterable[str]) -> frozenset[int]:
    """Checksums of every 8 consecutive words."""
    sequence = list(words)
    windows = zip(*(islice(sequence, start, None) for start in range(OVERLAP_WORDS)), strict=False)
    return frozenset(zlib.crc32(" ".join(window).encode()) for window in windows)


def _is_copy(text: str, forbidden: frozenset[int]) -> bool:
    grams = _grams(text.split())
    return len(grams & forbidden) > OVERLAP_SHARE * len(grams)


def _capped(documents: Iterable[Document], characters: int) -> list[Document]:
    """A random choice of documents that fits, in their original order, without exact duplicates."""
    unique = list({document.text: document for document in documents}.values())
    order = random.Random(0).sample(range(len(unique)), len(unique))
    chosen, total = set(), 0
    for index in order:
        total += len(unique[index].text)
        if total > characters:
            break
        chosen.add(index)
    return [document for index, document in enumerate(unique) if index in chosen]


def _write(write: Callable[[str], object], documents: list[Document]) -> int:
    for document in documents:
        write(json.dumps({"id": document.id, "title": document.title, "text": document.text}) + "\n")
    return sum(len(document.text) for document in documents)


if __name__ == "__main__":
    main()
