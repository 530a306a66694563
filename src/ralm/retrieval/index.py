"""The index folder: passages and what finds them, built in one pass, opened memory-mapped.

manifest.json     format, settings, counts, what was left out, checksums
passages.arrow    the passages
bm25/             the arrays of BM25
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.corpus.store import PASSAGES, PassageStore, write_passages
from ralm.folders import Manifest, new_folder, read_manifest, write_manifest
from ralm.progress import track
from ralm.records import Passage
from ralm.retrieval import analysis
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import Builder
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.search import BM25

KIND: Final = "index"
FORMAT_VERSION: Final = 1
_BM25: Final = "bm25"


@dataclass(frozen=True)
class Index:
    """An open index: its passages by number, and BM25 over them."""

    manifest: Manifest
    passages: PassageStore
    bm25: BM25

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of everything the index holds: equal for equal indexes, wherever they lie."""
        entries = sorted((name, entry.checksum) for name, entry in self.manifest.files.items())
        return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def build_index(
    passages: Iterable[Passage],
    out: Path,
    options: BM25Options | None = None,
    *,
    describe: Callable[[], dict[str, JsonValue]] = dict,
    force: bool = False,
) -> Manifest:
    """Write an index of passages numbered from 0, whole or not at all, in one pass and bounded memory.

    `describe` is called when the passages have run out, and what it gives is recorded in the manifest: where they came
    from, how they were split, what was left out. Raises FolderExistsError, CorpusError where there are no passages,
    StorageError.
    """
    options = options or BM25Options()
    with new_folder(out, force=force) as folder:
        (folder / _BM25).mkdir()
        builder = Builder(folder / _BM25, options)
        for passage in track(write_passages(folder / PASSAGES, passages), "Indexing passages"):
            builder.add(passage.contents)
        counts = builder.finish()
        bm25: dict[str, JsonValue] = {"analysis": analysis.NAME, "k1": options.k1, "b": options.b}
        return write_manifest(
            folder,
            kind=KIND,
            format_version=FORMAT_VERSION,
            settings={"bm25": bm25, **describe()},
            counts=asdict(counts),
        )


def open_index(path: Path, options: BM25Options | None = None) -> Index:
    """Open an index; `options` replace the constants of BM25 that it was built with.

    Raises NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    manifest = read_manifest(path, kind=KIND, format_version=FORMAT_VERSION)
    built_with = manifest.settings["bm25"]
    assert isinstance(built_with, dict)
    constants = options or BM25Options(k1=float(str(built_with["k1"])), b=float(str(built_with["b"])))
    passages = PassageStore(path / PASSAGES)
    return Index(manifest, passages, BM25(open_arrays(path / _BM25), len(passages), constants))
