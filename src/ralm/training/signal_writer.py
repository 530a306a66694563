"""Writes a folder of signals: samples examples once, then measures them in parts, in one process or several.

`OUT.unfinished/` holds the examples (sampled.parquet) and the parts that are done. A process claims a part by locking a
file; the lock ends with the process, so the part of a killed one is measured by the next. Whoever finds all parts done
puts the folder together.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.errors import FolderError, WorkerError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Retriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.runs import resume, run
from ralm.storage.atomic import file_lock, storage_errors, sync_one
from ralm.storage.manifest import read_manifest, write_manifest
from ralm.storage.outputs import check_output, new_folder, output_path
from ralm.storage.work import empty, remove, unfinished, work_folder
from ralm.terminal import path_text, progress_bar, track
from ralm.training import signals
from ralm.training.candidates import check_fits, find_candidates, score_candidates
from ralm.training.examples import (
    EXAMPLE_SCHEMA,
    as_table,
    from_table,
    read_training_text,
    sample_examples,
    text_config,
)
from ralm.training.options import CandidateOptions, ExampleOptions
from ralm.training.statistics import signal_statistics
from ralm.validation import config_of

_LOG: Final = logging.getLogger(__name__)
_PART: Final = 128
"""Examples of a part: what a killed process loses at most."""
_SAMPLED: Final = "sampled.parquet"
_PARTS: Final = "parts"
_TURN: Final = "turn"
_PAUSE: Final = 0.2


def make_signals(
    out: Path | str,
    sources: str | Sequence[str],
    index: Index | Path | str,
    model: LanguageModel,
    options: ExampleOptions | None = None,
    candidates: CandidateOptions | None = None,
    *,
    retriever: Retriever | None = None,
    fields: Fields | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> signals.Signals:
    """Sample examples from training text, measure their candidates with `model`, and write the folder `out`.

    `sources`: as for `read_documents`. `retriever` finds candidates among the passages of the index, by default its
    BM25. If this is killed, call it again with the same arguments to resume; several processes that do so share the
    work. Raises FolderExistsError if `out` exists and `force` is not set, UsageError if signals with other settings
    were begun there or the options do not fit the model, TextError if the text has no examples, and what
    `read_documents`, `open_index`, the retriever and the model raise.
    """
    options, candidates = options or ExampleOptions(), candidates or CandidateOptions()
    sources = [sources] if isinstance(sources, str) else list(sources)
    check_fits(model, options.sequence_tokens, candidates.document_tokens)
    index = index if isinstance(index, Index) else open_index(index)
    retriever = retriever or open_retriever(index)
    config: dict[str, JsonValue] = {
        "index": index.fingerprint,
        "retriever": config_of(retriever, "retriever"),
        "model": config_of(model, "language model"),
        "examples": asdict(options),
        "candidates": asdict(candidates),
        "text": text_config(sources, fields, skip_bad=skip_bad),
    }
    documents = track(read_training_text(index, sources, fields, skip_bad=skip_bad), "Reading")
    job = _Job(output_path(Path(out)), config, documents, index, retriever, model, options, candidates)
    check_output(job.out, kind=signals.SIGNALS_KIND, force=force)
    if force and not job.was_begun(force=True):
        with work_folder(job.work, job.out):  # nobody else is in it
            empty(job.work)
    with (
        suppress(_AlreadyMeasuredError),
        storage_errors(job.out),
        work_folder(job.work, job.out, shared=True) as work,
    ):
        with _turn(job):
            if not job.was_begun():
                (work / _SAMPLED).unlink(missing_ok=True)
                resume.write_config(work, config)
            if not (work / _SAMPLED).exists():
                try:
                    _keep_examples(job)
                except BaseException:
                    remove(work)
                    raise
        _measure_all(job)
        with _turn(job):
            if job.is_open:
                if force or not job.is_written:  # a process that shared the work may have been killed after it wrote it
                    _write(job, force=force)
                remove(work)
    return signals.open_signals(out)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Signals to measure: the output, its settings, and all that measures it."""

    out: Path
    config: dict[str, JsonValue]
    documents: Iterable[Document]
    index: Index
    retriever: Retriever
    model: LanguageModel
    options: ExampleOptions
    candidates: CandidateOptions

    def sample(self) -> Iterator[pa.Table]:
        examples = sample_examples(self.documents, self.model.tokenizer, self.options)
        for first in range(0, len(examples), _PART):
            some = examples[first : first + _PART]
            yield as_table(some, first, self.model.tokenizer, self.options.query_tokens)

    def measure(self, sampled: pa.Table) -> pa.Table:
        examples, queries = from_table(sampled), sampled["query"].to_pylist()
        passages, reading = self.index.passages, self.candidates
        hits = find_candidates(examples, queries, self.retriever, passages, reading.candidates, exclude=reading.exclude)
        documents = PassageDocuments(passages, self.model.tokenizer, reading.document_tokens, reading.bos)
        numbers_of = [[NO_PASSAGE, *(number for number, _ in hits.of(row))] for row in range(len(examples))]
        scorer = Scorer(self.model, progress=False)
        scored = score_candidates(examples, numbers_of, documents, scorer)
        rows = []
        for row, number in enumerate(sampled["example"].to_pylist()):
            for hit, log_probs in zip([(None, None), *hits.of(row)], scored[row], strict=True):
                rows.append((number, *hit, log_probs))
        return pa.table([*zip(*rows, strict=True)], signals.CANDIDATE_SCHEMA)

    @property
    def work(self) -> Path:
        return unfinished(self.out)

    def part(self, number: int) -> Path:
        return self.work / _PARTS / f"{number:05}.parquet"

    def was_begun(self, *, force: bool = False) -> bool:
        return resume.was_begun(self.work, self.config, "signals", force=force)

    @property
    def is_open(self) -> bool:
        """Whether no process has put the folder together yet; whoever does removes the work folder."""
        return (self.work / _SAMPLED).exists()

    @property
    def is_written(self) -> bool:
        """Whether the output holds signals with these settings."""
        try:
            recorded = read_manifest(self.out, kind=signals.SIGNALS_KIND).settings.get("config")
        except FolderError:
            return False
        wanted = json.loads(json.dumps(self.config))
        return isinstance(recorded, dict) and {**recorded, signals.INDEX_PATH: ""} == {**wanted, signals.INDEX_PATH: ""}


class _AlreadyMeasuredError(Exception):
    """While this process waited, others have ended the work."""


@contextmanager
def _turn(job: _Job) -> Iterator[None]:
    """Hold the lock of what only one process may do."""
    try:
        with file_lock(job.work / _TURN, wait=True):
            yield
    except FileNotFoundError:
        if job.work.exists():
            raise
        if job.is_written:
            raise _AlreadyMeasuredError from None
        raise WorkerError(
            f"another process began {job.out} and has failed; see its message, or run this again."
        ) from None


def _keep_examples(job: _Job) -> None:
    """Write the examples, a row group for each part; parts of anything sampled before do not count."""
    shutil.rmtree(job.work / _PARTS, ignore_errors=True)
    partial = job.work / f"{_SAMPLED}.partial"
    with pq.ParquetWriter(partial, EXAMPLE_SCHEMA, compression="zstd") as writer:
        for table in job.sample():
            writer.write_table(table)
    sync_one(partial)
    (job.work / _PARTS).mkdir()
    partial.replace(job.work / _SAMPLED)


def _measure_all(job: _Job) -> None:
    """Measure the parts that no other process measures, until all are done."""
    sampled = _open_sampled(job.work)
    left = dict.fromkeys(range(sampled.num_row_groups))
    with progress_bar("Measuring", total=sampled.metadata.num_rows) as advance:
        while job.is_open:
            for part in [*left]:
                if not job.part(part).exists() and job.is_open:
                    _measure_if_free(job, part, sampled)
                if _is_whole(job.part(part)):
                    del left[part]
                    advance(sampled.metadata.row_group(part).num_rows)
            if not left:
                return
            time.sleep(_PAUSE)  # others are measuring what is left


def _measure_if_free(job: _Job, part: int, sampled: pq.ParquetFile) -> None:
    """Measure a part unless another process does."""
    done = job.part(part)
    with file_lock(done.with_suffix(".lock")) as free:
        if not free or done.exists():
            return
        table = job.measure(sampled.read_row_group(part))
        partial = done.with_suffix(".partial")
        pq.write_table(table, partial, compression="zstd")
        sync_one(partial)
        partial.replace(done)


def _write(job: _Job, *, force: bool) -> None:
    parts = _open_sampled(job.work).num_row_groups
    settings: dict[str, JsonValue] = {
        "config": {**job.config, signals.INDEX_PATH: path_text(job.index.path.resolve())},
        "environment": run.environment(),
    }
    with new_folder(job.out, kind=signals.SIGNALS_KIND, force=force) as folder:
        (folder / signals.CANDIDATES).mkdir()
        shutil.copyfile(job.work / _SAMPLED, folder / signals.EXAMPLES)
        for part in range(parts):
            shutil.copyfile(job.part(part), folder / signals.CANDIDATES / job.part(part).name)
        counts = {"examples": pq.read_metadata(folder / signals.EXAMPLES).num_rows}
        manifest = write_manifest(folder, kind=signals.SIGNALS_KIND, settings=settings, counts=counts)
        settings["worth"] = asdict(signal_statistics(signals.open_signals(folder)))
        write_manifest(folder, kind=signals.SIGNALS_KIND, settings=settings, counts=counts, files=manifest.files)


def _open_sampled(work: Path) -> pq.ParquetFile:
    with run.damage_errors(work / _SAMPLED, f"remove {work} and run this again"):
        return pq.ParquetFile(work / _SAMPLED)


def _is_whole(part: Path) -> bool:
    """Whether a part can be read; it is removed if it cannot, so that it is measured again."""
    try:
        pq.read_table(part, schema=signals.CANDIDATE_SCHEMA)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, pa.ArrowException) as error:
        _LOG.warning("%s is damaged (%s): its examples are scored again.", part, error)
        part.unlink(missing_ok=True)
        return False
    return True
