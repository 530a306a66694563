"""Changes an index in place, in one step, while others read it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from pydantic import JsonValue

from ralm.corpus.numbering import StoredPassages
from ralm.corpus.store import PASSAGES_FILE, write_passages
from ralm.errors import FolderExistsError, UsageError
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.bm25.kernels import check_passage_count
from ralm.retrieval.bm25.segments import merge_arrays
from ralm.retrieval.dense.options import dense_extra
from ralm.retrieval.index import INDEX_FORMAT, Index, open_index
from ralm.retrieval.layout import (
    BM25_FOLDER,
    BUILT,
    FINGERPRINT,
    SEGMENTS,
    SEGMENTS_SETTING,
    VECTORS_SETTING,
    OpenSegment,
    SegmentEntries,
    SegmentEntry,
    VectorSets,
    fingerprint_after,
    open_segment,
    removed_rows,
    segment_entries,
    vector_options,
    vectors_file,
)
from ralm.storage.manifest import Manifest, is_current, whole_checksum, write_changed_manifest
from ralm.storage.outputs import changed_folder
from ralm.terminal import track


@contextmanager
def changing(index: Index) -> Iterator[Path]:
    """Lock an open index against changes by other processes; the folder for what is added to it.

    The block must write a manifest there; it replaces that of the index when the block succeeds. If it fails, the index
    stays as it was. Raises FolderExistsError if another process is writing the index, or has changed it since it was
    opened. The path of the index must be resolved.
    """
    with changed_folder(index.path) as folder:
        if not is_current(index.path, index.manifest):
            raise FolderExistsError(f"another process has just changed {index.path}; run it again.")
        yield folder


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
            format_version=INDEX_FORMAT,
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


_TIMES: Final = 4
"""A segment is merged with the next one if it has fewer than this many times its passages. So a growing index has few
segments, and copies each passage only a few times."""
_MOST_REMOVED: Final = 0.25
"""A segment is rewritten once more than this share of its passages was removed."""


def merge_index(index: Path | str, build: BuildOptions | None = None) -> Manifest:
    """Merge all segments of an index into one, without the passages that were removed; returns the new manifest, or the
    old one if there is nothing to merge.

    Hits and fingerprints stay the same, so caches and runs stay valid; except those of approximate vectors, whose index
    is made anew. An index that is open stays what it was. `build` bounds the memory. Raises UsageError if vectors are
    stored with loss, so that merging would lose more; FolderExistsError if another process is writing the index; and
    what `open_index` raises.
    """
    opened = open_index(Path(index).resolve())
    if len(opened.segments) == 1 and not len(opened.passages.numbering.removed):
        return opened.manifest
    with changing(opened) as folder:
        draft = Draft.of(opened, folder)
        lossy = [name for name in opened.vectors if not _keeps_vectors(draft.pieces[0], name)]
        if lossy:
            raise UsageError(
                f"the vectors {lossy[0]!r} of {opened.path} are stored with loss, and merging would lose more; remove "
                "them (`ralm.remove_vectors`), merge, and add them again with `ralm encode`."
            )
        _merge(draft, [list(range(len(draft.pieces)))], build or BuildOptions())
        documents = opened.manifest.counts.get("documents", 0)
        return draft.write({}, opened.vector_sets, opened.fingerprint, documents)


def merge_some(draft: Draft, build: BuildOptions) -> None:
    """Merge the segments of a draft that have become small or sparse beside others. If vectors of the first are stored
    with loss, it stays as it is until nothing is left of it."""
    first = draft.pieces[0]
    fixed = 0 if all(_keeps_vectors(first, name) for name in first.vectors) else 1
    left = [piece.segment.left for piece in draft.pieces[fixed:]]
    groups = [[place + fixed for place in group] for group in plan_merges(left)]
    if fixed and first.segment.left:
        groups = [[0], *groups]
    _merge(draft, groups, build, most_removed=_MOST_REMOVED, fixed=fixed)


def plan_merges(left: Sequence[int]) -> list[list[int]]:
    """Which consecutive segments to merge, given how many passages are left of each. A segment of which nothing is left
    is in no group."""
    groups: list[list[int]] = []
    for place, passages in enumerate(left):
        group = [place]
        while groups and passages and sum(left[one] for one in groups[-1]) < _TIMES * passages:
            group = groups.pop() + group
            passages = sum(left[one] for one in group)
        if passages:
            groups.append(group)
    return groups


def _merge(
    draft: Draft, groups: Sequence[Sequence[int]], build: BuildOptions, *, most_removed: float = 0, fixed: int = 0
) -> None:
    """Merge the pieces of each group into one. A single piece stays as it is if it is one of the first `fixed`, or if
    at most the share `most_removed` of it was removed. Pieces in no group are dropped."""
    before = draft.pieces
    kept = {place for group in groups for place in group}
    draft.pieces = []
    for group in groups:
        pieces = [before[place] for place in group]
        segment = pieces[0].segment
        stays = group[0] < fixed or len(segment.removed.rows) <= most_removed * segment.entry.passages
        if len(pieces) == 1 and stays:
            draft.pieces += pieces
            continue
        draft.pieces.append(_merged(draft, pieces, build, first=group[0] == 0))
        for piece in pieces:
            draft.discard(piece)
    for place, piece in enumerate(before):
        if place not in kept:
            draft.discard(piece)


def _merged(draft: Draft, pieces: Sequence[Piece], build: BuildOptions, *, first: bool) -> Piece:
    """Write what is left of some pieces as one; `first` says whether they are the first of the index."""
    place = draft.new_place(SEGMENTS)
    folder = draft.folder / place
    folder.mkdir(parents=True)
    segments = [piece.segment for piece in pieces]
    passages = StoredPassages([one.store for one in segments], removed_rows(segments))
    for _ in track(write_passages(folder / PASSAGES_FILE, passages), "Merging passages", len(passages)):
        pass
    if draft.for_bm25:
        (folder / BM25_FOLDER).mkdir()
        merge_arrays([one.for_bm25() for one in segments], folder / BM25_FOLDER, build.buffered_terms)
    vectors = {name: _merge_vectors(draft, pieces, name, place, first) for name in pieces[0].vectors}
    entry = SegmentEntry(folder=place, passages=len(passages))
    return Piece(open_segment(draft.folder, entry, bm25=draft.for_bm25), vectors)


def _merge_vectors(draft: Draft, pieces: Sequence[Piece], name: str, place: str, first: bool) -> str:
    """Write the vectors with this name that are left of some pieces; returns their file."""
    with dense_extra():
        from ralm.retrieval.dense.build import kind_of_added, merge_vectors
    options = vector_options(draft.index.vector_sets.sets[name])
    parts = [_open_vectors(piece, name) for piece in pieces]
    exact = kind_of_added(parts[0].d, options.faiss)
    if not first:
        options = replace(options, faiss=exact)
    name_in_index = vectors_file(place, name)
    file = draft.folder / name_in_index
    file.parent.mkdir(parents=True)
    merge_vectors(parts, [piece.segment.removed.rows for piece in pieces], options, file.parent)
    if options.faiss != exact:
        draft.made_anew[name] = whole_checksum(file)
    return name_in_index


def _open_vectors(piece: Piece, name: str) -> Any:
    with dense_extra():
        from ralm.retrieval.dense.search import open_vectors
    file = piece.segment.root / piece.vectors[name]
    return open_vectors(file, file, piece.segment.entry.passages)


def _keeps_vectors(piece: Piece, name: str) -> bool:
    """Whether the vectors with this name can be merged without loss."""
    with dense_extra():
        from ralm.retrieval.dense.build import keeps_vectors
    return keeps_vectors(_open_vectors(piece, name))
