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
from ralm.errors import DamagedFolderError
from ralm.folders import Manifest, new_folder, read_manifest, write_manifest
from ralm.progress import track
from ralm.records import Passage
from ralm.retrieval import analysis
from ralm.retrieval.bm25.arrays import open_arrays
from ralm.retrieval.bm25.build import BUFFERED_TERMS, Builder
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
    out: Path | str,
    options: BM25Options | None = None,
    *,
    describe: Callable[[], dict[str, JsonValue]] = dict,
    buffered_terms: int = BUFFERED_TERMS,
    force: bool = False,
) -> Manifest:
    """Write an index of passages numbered from 0, whole or not at all, in one pass and bounded memory.

    `describe` is called when the passages have run out, and what it gives is recorded in the manifest: where they came
    from, how they were split, what was left out. `buffered_terms` bounds the memory, as the builder says. Passages of
    one document must follow each other to be counted as one. Raises FolderExistsError, CorpusError where there are no
    passages, StorageError.
    """
    options = options or BM25Options()
    with new_folder(Path(out), force=force) as folder:
        (folder / _BM25).mkdir()
        builder = Builder(folder / _BM25, options, buffered_terms)
        documents, document = 0, None
        for passage in track(write_passages(folder / PASSAGES, passages), "Indexing passages"):
            builder.add(passage.contents)
            documents += passage.document_id != document
            document = passage.document_id
        counts = builder.finish()
        bm25: dict[str, JsonValue] = {"analysis": analysis.NAME, "k1": options.k1, "b": options.b}
        return write_manifest(
            folder,
            kind=KIND,
            format_version=FORMAT_VERSION,
            settings={"bm25": bm25, **describe()},
            counts={"documents": documents, **asdict(counts)},
        )


def open_index(path: Path | str, options: BM25Options | None = None) -> Index:
    """Open an index; `options` replace the constants of BM25 that it was built with.

    Raises NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    path = Path(path)
    manifest = read_manifest(path, kind=KIND, format_version=FORMAT_VERSION)
    constants = options or _built_with(path, manifest)
    passages = PassageStore(path / PASSAGES)
    return Index(manifest, passages, BM25(open_arrays(path / _BM25), len(passages), constants))


def _built_with(path: Path, manifest: Manifest) -> BM25Options:
    """The constants of BM25 that the manifest names."""
    bm25 = manifest.settings.get("bm25")
    constants = [bm25.get(name) for name in ("k1", "b")] if isinstance(bm25, dict) else []
    match constants:
        case [int() | float() as k1, int() | float() as b]:
            return BM25Options(k1=k1, b=b)
    raise DamagedFolderError(f"{path} is damaged: its manifest does not say k1 and b of BM25; build the index again.")
