"""Writes a folder of signals: samples examples once, then measures them in parts, in one process or several.

`OUT.unfinished/` holds the examples (sampled.parquet) and the parts that are done. A process claims a part by locking a
file; the lock ends with the process, so the part of a killed one is measured by the next. Whoever finds all parts done
puts the folder together.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.corpus.sources import read_documents
from ralm.errors import DamagedFolderError, FolderError, WorkerError
from ralm.protocols import LanguageModel, Retriever
from ralm.records import Passages
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.runs.resume import CONFIG, was_begun, write_config
from ralm.runs.run import environment
from ralm.storage.atomic import file_lock, link_file, storage_errors, sync_one, try_file_lock
from ralm.storage.manifest import read_manifest, write_manifest
from ralm.storage.outputs import check_output, new_folder, output_path
from ralm.storage.work import UNFINISHED_SIGNALS, work_folder
from ralm.terminal import path_text, progress_bar, track
from ralm.training.candidates import (
    check_fits,
    document_store_factory,
    find_candidates,
    queries_of,
    score_candidates,
)
from ralm.training.examples import Example, as_table, begins_with_source, from_table, sample_examples, text_config
from ralm.training.options import CandidateOptions, ExampleOptions
from ralm.training.signals import (
    CANDIDATE_SCHEMA,
    CANDIDATES,
    EXAMPLE_SCHEMA,
    EXAMPLES,
    INDEX_PATH,
    SIGNALS_KIND,
    Signals,
    open_signals,
    signal_statistics,
)
from ralm.validation import config_of

_LOG: Final = logging.getLogger(__name__)
_PART: Final = 128
"""Examples of a part: what a killed process loses at most."""
_SAMPLED: Final = "sampled.parquet"
_PARTS: Final = "parts"
_TURN: Final = "turn"
_FINISHED: Final = "finished"
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
) -> Signals:
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
    opened = index if isinstance(index, Index) else open_index(index)
    retriever = retriever or open_retriever(opened)
    config: dict[str, JsonValue] = {
        "index": opened.fingerprint,
        "retriever": config_of(retriever, "retriever"),
        "model": config_of(model, "language model"),
        "examples": asdict(options),
        "candidates": asdict(candidates),
        "text": text_config(sources, fields, skip_bad=skip_bad),
    }
    out = _checked_output(Path(out), config, force=force)
    with suppress(_AlreadyMeasuredError), storage_errors(out), _work(out, config, force=force) as work:
        with _turn(work, out, config):
            if not (work / _SAMPLED).exists():
                documents = read_documents(
                    sources, fields, skip_bad=skip_bad, source_in_ids=begins_with_source(opened, sources)
                )
                _sample(work, sample_examples(track(documents, "Reading"), model.tokenizer, options))
        measurer = _Measurer(opened.passages, retriever, model, options, candidates)
        _measure_all(work, measurer)
        _finish(work, out, {**config, INDEX_PATH: path_text(opened.path.resolve())}, measurer, force=force)
    return open_signals(out)


def check_early(out: Path, *, force: bool) -> None:
    """Raise FolderExistsError, before anything is loaded, if signals cannot be written there for certain: not if work
    was left beside it, which `make_signals` knows how to end."""
    if not UNFINISHED_SIGNALS.folder_of(output_path(out)).exists():
        check_output(out, kind=SIGNALS_KIND, force=force)


def _checked_output(out: Path, config: dict[str, JsonValue], *, force: bool) -> Path:
    """The path of the output. Removes what is left if a process was killed after it had written the output: unless
    `force` says to write it again, for then it may be what was measured for that."""
    out = output_path(out)
    work = UNFINISHED_SIGNALS.folder_of(out)
    # the settings of the work go when the output gets its name
    is_its_own = not (work / CONFIG).exists() or was_begun(work, config, "signals", force=True)
    is_left = not force and is_its_own and work.exists() and _is_of(out, config)
    if out.exists() and (is_left or (work / _FINISHED).exists()):
        with work_folder(UNFINISHED_SIGNALS, out):
            UNFINISHED_SIGNALS.clear(work)
    check_output(out, kind=SIGNALS_KIND, force=force)
    return out


def _is_of(out: Path, config: dict[str, JsonValue]) -> bool:
    """Whether a folder holds signals with these settings."""
    try:
        recorded = read_manifest(out, kind=SIGNALS_KIND).settings.get("config")
    except FolderError:
        return False
    wanted = json.loads(json.dumps(config))
    return isinstance(recorded, dict) and {**recorded, INDEX_PATH: ""} == {**wanted, INDEX_PATH: ""}


@contextmanager
def _work(out: Path, config: dict[str, JsonValue], *, force: bool) -> Iterator[Path]:
    """The work folder of signals with these settings, shared with other processes that measure the same."""
    if force and not was_begun(UNFINISHED_SIGNALS.folder_of(out), config, "signals", force=True):
        with work_folder(UNFINISHED_SIGNALS, out) as work:  # nobody else is in it
            UNFINISHED_SIGNALS.empty(work)
    with work_folder(UNFINISHED_SIGNALS, out, shared=True) as work:
        with _turn(work, out, config):
            if not was_begun(work, config, "signals", force=False):
                write_config(work, config)
        try:
            yield work
        except BaseException:
            with suppress(FileNotFoundError), try_file_lock(work / _TURN) as free:
                if free and not (work / _SAMPLED).exists():  # nobody else is sampling
                    UNFINISHED_SIGNALS.clear(work)
            raise


class _AlreadyMeasuredError(Exception):
    """While this process waited, others have ended the work."""


@contextmanager
def _turn(work: Path, out: Path, config: dict[str, JsonValue]) -> Iterator[None]:
    """Hold the lock of what only one process may do."""
    try:
        with file_lock(work / _TURN):
            yield
    except FileNotFoundError:
        if work.exists():
            raise
        if _is_of(out, config):
            raise _AlreadyMeasuredError from None
        raise WorkerError(f"another process began {out} and has failed; see its message, or run this again.") from None


def _sample(work: Path, examples: Sequence[Example]) -> None:
    """Keep the examples, a row group for each part; parts of anything sampled before do not count."""
    shutil.rmtree(work / _PARTS, ignore_errors=True)
    partial = work / f"{_SAMPLED}.partial"
    pq.write_table(as_table(examples), partial, row_group_size=_PART, compression="zstd")
    sync_one(partial)
    (work / _PARTS).mkdir()
    partial.replace(work / _SAMPLED)


class _Measurer:
    """Measures a part of the examples."""

    def __init__(
        self,
        passages: Passages,
        retriever: Retriever,
        model: LanguageModel,
        options: ExampleOptions,
        candidates: CandidateOptions,
    ) -> None:
        self.model = model
        self.options = options
        self._passages = passages
        self._retriever = retriever
        self._candidates = candidates
        self._documents = document_store_factory(passages, model.tokenizer, candidates)

    def __call__(self, examples: Sequence[Example], first: int) -> pa.Table:
        """The rows of consecutive examples, of which the first has the number `first`."""
        queries = queries_of(examples, self.model.tokenizer, self.options.query_tokens)
        k, exclude = self._candidates.candidates, self._candidates.exclude
        hits = find_candidates(examples, queries, self._retriever, self._passages, k, exclude=exclude)
        scored = score_candidates(examples, hits, self._documents(), self.model)
        columns: dict[str, list[object]] = {name: [] for name in CANDIDATE_SCHEMA.names}
        for row, log_probs in enumerate(scored):
            for hit, of_hit in zip([(None, None), *hits.of(row)], log_probs, strict=True):
                for name, value in zip(CANDIDATE_SCHEMA.names, (first + row, *hit, of_hit), strict=True):
                    columns[name].append(value)
        return pa.table(columns, CANDIDATE_SCHEMA)


def _measure_all(work: Path, measure: _Measurer) -> None:
    """Measure the parts that no other process measures, until all are done."""
    sampled = _open_sampled(work)
    parts, total = sampled.num_row_groups, sampled.metadata.num_rows
    with progress_bar("Measuring", total=total) as advance:
        counted: set[int] = set()
        while _is_open(work):
            for part in range(parts):
                if not _is_done(work, part) and _is_open(work):
                    _measure_if_free(work, part, sampled, measure)
                if part not in counted and _is_done(work, part) and _is_whole(_done(work, part)):
                    counted.add(part)
                    advance(sampled.metadata.row_group(part).num_rows)
            if len(counted) == parts:
                return
            time.sleep(_PAUSE)  # others are measuring what is left


def _measure_if_free(work: Path, part: int, sampled: pq.ParquetFile, measure: _Measurer) -> None:
    """Measure a part unless another process does."""
    done = _done(work, part)
    with try_file_lock(done.with_suffix(".lock")) as free:
        if not free or done.exists():
            return
        table = measure(from_table(sampled.read_row_group(part)), part * _PART)
        partial = done.with_suffix(".partial")
        pq.write_table(table, partial, compression="zstd")
        sync_one(partial)
        partial.replace(done)


def _finish(work: Path, out: Path, config: dict[str, JsonValue], measurer: _Measurer, *, force: bool) -> None:
    """Put the folder together, unless another process has done so."""
    with _turn(work, out, config):
        if not _is_open(work):
            return
        _write(work, out, config, measurer, force=force)
        (work / _FINISHED).touch()
        UNFINISHED_SIGNALS.clear(work)


def _write(work: Path, out: Path, config: dict[str, JsonValue], measurer: _Measurer, *, force: bool) -> None:
    sampled = _open_sampled(work)
    with new_folder(out, kind=SIGNALS_KIND, force=force) as folder:
        (folder / CANDIDATES).mkdir()
        with pq.ParquetWriter(folder / EXAMPLES, EXAMPLE_SCHEMA, compression="zstd") as writer:
            for part in range(sampled.num_row_groups):
                writer.write_table(_texts(sampled.read_row_group(part), part * _PART, measurer))
                link_file(_done(work, part), folder / CANDIDATES / f"{part:05}.parquet")
        counts = {"examples": sampled.metadata.num_rows}
        settings: dict[str, JsonValue] = {"config": config, "environment": environment()}
        write_manifest(folder, kind=SIGNALS_KIND, settings=settings, counts=counts)
        worth = asdict(signal_statistics(open_signals(folder)))
        (folder / "manifest.json").unlink()
        write_manifest(folder, kind=SIGNALS_KIND, settings={**settings, "worth": worth}, counts=counts)


def _texts(table: pa.Table, first: int, measurer: _Measurer) -> pa.Table:
    """Examples as they are published: with texts."""
    examples, tokenizer = from_table(table), measurer.model.tokenizer
    texts = pa.table(
        {
            "example": range(first, first + len(examples)),
            "query": queries_of(examples, tokenizer, measurer.options.query_tokens),
            "prefix": [tokenizer.decode(one.prefix) for one in examples],
            "continuation": [tokenizer.decode(one.continuation) for one in examples],
        }
    )
    for name in ("document_id", "begin", "prefix_tokens", "continuation_tokens", "runs"):
        texts = texts.append_column(name, table[name])
    return texts.select(EXAMPLE_SCHEMA.names).cast(EXAMPLE_SCHEMA)


def _open_sampled(work: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(work / _SAMPLED)
    except (OSError, pa.ArrowException) as error:
        raise DamagedFolderError(f"{work / _SAMPLED} is damaged; remove {work} and run this again.") from error


def _is_open(work: Path) -> bool:
    """Whether no process has put the folder together yet; whoever does clears the work folder."""
    return (work / _SAMPLED).exists() and not (work / _FINISHED).exists()


def _done(work: Path, part: int) -> Path:
    return work / _PARTS / f"{part:05}.parquet"


def _is_done(work: Path, part: int) -> bool:
    return _done(work, part).exists()


def _is_whole(file: Path) -> bool:
    """Whether a part can be read; it is removed if it cannot, so that it is measured again."""
    try:
        pq.read_table(file, schema=CANDIDATE_SCHEMA)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, pa.ArrowException) as error:
        _LOG.warning("%s is damaged (%s): its examples are scored again.", file, error)
        file.unlink(missing_ok=True)
        return False
    return True
