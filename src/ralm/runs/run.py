"""Reads, writes and compares the folders of runs, and checks any folder of ralm.

A run:

tokens.parquet   document, position, token, text, log_prob, baseline_log_prob, gain, passage, document_id, title, and
                 two lists: the passages it was read with, and their posterior weights
passages.parquet passage, document_id, title, text, metadata (as JSON), gain, tokens, helped, hurt of every passage that
                 was read
units.parquet    measure, statistic, sum and count of every document or stretch, in their order; for a measure that is a
                 change also the sum and count that it is a change from. Its metadata say what the units are.
summary.json     the measures and the configuration; with a baseline, its measures and the gain over it
manifest.json    the configuration again, the environment, and a checksum of each file
"""

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.corpus.documents import metadata_from_json, metadata_to_json
from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.evaluation import report
from ralm.evaluation.intervals import Column, Comparison, Statistic, Units, UnitTable
from ralm.evaluation.perplexity import Evaluation, ReadingSettings
from ralm.protocols import LanguageModel
from ralm.reading import sources
from ralm.reading.provenance import TracedText, contributions, gains, used_passages
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Passages, Provenance
from ralm.retrieval.index import INDEX_KIND, check_index
from ralm.storage import manifest, outputs
from ralm.terminal import path_text, to_json
from ralm.validation import check_strings

RUN_KIND: Final = outputs.FolderKind("run")
RUN_TOKENS: Final = "tokens.parquet"
PASSAGES: Final = "passages.parquet"
SUMMARY: Final = "summary.json"
TEXT_BEFORE: Final = b"text_before"
_TOKEN_COLUMNS: Final = {
    "text": pa.string(),
    **dict.fromkeys(("log_prob", "baseline_log_prob"), pa.float32()),
    "passages": pa.list_(pa.int64()),
    "posteriors": pa.list_(pa.float32()),
}
_PASSAGE_COLUMNS: Final = {
    "passage": pa.int64(),
    **dict.fromkeys(("document_id", "title", "text", "metadata"), pa.string()),
}
_CONTRIBUTION_COLUMNS: Final = {"gain": pa.float64(), "tokens": pa.int64(), "helped": pa.int64(), "hurt": pa.int64()}
UNITS: Final = "units.parquet"
_UNIT_COLUMNS: Final = {
    "measure": pa.string(),
    "statistic": pa.string(),
    **dict.fromkeys(("sum", "count", "base_sum", "base_count"), pa.float64()),
}
_KINDS: Final = ("run", "answers", "choices")
_NOUN, _IDENTITY = b"noun", b"identity"
_COMPARED_REMEDY: Final = "make the run again"


def write_run(out: Path | str, evaluation: Evaluation, config: dict[str, JsonValue], *, force: bool) -> None:
    """Write a run folder atomically; FolderExistsError if `out` exists and `force` is not set."""
    table = _token_table(evaluation)
    with outputs.new_folder(Path(out), kind=RUN_KIND, force=force) as folder:
        pq.write_table(table, folder / RUN_TOKENS, compression="zstd")
        pq.write_table(_passage_table(evaluation), folder / PASSAGES, compression="zstd")
        write_units(folder, evaluation.units)
        summary = {**evaluation.summary(), "config": config}
        write_summary(folder, RUN_KIND, summary, {"config": config}, {"targets": table.num_rows})


def write_summary(
    folder: Path,
    kind: outputs.FolderKind,
    summary: dict[str, JsonValue],
    settings: dict[str, JsonValue],
    counts: dict[str, int],
) -> None:
    """Write the summary of a folder of results, and its manifest with the versions of packages."""
    (folder / SUMMARY).write_text(to_json(summary, indent=2) + "\n", encoding="utf-8")
    settings = {**settings, "environment": manifest.environment()}
    manifest.write_manifest(folder, kind=kind, settings=settings, counts=counts)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run from its folder: its summary, and its text with the passages of each token."""

    path: Path
    summary: dict[str, JsonValue]
    text: TracedText


def open_run(path: Path | str) -> Run:
    """Read a run folder for a report; UsageError if the run has no baseline."""
    path = Path(path)

    def read() -> Run:
        manifest.read_manifest(path, kind=RUN_KIND)
        with damage_errors(path):
            tokens = _read_table(path / RUN_TOKENS, _TOKEN_COLUMNS, nullable=("baseline_log_prob",))
            passages = _read_table(path / PASSAGES, _PASSAGE_COLUMNS)
            summary = dict(json.loads((path / SUMMARY).read_bytes()))
            text = None if tokens["baseline_log_prob"].null_count else _traced_text(tokens, passages)
        if text is None:
            raise UsageError(
                f"{path} was scored with passages only: score the text again with a baseline (`ralm eval --baseline`)."
            )
        return Run(path=path, summary=summary, text=text)

    return manifest.open_consistently(path, read)


def evaluation_config(
    path: Path | str | None,
    documents: Sequence[str],
    model: LanguageModel,
    point: ReadingSettings,
    limit_tokens: int | None,
) -> dict[str, JsonValue]:
    """Return all settings that the figures of a run depend on: equal configurations give equal figures."""
    content = documents[0] if len(documents) == 1 else to_json([*documents])
    return {
        "text": {
            "path": None if path is None else path_text(path),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "documents": len(documents),
            "limit_tokens": limit_tokens,
        },
        **sources.config_of_reading(model, point.source, point.parts),
        "plan": asdict(point.plan),
    }


def build_report(run: Run, tokens: int) -> report.Report:
    """Return the report of a run, which shows the first `tokens` tokens of its text."""
    config = report.config_part(run.summary, "config")
    title = Path(str(report.config_part(config, "text").get("path") or run.path)).name
    with_and_without = run.summary, report.config_part(run.summary, "baseline")
    perplexity, baseline = (report.to_float(measures.get("token_perplexity")) for measures in with_and_without)
    return report.Report(
        text=run.text, title=title, config=config, perplexities=(perplexity, baseline), shown_tokens=tokens
    )


def _token_table(evaluation: Evaluation) -> pa.Table:
    """Return the table with a row per target token."""
    scored, baseline = evaluation.reading.scored, evaluation.baseline
    numbers, inverse_T = np.unique(scored.passages_T, return_inverse=True)
    sources = [None if number == NO_PASSAGE else evaluation.passages[int(number)] for number in numbers]
    found_TK = scored.provenance.passages_TK != NO_PASSAGE
    offsets = pa.array(np.concatenate([[0], found_TK.sum(axis=1).cumsum()]), pa.int32())
    before, texts = evaluation.prepared.token_texts(scored.positions_T)
    baseline_log_prob = gain = pa.nulls(len(scored), pa.float32())
    if baseline is not None:
        baseline_log_prob = pa.array(baseline.scored.log_probs_T)
        gain = pa.array(gains(scored.log_probs_T, baseline.scored.log_probs_T), pa.float32())
    table = pa.table(
        {
            "document": evaluation.prepared.document_T,
            "position": scored.positions_T,
            "token": scored.tokens_T,
            "text": pa.array(texts, pa.string()),
            "log_prob": scored.log_probs_T,
            "baseline_log_prob": baseline_log_prob,
            "gain": gain,
            "passage": pa.array(scored.passages_T, mask=scored.passages_T == NO_PASSAGE),
            "document_id": pa.array([s and s.document_id for s in sources], pa.string()).take(pa.array(inverse_T)),
            "title": pa.array([s and s.title for s in sources], pa.string()).take(pa.array(inverse_T)),
            "passages": pa.ListArray.from_arrays(offsets, scored.provenance.passages_TK[found_TK]),
            "posteriors": pa.ListArray.from_arrays(offsets, scored.provenance.posteriors_TK[found_TK]),
        }
    )
    return table.replace_schema_metadata({TEXT_BEFORE: before.encode()})


def _passage_table(evaluation: Evaluation) -> pa.Table:
    """Return the table with a row per passage that was read, the largest contribution first, then those without."""
    scored, baseline = evaluation.reading.scored, evaluation.baseline
    provenance = scored.provenance
    used = used_passages(provenance, evaluation.passages)
    rows = []
    if baseline is not None:
        rows = contributions(provenance, gains(scored.log_probs_T, baseline.scored.log_probs_T))
    rest = [used[number] for number in sorted({*used} - {row.passage for row in rows})]
    contributed = {
        name: pa.array([getattr(row, name) for row in rows] + [None] * len(rest), of)
        for name, of in _CONTRIBUTION_COLUMNS.items()
    }
    return pa.table({**passage_columns([*(used[row.passage] for row in rows), *rest]), **contributed})


def _traced_text(tokens: pa.Table, passages: pa.Table) -> TracedText:
    """Return the text of a run from its tables; ValueError, LookupError or TypeError if they do not fit together."""
    by_number = {
        row["passage"]: Passage(
            row["passage"], row["document_id"], row["title"], row["text"], metadata=metadata_from_json(row["metadata"])
        )
        for row in passages.to_pylist()
    }
    text = TracedText(
        before=tokens.schema.metadata[TEXT_BEFORE].decode(),
        texts=tokens["text"].to_pylist(),
        log_probs_T=tokens["log_prob"].to_numpy(),
        baseline_T=tokens["baseline_log_prob"].to_numpy(),
        provenance=_provenance(tokens),
        passages=by_number,
    )
    if not {NO_PASSAGE, *by_number}.issuperset(np.unique(text.provenance.passages_TK).tolist()):
        raise LookupError("its tokens were read with passages that are missing")
    return text


def passage_columns(passages: Passages) -> dict[str, pa.Array]:
    """Return the columns of a table of passages, by name."""
    rows = [
        (each.number, each.document_id, each.title, each.text, metadata_to_json(each.metadata)) for each in passages
    ]
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(_PASSAGE_COLUMNS)
    return {
        name: pa.array(values, kind) for (name, kind), values in zip(_PASSAGE_COLUMNS.items(), columns, strict=True)
    }


def _read_table(path: Path, columns: Mapping[str, pa.DataType], nullable: Container[str] = ()) -> pa.Table:
    """Read columns of these types, of which only `nullable` ones may lack values; an error if the table has others."""
    table = pq.read_table(path)
    kinds = [pa.field(name, kind, nullable=name in nullable) for name, kind in columns.items()]
    return table.select([*columns]).cast(pa.schema(kinds, table.schema.metadata))


@contextmanager
def damage_errors(path: Path, remedy: str = "score the text again") -> Iterator[None]:
    """Turn errors of reading a damaged file into a DamagedFolderError with a remedy."""
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RecursionError, pa.ArrowException) as error:
        how = str(error).strip().partition("\n")[0]
        raise DamagedFolderError(f"{path} is damaged: {how}; {remedy}, or restore it from a copy.") from error


def _provenance(tokens: pa.Table) -> Provenance:
    """Return the provenance from its columns; a token without a passage has all its weight in the first column."""
    passages, posteriors = (tokens[name].combine_chunks() for name in ("passages", "posteriors"))
    counts_T = np.diff(passages.offsets.to_numpy())
    if not np.array_equal(counts_T, np.diff(posteriors.offsets.to_numpy())):
        raise ValueError("its tokens have passages and posterior weights that do not match")
    found_TK = np.arange(max(1, counts_T.max(initial=0))) < counts_T[:, None]
    passages_TK = np.full(found_TK.shape, NO_PASSAGE, dtype=np.int64)
    posteriors_TK = np.zeros(found_TK.shape, dtype=np.float32)
    passages_TK[found_TK], posteriors_TK[found_TK] = passages.flatten().to_numpy(), posteriors.flatten().to_numpy()
    posteriors_TK[counts_T == 0, 0] = 1
    return Provenance(passages_TK=passages_TK, posteriors_TK=posteriors_TK)


def write_units(folder: Path, units: UnitTable) -> None:
    """Write the table of units into the folder of a run."""
    tables = [_unit_rows(name, column) for name, column in units.columns.items()]
    schema = pa.schema(_UNIT_COLUMNS, {_NOUN: units.noun.encode(), _IDENTITY: units.identity.encode()})
    whole = pa.concat_tables(tables) if tables else pa.schema(_UNIT_COLUMNS).empty_table()
    pq.write_table(whole.cast(schema), folder / UNITS, compression="zstd")


def _unit_rows(name: str, column: Column) -> pa.Table:
    count = len(column.units.counts_U)
    base: Any = [pa.nulls(count, pa.float64())] * 2
    if column.base is not None:
        base = [column.base.sums_U, column.base.counts_U.astype(np.float64)]
    texts = [pa.repeat(text, count) for text in (name, column.statistic)]
    units = [column.units.sums_U, column.units.counts_U.astype(np.float64)]
    return pa.table([*texts, *units, *base], schema=pa.schema(_UNIT_COLUMNS))


def read_units(folder: Path) -> UnitTable:
    """Read the table of units of a run; FolderError or DamagedFolderError if the folder holds none."""
    kind = manifest.kind_of(folder)
    if kind not in _KINDS or UNITS not in manifest.read_manifest(folder, kind=outputs.FolderKind(kind)).files:
        raise FolderError(
            f"{folder} is no run that can be compared: give folders of `ralm eval` or `ralm qa`, of a sweep those "
            f"inside it; if it is one of an earlier version, {_COMPARED_REMEDY}."
        )
    with damage_errors(folder, _COMPARED_REMEDY):
        table = _read_table(folder / UNITS, _UNIT_COLUMNS, nullable=("base_sum", "base_count"))
        noun, identity = (table.schema.metadata[key].decode() for key in (_NOUN, _IDENTITY))
        columns = {}
        for name in table["measure"].unique().to_pylist():
            rows = table.filter(pc.equal(table["measure"], name))
            [statistic] = rows["statistic"].unique().to_pylist()
            if statistic not in get_args(Statistic):
                raise ValueError(f"{UNITS} has an unknown statistic")
            numbers: list[DoubleArray] = [rows[name].to_numpy() for name in ("sum", "count", "base_sum", "base_count")]
            base = None if rows["base_sum"].null_count else Units(*numbers[2:])
            columns[name] = Column(Units(*numbers[:2]), statistic, base)
    return UnitTable(noun, identity, columns)


def compare_runs(paths: Sequence[Path | str]) -> Comparison:
    """Compare runs over the same text or the same questions with the first of them, unit by unit.

    Units are the documents of a text, its stretches of 512 targets if it is one document, or questions.

    Raises:
        UsageError: The runs have other targets or questions.
        FolderError: A folder is no run; DamagedFolderError if it is damaged.
    """
    check_strings("paths", paths)
    folders = [Path(path) for path in paths]
    tables = [manifest.open_consistently(folder, partial(read_units, folder)) for folder in folders]
    for folder, table in zip(folders, tables, strict=True):
        if table.noun != tables[0].noun or table.identity != tables[0].identity:
            raise UsageError(
                f"{folder} and {folders[0]} are runs over different targets or questions: compare runs over the same "
                "text, with the same tokenizer and the same limit of tokens, or over the same questions and answers."
            )
    return Comparison([str(folder) for folder in folders], tables)


def verify_folder(folder: Path | str) -> tuple[str, Sequence[str]]:
    """Return the kind of a folder of ralm, and its damage: check every byte, and an index or run as a whole."""
    folder = Path(folder)
    kind = manifest.kind_of(folder)
    damaged = check_index(folder) if kind == INDEX_KIND.name else manifest.check_every_byte(folder)
    if kind == RUN_KIND.name and not damaged:
        try:
            open_run(folder)
        except DamagedFolderError as error:
            damaged = [str(error)]
        except UsageError:
            pass  # a run without a baseline has no report, but is not damaged
    return kind, damaged
