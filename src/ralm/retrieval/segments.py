"""The segments of an index on disk, as its manifest lists them.

An index that was never updated is one segment: the index folder itself. Passages that are added are a segment in
`segments/NUMBER`. Passages that are removed stay where they are until segments are merged; `removed/NUMBER` lists them
for one segment:

    rows.npy      int64    their rows in the segment, rising
    terms.npy     int64    the numbers of their terms in the segment's BM25 arrays, rising
    counts.npy    int64    in how many of the rows each of these occurs

A number is never used twice, so an index that is open keeps what it opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ralm.corpus.numbering import rise_within
from ralm.corpus.store import PASSAGES, PassageStore
from ralm.errors import DamagedFolderError
from ralm.records import IntArray
from ralm.retrieval.bm25.arrays import NAMES, Mapped, checked_arrays, map_arrays, map_numbers
from ralm.retrieval.bm25.segments import Removed, Segment
from ralm.storage.manifest import Manifest

SEGMENTS_SETTING: Final = "segments"
"""The key of the segments in a manifest's settings."""
BM25: Final = "bm25"
"""The folder of the BM25 arrays of a segment."""
SEGMENTS: Final = "segments"
"""The folder of all segments that were added."""
REMOVED: Final = "removed"
"""The folder of all lists of removed passages."""
_ROWS: Final = "rows"
_OF_REMOVED: Final = (_ROWS, "terms", "counts")


class RemovedEntry(BaseModel):
    """What was removed from a segment: the folder that lists it, the number of all its terms, and how many of the
    passages have any."""

    model_config = ConfigDict(frozen=True)

    folder: str
    tokens: int = 0
    with_terms: int = 0


class SegmentEntry(BaseModel):
    """A segment: its folder in the index (empty for the index folder itself), its rows, and what was removed."""

    model_config = ConfigDict(frozen=True)

    folder: str = ""
    passages: int
    removed: RemovedEntry | None = None

    def files(self, *, bm25: bool) -> list[str]:
        """The files of the segment, except those of vectors, by their paths in the index."""
        removed = _OF_REMOVED if bm25 else (_ROWS,)
        return [
            self.file(PASSAGES),
            *(self.file(f"{BM25}/{name}.npy") for name in NAMES if bm25),
            *(f"{self.removed.folder}/{name}.npy" for name in removed if self.removed),
        ]

    def file(self, name: str) -> str:
        """The path in the index of a file of the segment."""
        return f"{self.folder}/{name}" if self.folder else name


class SegmentEntries(BaseModel):
    """The segments in order, and the number that the next new folder gets."""

    model_config = ConfigDict(frozen=True)

    entries: tuple[SegmentEntry, ...] = Field(min_length=1)
    next: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class OpenSegment:
    """A segment whose files are open; `root` is the folder that its paths are relative to."""

    root: Path
    entry: SegmentEntry
    store: PassageStore
    mapped: Mapped | None
    """The arrays of BM25, not checked yet; None if the index was not built for it."""
    removed: Removed

    def for_bm25(self) -> Segment:
        """The segment as BM25 searches it.

        Raises DamagedFolderError.
        """
        assert self.mapped is not None, "the index was not built for BM25"
        arrays = checked_arrays(self.root / self.entry.folder / BM25, self.mapped)
        return Segment(arrays, self.entry.passages, self.removed)

    @property
    def left(self) -> int:
        """How many passages are left."""
        return self.entry.passages - len(self.removed.rows)


def segment_entries(index: Path, manifest: Manifest) -> SegmentEntries:
    """The segments that a manifest lists.

    Raises DamagedFolderError if they are not described.
    """
    listed = manifest.settings.get(SEGMENTS_SETTING)
    if listed is None:
        return SegmentEntries(entries=(SegmentEntry(passages=manifest.counts.get("passages", -1)),))
    try:
        return SegmentEntries.model_validate(listed)
    except ValidationError:
        raise DamagedFolderError(
            f"{index} is damaged: its manifest does not describe its segments; build the index again."
        ) from None


def open_segment(root: Path, entry: SegmentEntry, *, bm25: bool, checksum: str | None = None) -> OpenSegment:
    """Open the files of a segment; `checksum` is that of its passages.

    Raises DamagedFolderError.
    """
    store = PassageStore(root / entry.file(PASSAGES), checksum)
    if entry.passages != len(store):
        raise DamagedFolderError(
            f"{root} is damaged: {entry.file(PASSAGES)} has {len(store):,} passages but the manifest disagrees; build "
            "the index again."
        )
    mapped = map_arrays(root / entry.folder / BM25) if bm25 else None
    return OpenSegment(root, entry, store, mapped, _open_removed(root, entry, bm25))


def removed_rows(segments: Sequence[OpenSegment]) -> IntArray:
    """The rows of all segments (int64, rising) that were removed."""
    begins = [0, *accumulate(one.entry.passages for one in segments)]
    return np.concatenate([first + one.removed.rows for first, one in zip(begins, segments, strict=False)])


def write_removed(root: Path, folder: str, removed: Removed, *, bm25: bool) -> RemovedEntry:
    """Write what was removed from a segment into a new folder below `root`."""
    (root / folder).mkdir(parents=True)
    for name in _OF_REMOVED if bm25 else (_ROWS,):
        np.save(root / folder / f"{name}.npy", getattr(removed, name))
    return RemovedEntry(folder=folder, tokens=removed.tokens, with_terms=removed.with_terms)


def _open_removed(root: Path, entry: SegmentEntry, bm25: bool) -> Removed:
    listed = entry.removed
    if listed is None:
        return Removed()
    numbers = {name: map_numbers(root / listed.folder / f"{name}.npy") for name in (_OF_REMOVED if bm25 else (_ROWS,))}
    if not rise_within(numbers[_ROWS], entry.passages):
        raise DamagedFolderError(
            f"{root / listed.folder} is damaged: rows.npy has invalid numbers; build the index again."
        )
    return Removed(**numbers, tokens=listed.tokens, with_terms=listed.with_terms)
