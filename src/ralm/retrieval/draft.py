"""The next version of an index while it is being made: its segments so far, and the manifest that will list them."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from ralm.retrieval.bm25.best import check_passage_count
from ralm.retrieval.index import FORMAT_VERSION, Index
from ralm.retrieval.segments import SEGMENTS_SETTING, OpenSegment, SegmentEntries, segment_entries
from ralm.retrieval.vector_sets import BUILT, FINGERPRINT, VECTORS_SETTING, VectorSets, fingerprint_after
from ralm.storage.manifest import Manifest, write_changed_manifest


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A segment, and its file of vectors for each set, relative to the segment's `root`."""

    segment: OpenSegment
    vectors: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Draft:
    """The next version of `index`; new files are in `folder`, under the paths that they will have in the index."""

    index: Index
    folder: Path
    pieces: list[Piece]
    next_number: int
    made_anew: dict[str, str] = field(default_factory=dict)
    """The checksums of approximate vectors that were merged, by the names of their sets: their hits may be others."""

    @classmethod
    def of(cls, index: Index, folder: Path) -> Self:
        """The index as it is."""
        sets = index.vector_sets.sets
        vectors = [{name: one.files[place] for name, one in sets.items()} for place in range(len(index.segments))]
        pieces = [Piece(segment, own) for segment, own in zip(index.segments, vectors, strict=True)]
        return cls(index, folder, pieces, segment_entries(index.path, index.manifest).next)

    @property
    def for_bm25(self) -> bool:
        """Whether the index is for BM25."""
        return self.index.bm25_options is not None

    def new_place(self, what: str) -> str:
        """A path for new files, which no version of the index has used."""
        number, self.next_number = self.next_number, self.next_number + 1
        return f"{what}/{number}"

    def discard(self, piece: Piece) -> None:
        """Remove the files of a piece that is not needed any more, as far as they are new."""
        entry = piece.segment.entry
        for place in (entry.folder, entry.removed.folder if entry.removed else ""):
            if place:
                shutil.rmtree(self.folder / place, ignore_errors=True)

    def write(self, settings: Mapping[str, JsonValue], sets: VectorSets, fingerprint: str, documents: int) -> Manifest:
        """Write the manifest, with these settings besides those of before; call it last.

        `sets` are the sets of vectors but for their files. `fingerprint` is that of the new version.
        """
        before = self.index.manifest
        entries = [piece.segment.entry for piece in self.pieces]
        kept = {file for entry in entries for file in entry.files(bm25=self.for_bm25)}
        kept |= {file for piece in self.pieces for file in piece.vectors.values()}
        written: dict[str, JsonValue] = {name: value for name, value in before.settings.items() if name != BUILT}
        written[SEGMENTS_SETTING] = SegmentEntries(entries=tuple(entries), next=self.next_number).model_dump(
            mode="json"
        )
        written[FINGERPRINT] = fingerprint
        if sets.sets:
            written[VECTORS_SETTING] = self._with_files(sets).model_dump(mode="json")
        return write_changed_manifest(
            self.folder,
            before,
            format_version=FORMAT_VERSION,
            settings={**written, **settings},
            counts={"documents": documents, **self._counts()},
            without=before.files.keys() - kept,
        )

    def _with_files(self, sets: VectorSets) -> VectorSets:
        named = {}
        for name, one in sets.sets.items():
            first, *added = (piece.vectors[name] for piece in self.pieces)
            changes: dict[str, object] = {"file": first, "added_files": tuple(added)}
            if name in self.made_anew:
                changes["fingerprint"] = fingerprint_after(one.fingerprint, {"merged": self.made_anew[name]})
            named[name] = one.model_copy(update=changes)
        return VectorSets(default=sets.default, sets=named)

    def _counts(self) -> dict[str, int]:
        """The counts of the index; those of terms and postings are known only for a single whole segment."""
        segments = [piece.segment for piece in self.pieces]
        counts = {"passages": sum(one.left for one in segments)}
        if self.for_bm25:
            check_passage_count(sum(one.entry.passages for one in segments))
            searched = [one.for_bm25() for one in segments]
            counts["tokens"] = sum(int(one.arrays.totals[0]) - one.removed.tokens for one in searched)
            if len(searched) == 1 and len(searched[0].removed.rows) == 0:
                arrays = searched[0].arrays
                counts |= {"terms": len(arrays.term_ids), "postings": len(arrays.passages)}
        return counts
