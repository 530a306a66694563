"""Writes a folder of signals: samples examples once, then measures them in parts.

`OUT.unfinished/` holds the examples (sampled.parquet) and the parts that are done, which a killed process finds again.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Retriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.runs import resume, run, tables
from ralm.storage.atomic import sync_one
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import check_output, new_folder
from ralm.terminal import path_text, progress_bar, track
from ralm.training import signals
from ralm.training.candidates import check_fits, find_candidates, score_candidates
from ralm.training.examples import (
    EXAMPLE_SCHEMA,
    Example,
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
    BM25. If this is killed, call it again with the same arguments to resume. Raises FolderExistsError if `out` exists
    and `force` is not set, UsageError if signals with other settings were begun there or the options do not fit the
    model, TextError if the text has no examples, and what `read_documents`, `open_index`, the retriever and the model
    raise.
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
    job = _Job(index, retriever, model, options, candidates)
    check_output(Path(out), kind=signals.SIGNALS_KIND, force=force)
    with resume.unfinished_run(Path(out), config, force=force) as work:
        if not (work / _SAMPLED).exists():
            documents = track(read_training_text(index, sources, fields, skip_bad=skip_bad), "Reading")
            _keep_examples(job, sample_examples(documents, model.tokenizer, options), work)
        sampled = _open_sampled(work)
        with progress_bar("Measuring", total=sampled.metadata.num_rows) as advance:
            for part in range(sampled.num_row_groups):
                if not _is_whole(_part(work, part)):
                    _write_table(_part(work, part), job.measure(sampled.read_row_group(part)))
                advance(sampled.metadata.row_group(part).num_rows)
        settings: dict[str, JsonValue] = {
            "config": {**config, signals.INDEX_PATH: path_text(index.path.resolve())},
            "environment": run.environment(),
        }
        _write(Path(out), settings, work, sampled.num_row_groups, force=force)
    return signals.open_signals(out)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """What samples examples, and measures their candidates."""

    index: Index
    retriever: Retriever
    model: LanguageModel
    options: ExampleOptions
    candidates: CandidateOptions

    def table(self, examples: Sequence[Example], first: int) -> pa.Table:
        """The table of examples, whose numbers begin with `first`."""
        return as_table(examples, first, self.model.tokenizer, self.options.query_tokens)

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


def _part(work: Path, number: int) -> Path:
    return work / _PARTS / f"{number:05}.parquet"


def _keep_examples(job: _Job, examples: Sequence[Example], work: Path) -> None:
    """Write the examples, a row group for each part; parts of anything sampled before do not count."""
    shutil.rmtree(work / _PARTS, ignore_errors=True)
    (work / _PARTS).mkdir()
    partial = work / f"{_SAMPLED}.partial"
    with pq.ParquetWriter(partial, EXAMPLE_SCHEMA, compression="zstd") as writer:
        for first in range(0, len(examples), _PART):
            writer.write_table(job.table(examples[first : first + _PART], first))
    sync_one(partial)
    partial.replace(work / _SAMPLED)


def _write_table(file: Path, table: pa.Table) -> None:
    """Write the table of a part, whole or not at all."""
    partial = file.with_suffix(".partial")
    pq.write_table(table, partial, compression="zstd")
    sync_one(partial)
    partial.replace(file)


def _write(out: Path, settings: dict[str, JsonValue], work: Path, parts: int, *, force: bool) -> None:
    with new_folder(out, kind=signals.SIGNALS_KIND, force=force) as folder:
        (folder / signals.CANDIDATES).mkdir()
        shutil.copyfile(work / _SAMPLED, folder / signals.EXAMPLES)
        for part in range(parts):
            shutil.copyfile(_part(work, part), folder / signals.CANDIDATES / _part(work, part).name)
        counts = {"examples": pq.read_metadata(folder / signals.EXAMPLES).num_rows}
        manifest = write_manifest(folder, kind=signals.SIGNALS_KIND, settings=settings, counts=counts)
        settings["worth"] = asdict(signal_statistics(signals.open_signals(folder)))
        write_manifest(folder, kind=signals.SIGNALS_KIND, settings=settings, counts=counts, files=manifest.files)


def _open_sampled(work: Path) -> pq.ParquetFile:
    with tables.damage_errors(work / _SAMPLED, f"remove {work} and run this again"):
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
