"""Builds an index on a cluster.

    files --> spans, by content --> a part for each span --> shards, of consecutive parts --> the index

Parts and shards are kept beside the output, or in an object store, until the index is complete. Their names are hashes
of their content, so finished work is never done again, even if this process dies.
"""

import json
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from ralm.corpus.decontamination import Decontamination, Removals
from ralm.corpus.documents import (
    BROKEN_LINES,
    CRASHES,
    NOT_JSON,
    SKIP_ADVICE,
    DocumentBuilder,
    Fields,
    Skipped,
    check_metadata,
)
from ralm.corpus.sources import RepeatedIds, no_document
from ralm.corpus.spans import SPAN_BYTES, CorpusSpan, cut_span, group_files, list_files, read_span
from ralm.corpus.splitting import Splitting, make_passages
from ralm.corpus.store import PASSAGES_FILE, PassageStore
from ralm.distributed import artifact_store, cluster
from ralm.errors import ClusterError, CorpusError, RalmWarning, UsageError, WorkerError
from ralm.lm import is_local
from ralm.lm.registry import load_tokenizer
from ralm.protocols import Tokenizer
from ralm.records import Document
from ralm.retrieval.analysis import analysis_by_name
from ralm.retrieval.bm25 import formula, kernels
from ralm.retrieval.build import PartCounts, Shard, ShardFolder, documents_of, join_parts, write_index, write_part
from ralm.retrieval.index import INDEX_KIND
from ralm.storage import atomic, manifest, outputs
from ralm.version import __version__

_T = TypeVar("_T")
_R = TypeVar("_R")

_RECORD: Final = "record.json"
_MIN_SPANS: Final = 8
"""Spans that a small corpus is cut into, for each shard."""
_WARNINGS: Final = 5
_MAX_JOINED: Final = 64
"""The most folders that are joined at once: each takes a dozen file handles, of which a process often has 1,024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """What is read of `sources`, and how: as `read_documents`, `make_passages` and `build_index` take it. `lm` is the
    name of the language model whose tokens `splitting` counts, and `tokenizer` the fingerprint of its tokenizer
    (`settled`)."""

    sources: Sequence[str]
    fields: Fields = field(default_factory=Fields)
    named: bool = False
    skip_bad: bool = False
    splitting: Splitting = field(default_factory=Splitting)
    lm: str | None = None
    tokenizer: str | None = None
    decontamination: Decontamination = field(default_factory=Decontamination)
    analyser: str = "english"

    def settled(self) -> Self:
        """The same from any folder and on any machine: `lm` is absolute if it is local, and its tokenizer known."""
        if self.lm is None:
            return self
        lm = str(Path(self.lm).absolute()) if is_local(self.lm) else self.lm
        return replace(self, lm=lm, tokenizer=load_tokenizer(lm).fingerprint)

    def settings(self) -> dict[str, JsonValue]:
        """Everything that decides what becomes of a span, but for what is bad in it."""
        analysis = analysis_by_name(self.analyser)
        forbidden: list[JsonValue] = [*sorted(self.decontamination.titles), *sorted(self.decontamination.hashes)]
        return {
            "ralm": __version__,
            "index format": INDEX_KIND.version,
            "fields": json.loads(json.dumps(asdict(self.fields))),
            "splitting": asdict(self.splitting),
            "lm": self.lm,
            "tokenizer": self.tokenizer,
            "decontamination": {**self.decontamination.settings, "sha256": artifact_store.short_hash(forbidden)},
            "analyser": analysis.recorded,
            "stemmer": None if analysis.stemmer is None else analysis.stemmer(),
        }


class _Record(BaseModel):
    """What a part holds, and what of its span is left out of it."""

    model_config = ConfigDict(frozen=True)

    held: PartCounts
    documents: int
    """Documents with text that were read."""
    skipped: dict[str, tuple[int, list[str]]]
    """For each reason the count and the first examples."""
    not_json: dict[str, str]
    never_seen: list[str]
    removed: dict[str, dict[str, int]]
    removed_list: list[dict[str, str | int]]
    warnings: list[str]


class _Part(NamedTuple):
    """A part: the number of its source, its name, and what it holds."""

    source: int
    key: str
    held: PartCounts


class _Folder(NamedTuple):
    """A folder of passages and their arrays: the name under which it is kept, and how many passages there are."""

    name: str
    passages: int


@dataclass(frozen=True, slots=True)
class _Job:
    """The data that every machine gets; `settings` is a hash of the plan's settings."""

    plan: CorpusPlan
    settings: str
    store: artifact_store.ArtifactStore
    requirements: cluster.Requirements
    build: formula.BuildOptions
    span_bytes: int


def build_index_on(
    address: str,
    plan: CorpusPlan,
    out: Path | str,
    options: formula.BM25Options | None = None,
    *,
    shards: int = 1,
    parts: str | None = None,
    describe: Callable[[], dict[str, JsonValue]] = dict,
    removals: Removals | None = None,
    skipped: Skipped | None = None,
    build: formula.BuildOptions | None = None,
    force: bool = False,
) -> manifest.Manifest:
    """Build on a cluster the index for BM25 that `build_index` builds here, with its passages in `shards` segments.

    With one shard, all its files are the same. Sources that are no URLs must be on disks that all machines share, and
    so must `out`, unless `parts` is the URL of a folder of an object store, where machines keep parts until the index
    is complete. `removals` and `skipped` are filled; `describe` is called afterwards. `build` bounds the memory of each
    task. A line, or a file that is not cut, that ends the process that reads it is an error, or is skipped if the plan
    skips bad lines.

    Raises ClusterError; UsageError if the corpus cannot be cut into so many shards, or was begun with other settings,
    or `parts` is no URL; StorageError if it cannot be written to; WorkerError if memory is too small for a shard; and
    the errors of reading the corpus and of `build_index`.
    """
    options, build = options or formula.BM25Options(), build or formula.BuildOptions()
    plan = plan.settled()
    removals, skipped = removals if removals is not None else Removals(), Skipped() if skipped is None else skipped
    out = outputs.output_path(Path(out))
    outputs.check_output(out, kind=INDEX_KIND, force=force)
    files = list_files(plan.sources, skipped, source_in_ids=plan.named)
    span_bytes = min(SPAN_BYTES, max(1, sum(one.bytes for one in files) // (_MIN_SPANS * shards)))
    settings = plan.settings()
    remote = artifact_store.remote_folder(parts, settings, plan.sources)
    with (
        cluster.connected(address),
        atomic.storage_errors(out),
        artifact_store.job_folder(out, settings, remote, force=force) as work,
        artifact_store.open_store(work, plan.sources, remote) as (store, requirements),
    ):
        job = _Job(plan, artifact_store.short_hash(settings), store, requirements, build, span_bytes)
        cuts = _run(_cut, job, group_files(files, span_bytes), "Reading the corpus", _name)
        parts_made = _make_parts(job, [span for spans in cuts for span in spans], skipped)
        _add_up(job, parts_made, removals, skipped)
        names = _make_shards(job, parts_made, shards)
        if isinstance(store, artifact_store.ObjectStore):
            store = replace(store, place=work / artifact_store.SHARDS)
        with store.folders(names) as folders:
            placed = [ShardFolder(folder, _shard(job, name)) for folder, name in zip(folders, names, strict=True)]
            _warn_of_repeated_ids(placed)
            documents = documents_of(part.held for part in parts_made)
            analysis = analysis_by_name(plan.analyser)
            return write_index(out, placed, documents, options, analysis, describe(), force=force)


def _run(
    function: Callable[[_Job, _T], _R], job: _Job, tasks: Iterable[_T], title: str, describe: Callable[[_T], str]
) -> list[_R]:
    """The results of tasks that are never halved."""

    def fail(task: _T) -> NoReturn:
        raise WorkerError(
            f"{describe(task)}: the process has ended {cluster.MAX_CRASHES} times, perhaps because memory ran out; use "
            "machines with more memory, or more `shards`."
        )

    done = cluster.run_tasks(function, job, tasks, title=title, describe=describe, on_crash=fail)
    return [result for _, result in done]


def _cut(job: _Job, files: CorpusSpan) -> list[CorpusSpan]:
    job.requirements.check()
    return cut_span(files, job.span_bytes)


def _make_parts(job: _Job, spans: Sequence[CorpusSpan], skipped: Skipped) -> list[_Part]:
    """Make a part of every span; spans that end their process are skipped, or an error."""

    def on_crash(span: CorpusSpan) -> None:
        if not job.plan.skip_bad:
            raise CorpusError(
                f"{span.name} ends the process that reads it, each of {cluster.MAX_CRASHES} times.{SKIP_ADVICE}"
            )
        skipped.add(CRASHES, span.name)

    def halves(span: CorpusSpan) -> tuple[CorpusSpan, CorpusSpan] | None:
        both = span.halves()
        if both:
            job.store.mark(_halved_mark(job, span))
        return both

    known = (part for span in spans for part in _halved_before(job, span))
    made = cluster.run_tasks(_make_part, job, known, title="Indexing", describe=_name, on_crash=on_crash, halves=halves)
    return [_Part(span.source, *part) for span, part in made]


def _halved_mark(job: _Job, span: CorpusSpan) -> str:
    """The name of the mark that a span was halved, so that it need not crash again."""
    return f"{artifact_store.PARTS}/{_key(job, span)}.halved"


def _halved_before(job: _Job, span: CorpusSpan) -> Iterator[CorpusSpan]:
    """The parts that a span was cut into before."""
    halves = span.halves() if job.store.is_marked(_halved_mark(job, span)) else None
    for half in halves or ():
        yield from _halved_before(job, half)
    if halves is None:
        yield span


def _make_part(job: _Job, span: CorpusSpan) -> tuple[str, PartCounts]:
    """Make the part of a span unless it exists; returns its name and its counts."""
    job.requirements.check()
    key = _key(job, span)
    job.store.make(f"{artifact_store.PARTS}/{key}", lambda new: _write_part(new, job, span))
    record = _record(job, key)
    skips = job.plan.skip_bad or span.in_folder
    if BROKEN_LINES in record.skipped and not skips:  # the part was made when they were to be skipped
        raise CorpusError(f"{record.skipped[BROKEN_LINES][1][0]}.{SKIP_ADVICE}")
    return key, record.held


def _write_part(folder: Path, job: _Job, span: CorpusSpan) -> None:
    plan, skipped, removals, documents = job.plan, Skipped(), Removals(), 0
    maker = DocumentBuilder(plan.fields, skipped, skip_bad=plan.skip_bad)

    def count_read(document: Document) -> Document:
        nonlocal documents
        documents += 1
        return document

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", RalmWarning)
        passages = make_passages(
            map(count_read, read_span(span, maker)),
            plan.splitting,
            tokenizer=_tokenizer(plan.lm, plan.tokenizer) if plan.lm else None,
            decontamination=plan.decontamination,
            removals=removals,
        )
        held = write_part(folder, passages, analysis_by_name(plan.analyser), job.build)
    reasons = {name: (count, skipped.examples[name]) for name, count in skipped.counts.items() if name != NOT_JSON}
    record = {
        "held": held,
        "documents": documents,
        "skipped": reasons,
        "not_json": maker.not_json,
        "never_seen": sorted(maker.never_seen),
        "removed": removals.counts(),
        "removed_list": removals.listed(),
        "warnings": list(dict.fromkeys(str(one.message) for one in warned))[:_WARNINGS],
    }
    (folder / _RECORD).write_text(_Record.model_validate(record).model_dump_json(), encoding="utf-8")


def _add_up(job: _Job, parts: Sequence[_Part], removals: Removals, skipped: Skipped) -> None:
    """Add up what was skipped and removed, and give the errors and warnings of `read_documents`.

    Raises CorpusError if a source has no documents, or no document has a field that is named for metadata.
    """
    documents = Counter[int]()
    not_json: dict[str, str] = {}
    never_seen = set(job.plan.fields.metadata or ())
    for part in parts:
        record = _record(job, part.key)
        documents[part.source] += record.documents
        skipped.merge(
            Skipped(
                Counter({name: count for name, (count, _) in record.skipped.items()}),
                {name: examples for name, (_, examples) in record.skipped.items()},
            )
        )
        removals.merge(record.removed, record.removed_list)
        not_json = record.not_json | not_json
        never_seen &= {*record.never_seen}
        for message in record.warnings:
            warnings.warn(message, RalmWarning, stacklevel=2)
    for name, kind in not_json.items():
        skipped.add(NOT_JSON, f"{name} ({kind})")
    for number, source in enumerate(job.plan.sources):
        if not documents[number]:
            raise no_document(source, skipped, skipped.counts)
    check_metadata(never_seen)


def _make_shards(job: _Job, parts: Sequence[_Part], shards: int) -> list[str]:
    """Join consecutive parts into shards of about the same number of passages; returns their names.

    Raises CorpusError if there are more passages than an index can have.
    """
    full = [_Folder(f"{artifact_store.PARTS}/{part.key}", part.held.passages) for part in parts if part.held.passages]
    total, before = sum(part.passages for part in full), 0
    shares: dict[int, list[_Folder]] = {}
    for part in full:
        shares.setdefault((2 * before + part.passages) * shards // (2 * total), []).append(part)
        before += part.passages
    if full and len(shares) < shards:
        raise UsageError(
            f"`shards` is {shards}, but the corpus can only be cut into {len(shares)} of about one size: only files of "
            "JSON Lines that are not packed are cut into pieces. Give fewer `shards`, or more and smaller files."
        )
    kernels.check_passage_count(total)
    return [shard.name for shard in _joined(job, [*shares.values()])]


def _joined(job: _Job, shares: list[list[_Folder]]) -> list[_Folder]:
    """Join each share, at most `_MAX_JOINED` folders at a time, since each takes file handles."""
    while True:
        groups = [[share[at : at + _MAX_JOINED] for at in range(0, len(share), _MAX_JOINED)] for share in shares]
        made = iter(_run(_join, job, [one for some in groups for one in some], "Joining parts", _describe_share))
        shares = [[next(made) for _ in some] for some in groups]
        if all(len(share) == 1 for share in shares):
            return [folder for (folder,) in shares]


def _join(job: _Job, share: Sequence[_Folder]) -> _Folder:
    """Join consecutive parts or shards, unless the result exists."""
    job.requirements.check()
    name = f"{artifact_store.SHARDS}/{artifact_store.short_hash([folder.name for folder in share])}"

    def join(new: Path) -> None:
        with job.store.folders([folder.name for folder in share]) as places:
            parts = [(place, folder.passages) for place, folder in zip(places, share, strict=True)]
            shard = join_parts(parts, new, job.build)
        (new / _RECORD).write_text(shard.model_dump_json(), encoding="utf-8")

    job.store.make(name, join)
    return _Folder(name, _shard(job, name).passages)


def _shard(job: _Job, name: str) -> Shard:
    return Shard.model_validate_json(job.store.read(name, _RECORD))


def _describe_share(share: Sequence[_Folder]) -> str:
    return f"a shard of {sum(folder.passages for folder in share):,} passages"


def _warn_of_repeated_ids(shards: Sequence[ShardFolder]) -> None:
    """Give a RalmWarning if several documents share an id, as far as `read_documents` compares ids."""
    repeated = RepeatedIds()
    for placed in shards:
        for _, document_id, _ in PassageStore(placed.folder / PASSAGES_FILE).origins():
            if repeated.is_full:
                break
            repeated.add(document_id)
    repeated.warn()


@lru_cache(maxsize=1)
def _tokenizer(lm: str, fingerprint: str | None) -> Tokenizer:
    """The tokenizer of a language model, on a machine; raises ClusterError if it is another one there."""
    tokenizer = load_tokenizer(lm)
    if tokenizer.fingerprint != fingerprint:
        raise ClusterError(
            f"the tokenizer of {lm} on the machine {platform.node()} of the cluster is another one than where the "
            "command runs: put the same files on all machines."
        )
    return tokenizer


def _name(span: CorpusSpan) -> str:
    return span.name


def _record(job: _Job, part: str) -> _Record:
    return _Record.model_validate_json(job.store.read(f"{artifact_store.PARTS}/{part}", _RECORD))


def _key(job: _Job, span: CorpusSpan) -> str:
    """The name of the part of a span: a hash of its content, of the names in it, and of what is made of it."""
    files: list[JsonValue] = [[file.id, file.prefix, file.lines.first if file.lines else 0] for file in span.files]
    return artifact_store.short_hash([job.settings, span.in_folder, span.sha256, files])
