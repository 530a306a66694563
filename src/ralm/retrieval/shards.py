"""An index made of parts: spans of passages that were analysed apart, perhaps on several machines.

A part is a folder with the passages of a span and the arrays of BM25 for them alone. Consecutive parts are joined into
a shard, byte for byte what building all their passages at once writes. The shards are the segments of an index, so it
is searched with the statistics of all passages. Knows folders; knows nothing of who makes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from ralm.corpus.store import PASSAGES, join_passages, write_passages
from ralm.errors import CorpusError
from ralm.records import Passage
from ralm.retrieval.analysis.analyser import Analysis
from ralm.retrieval.bm25.best import check_passage_count
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.merging import merge_arrays
from ralm.retrieval.bm25.options import BuildOptions
from ralm.retrieval.building import add_all, bm25_builder, bm25_settings
from ralm.retrieval.index import FORMAT_VERSION, KIND
from ralm.retrieval.segments import BM25, SEGMENTS, SEGMENTS_SETTING, SegmentEntries, SegmentEntry, open_segment
from ralm.storage.atomic import link_file
from ralm.storage.manifest import FileEntry, Manifest, file_entries, write_manifest
from ralm.storage.outputs import new_folder
from ralm.terminal import progress_bar

COUNTED: Final = ("terms", "postings", "tokens")


class Held(BaseModel):
    """What a part holds: passages of documents, and the ids of the first and the last document."""

    model_config = ConfigDict(frozen=True)

    passages: int = 0
    documents: int = 0
    first: str | None = None
    last: str | None = None


class Shard(BaseModel):
    """What a shard holds: passages, distinct terms, postings, the terms of all passages; and its files."""

    model_config = ConfigDict(frozen=True)

    passages: int
    terms: int
    postings: int
    tokens: int
    files: dict[str, FileEntry]


class Placed(NamedTuple):
    """A shard and its folder."""

    folder: Path
    shard: Shard


def write_part(folder: Path, passages: Iterable[Passage], analysis: Analysis, build: BuildOptions) -> Held:
    """Write the passages of a part, numbered from 0, and their arrays; there may be none.

    Raises StorageError and what reading the passages raises.
    """
    ends: list[str] = []
    with bm25_builder(folder / BM25, build, analysis) as terms, progress_bar("", shown=False) as unseen:
        counts = add_all(_noting(write_passages(folder / PASSAGES, passages), ends), terms, [], unseen)
        if not ends:
            return Held()
        terms.finish()
    return Held(**counts, first=ends[0], last=ends[-1])


def join_parts(parts: Sequence[tuple[Path, int]], folder: Path, build: BuildOptions) -> Shard:
    """Write the shard of consecutive parts, given as folders and numbers of passages, of which none is 0.

    Raises DamagedFolderError if a part is damaged.
    """
    segments = [open_segment(part, SegmentEntry(passages=passages), bm25=True) for part, passages in parts]
    (folder / BM25).mkdir()
    join_passages(folder / PASSAGES, [part / PASSAGES for part, _ in parts])
    counts = merge_arrays([one.for_bm25() for one in segments], folder / BM25, build.buffered_terms)
    return Shard(
        passages=counts.passages,
        terms=counts.terms,
        postings=counts.postings,
        tokens=counts.tokens,
        files=file_entries(folder),
    )


def documents_of(parts: Iterable[Held]) -> int:
    """How many documents the parts have together: one that goes on in the next part counts once."""
    full = [part for part in parts if part.passages]
    shared = sum(one.last == other.first for one, other in pairwise(full))
    return sum(part.documents for part in full) - shared


def write_index(
    out: Path,
    shards: Sequence[Placed],
    documents: int,
    options: BM25Options,
    analysis: Analysis,
    described: dict[str, JsonValue],
    *,
    force: bool,
) -> Manifest:
    """Put an index together whose segments are these shards, atomically; their files get a second name.

    Raises CorpusError if there are no shards, or more passages than BM25 can number; and what `new_folder` raises.
    """
    if not shards:
        raise CorpusError("the corpus has no passages: nothing to index.")
    entries = [
        SegmentEntry(folder=f"{SEGMENTS}/{number}" if number else "", passages=one.shard.passages)
        for number, one in enumerate(shards)
    ]
    settings: dict[str, JsonValue] = {"bm25": bm25_settings(analysis, options), **described}
    counts = {"documents": documents, "passages": sum(one.passages for one in entries)}
    check_passage_count(counts["passages"])
    if len(shards) == 1:
        counts |= {name: getattr(shards[0].shard, name) for name in COUNTED}
    else:
        settings[SEGMENTS_SETTING] = SegmentEntries(entries=tuple(entries), next=len(entries)).model_dump(mode="json")
        counts["tokens"] = sum(one.shard.tokens for one in shards)
    files: dict[str, FileEntry] = {}
    with new_folder(out, kind=KIND, force=force) as folder:
        for entry, (place, shard) in zip(entries, shards, strict=True):
            (folder / entry.folder / BM25).mkdir(parents=True)
            for name, file in shard.files.items():
                link_file(place / name, folder / entry.file(name))
                files[entry.file(name)] = file
        return write_manifest(
            folder,
            kind=KIND,
            format_version=FORMAT_VERSION,
            settings=settings,
            counts=counts,
            files=dict(sorted(files.items())),
        )


def _noting(passages: Iterable[Passage], ends: list[str]) -> Iterator[Passage]:
    """The passages; the ids of the first document and of the latest one are kept in `ends`."""
    for passage in passages:
        ends[:] = [ends[0] if ends else passage.document_id, passage.document_id]
        yield passage
