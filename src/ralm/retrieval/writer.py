"""Writes the next version of an index in one step, while other processes read it, and merges its segments.

Merging copies the passages, postings and vectors that are left; it analyses and encodes no text again.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ralm.corpus.store import PASSAGES_FILE, write_passages
from ralm.errors import FolderExistsError
from ralm.retrieval import layout
from ralm.retrieval.bm25 import formula, kernels
from ralm.retrieval.bm25.segments import merge_arrays, totals_of
from ralm.retrieval.columns import write_columns
from ralm.retrieval.dense.options import dense_extra
from ralm.retrieval.index import Index
from ralm.storage import manifest, outputs
from ralm.terminal import track

_MIN_RATIO: Final = 4
"""A segment is merged with the next one if it has fewer than this many times its passages, so a growing index has few
segments and copies each passage only a few times."""
_MAX_REMOVED: Final = 0.25
"""A segment is rewritten when more than this share of its passages was removed."""


@contextmanager
def changed_index(index: Index) -> Iterator[Path]:
    """Lock an open index against changes by other processes; yields the folder for files that are added to it.

    The block must write a manifest there; it replaces that of the index when the block succeeds. If it fails, the index
    stays as it was. Raises FolderExistsError if another process is writing the index, or has changed it since it was
    opened. The path of the index must be resolved.
    """
    with outputs.changed_folder(index.path) as folder:
        if not manifest.is_current(index.path, index.manifest):
            raise FolderExistsError(f"another process has just changed {index.path}; run the command again.")
        yield folder


class IndexWriter:
    """The next version of an index: its `segments`, of which new ones are in `folder`, under the paths that they will
    have in the index."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index = index
        self.folder = folder
        self.segments: list[layout.OpenSegment] = [*index.segments]
        self.for_bm25 = index.bm25_options is not None
        self._next_number = index.settings.segments.next
        self._rebuilt_vectors: dict[str, str] = {}
        """The checksums of approximate vectors that were merged, by the names of their sets: their hits may differ."""

    def new_path(self, folder: str) -> str:
        """A path in `folder` for new files, which no version of the index has used."""
        number, self._next_number = self._next_number, self._next_number + 1
        return f"{folder}/{number}"

    def write(
        self, settings: Mapping[str, JsonValue], sets: layout.VectorSets, fingerprint: str, documents: int
    ) -> manifest.Manifest:
        """Write the manifest with the settings of before and these; call it last.

        `sets`: the sets of vectors; their files are those of the segments. `fingerprint`: that of the new version.
        """
        before = self.index.manifest
        entries = tuple(one.entry for one in self.segments)
        kept = {file for entry in entries for file in entry.files(bm25=self.for_bm25)}
        kept |= {file for one in self.segments for file in one.vectors.values()}
        files = layout.files_record(before)
        kept |= {files.table} if files and layout.FILES not in settings else set()
        changes = {
            "segments": layout.SegmentEntries(entries=entries, next=self._next_number),
            "fingerprint": fingerprint,
            "vectors": self._with_files(sets),
        }
        recorded = self.index.settings.model_copy(update=changes).recorded()
        return manifest.write_changed_manifest(
            self.folder,
            before,
            settings={**before.settings, **recorded, **settings},
            counts={"documents": documents, **self._counts()},
            without=before.files.keys() - kept,
        )

    def _with_files(self, sets: layout.VectorSets) -> layout.VectorSets:
        changed = {}
        for name, one in sets.sets.items():
            first, *added = (segment.vectors[name] for segment in self.segments)
            changes: dict[str, object] = {"file": first, "added_files": tuple(added)}
            if name in self._rebuilt_vectors:
                changes["fingerprint"] = layout.fingerprint_after(
                    one.fingerprint, {"merged": self._rebuilt_vectors[name]}
                )
            changed[name] = one.model_copy(update=changes)
        return layout.VectorSets(default=sets.default, sets=changed)

    def _counts(self) -> dict[str, int]:
        """The counts of the index; those of terms and postings are known only for a single whole segment."""
        counts = {"passages": sum(one.left for one in self.segments)}
        if self.for_bm25:
            kernels.check_passage_count(sum(one.passages for one in self.segments))
            searched = [one.for_bm25() for one in self.segments]
            counts["tokens"] = totals_of(searched).tokens
            if len(searched) == 1 and len(searched[0].removed.rows) == 0:
                arrays = searched[0].arrays
                counts |= {"terms": len(arrays.term_ids), "postings": len(arrays.passages)}
        return counts

    def merge(self, groups: Sequence[Sequence[int]], build: formula.BuildOptions | None, *, fixed: int) -> None:
        """Merge the segments of each group into one. A single segment stays as it is if it is one of the first `fixed`,
        or if most of it is left. Segments in no group are dropped."""
        before, self.segments = self.segments, []
        for group in groups:
            merged = [before[place] for place in group]
            only = merged[0]
            stays = group[0] < fixed or len(only.removed.rows) <= _MAX_REMOVED * only.passages
            if len(merged) == 1 and stays:
                self.segments.append(only)
            else:
                self.segments.append(self._merged(merged, build or formula.BuildOptions(), first=group[0] == 0))
        for segment in before:
            if segment not in self.segments:
                self._discard(segment.entry)

    def _discard(self, entry: layout.SegmentEntry) -> None:
        """Remove the new files of a segment that is no longer needed."""
        for path in (entry.folder, entry.removed.folder if entry.removed else ""):
            if path:
                shutil.rmtree(self.folder / path, ignore_errors=True)

    def _merged(
        self, segments: Sequence[layout.OpenSegment], build: formula.BuildOptions, *, first: bool
    ) -> layout.OpenSegment:
        """Write the passages left in some segments as one; `first` says whether they are the first of the index."""
        path = self.new_path(layout.SEGMENTS)
        folder = self.folder / path
        folder.mkdir(parents=True)
        passages = layout.stored_passages(segments)
        for _ in track(write_passages(folder / PASSAGES_FILE, passages), "Merging passages", len(passages)):
            pass
        if self.for_bm25:
            merge_arrays([one.for_bm25() for one in segments], folder / layout.BM25_FOLDER, build.buffered_terms)
        vectors = {name: self._merge_vectors(segments, name, path, first) for name in segments[0].vectors}
        entry = layout.SegmentEntry(folder=path, passages=len(passages), columns=write_columns(folder))
        return layout.open_segment(self.folder, entry, vectors, bm25=self.for_bm25)

    def _merge_vectors(self, segments: Sequence[layout.OpenSegment], name: str, path: str, first: bool) -> str:
        """Write the vectors with this name that are left in some segments; returns their file."""
        with dense_extra():
            from ralm.retrieval.dense.build import kind_of_added, merge_vectors
        options = self.index.vector_sets.sets[name].options
        parts = [_open_vectors(one, name) for one in segments]
        exact = kind_of_added(parts[0].d, options.faiss)
        if not first:
            options = replace(options, faiss=exact)
        name_in_index = layout.vectors_file(path, name)
        file = self.folder / name_in_index
        file.parent.mkdir(parents=True)
        merge_vectors(parts, [one.removed.rows for one in segments], options, file.parent)
        if options.faiss != exact:
            self._rebuilt_vectors[name] = manifest.whole_checksum(file)
        return name_in_index


def merge_small_segments(writer: IndexWriter, build: formula.BuildOptions | None) -> None:
    """Merge the segments that have become small or sparse compared with others.

    If vectors of the first segment are stored with loss, it stays as it is until all its passages are removed.
    """
    first = writer.segments[0]
    fixed = 1 if _has_lossy_vectors(first) else 0
    groups = [
        [place + fixed for place in group] for group in plan_merges([one.left for one in writer.segments[fixed:]])
    ]
    if fixed and first.left:
        groups = [[0], *groups]
    writer.merge(groups, build, fixed=fixed)


def plan_merges(left: Sequence[int]) -> list[list[int]]:
    """The groups of consecutive segments to merge, given the number of passages left in each. An empty segment is in no
    group."""
    groups: list[list[int]] = []
    for place, passages in enumerate(left):
        group = [place]
        while groups and passages and sum(left[one] for one in groups[-1]) < _MIN_RATIO * passages:
            group = groups.pop() + group
            passages = sum(left[one] for one in group)
        if passages:
            groups.append(group)
    return groups


def _open_vectors(segment: layout.OpenSegment, name: str) -> Any:
    with dense_extra():
        from ralm.retrieval.dense.search import open_vectors
    file = segment.root / segment.vectors[name]
    return open_vectors(file, file, segment.passages)


def _has_lossy_vectors(segment: layout.OpenSegment) -> bool:
    """Return whether merging a segment would lose more of its vectors, since they are stored with loss."""
    if not segment.vectors:
        return False
    with dense_extra():
        from ralm.retrieval.dense.build import keeps_vectors
    return not all(keeps_vectors(_open_vectors(segment, name)) for name in segment.vectors)
