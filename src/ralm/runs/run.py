"""Reads and writes the folders of runs, and checks any folder of ralm.

A run:

tokens.parquet   document, position, token, text, log_prob, baseline_log_prob, gain, passage, document_id, title, and
                 two lists: the passages it was read with, and their posterior weights
passages.parquet passage, document_id, title, text, metadata (as JSON), gain, tokens, helped, hurt of every passage that
                 was read
units.parquet    the measures of each document or stretch (`units.py`)
summary.json     the measures and the configuration; with a baseline, its measures and the gain over it
manifest.json    the configuration again, the environment, and a checksum of each file
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.environment import environment
from ralm.errors import DamagedFolderError, UsageError
from ralm.evaluation import report
from ralm.evaluation.perplexity import Evaluation, ReadingSettings
from ralm.protocols import LanguageModel
from ralm.reading import provenance, sources
from ralm.retrieval.index import INDEX_KIND, check_index
from ralm.runs.tables import build_passage_table, build_token_table, build_traced_text, damage_errors
from ralm.runs.units import write_units
from ralm.storage import manifest, outputs
from ralm.terminal import path_text, to_json

RUN_KIND: Final = outputs.FolderKind("run")
RUN_TOKENS: Final = "tokens.parquet"
PASSAGES: Final = "passages.parquet"
SUMMARY: Final = "summary.json"


def write_run(out: Path | str, evaluation: Evaluation, config: dict[str, JsonValue], *, force: bool) -> None:
    """Write a run folder atomically; FolderExistsError if `out` exists and `force` is not set."""
    table = build_token_table(evaluation)
    with outputs.new_folder(Path(out), kind=RUN_KIND, force=force) as folder:
        pq.write_table(table, folder / RUN_TOKENS, compression="zstd")
        pq.write_table(build_passage_table(evaluation), folder / PASSAGES, compression="zstd")
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
    settings = {**settings, "environment": environment()}
    manifest.write_manifest(folder, kind=kind, settings=settings, counts=counts)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run from its folder: its summary, and its text with the passages of each token."""

    path: Path
    summary: dict[str, JsonValue]
    text: provenance.TracedText


def open_run(path: Path | str) -> Run:
    """Read a run folder for a report; UsageError if the run has no baseline."""
    path = Path(path)

    def read() -> Run:
        manifest.read_manifest(path, kind=RUN_KIND)
        with damage_errors(path):
            tokens, passages = (pq.read_table(path / name) for name in (RUN_TOKENS, PASSAGES))
        return Run(path=path, summary=read_summary(path), text=build_traced_text(path, tokens, passages))

    return manifest.open_consistently(path, read)


def read_summary(folder: Path, remedy: str = "score the text again") -> dict[str, JsonValue]:
    """Read the measures and the configuration of a run."""
    with damage_errors(folder, remedy):
        summary = json.loads((folder / SUMMARY).read_bytes())
    if not isinstance(summary, dict):
        raise DamagedFolderError(f"{folder} is damaged: its {SUMMARY} is not a summary; {remedy}.")
    return summary


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
    return report.Report(
        title=Path(str(report.config_part(config, "text").get("path") or run.path)).name,
        settings=report.describe_settings(config),
        perplexity=report.to_float(run.summary.get("token_perplexity")),
        baseline_perplexity=report.to_float(report.config_part(run.summary, "baseline").get("token_perplexity")),
        text=run.text,
        shown_tokens=min(tokens, len(run.text)),
    )


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
