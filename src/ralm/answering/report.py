"""Reads the folder of a run of questions as the data of a report: answers, and passages with the answer marked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.answering import metrics, run
from ralm.answering.quotes import quotes
from ralm.errors import DamagedFolderError
from ralm.evaluation import report
from ralm.runs import tables
from ralm.runs.run import PASSAGES, read_summary
from ralm.storage.manifest import open_consistently

_DECIMALS: Final = 4


def report_of_answers(path: Path | str, shown: int | None = None) -> dict[str, Any]:
    """Return the report of a folder that `ralm qa --out` wrote, with its first `shown` questions (None: all)."""
    path = Path(path)
    summary, answers, passages = open_consistently(path, lambda: _read(path))
    rows = {row["passage"]: row for row in passages.to_pylist()}
    shown_rows = answers.slice(0, shown).to_pylist()
    read = {number for row in shown_rows for number in row["passages"]}
    if missing := read - rows.keys():
        raise DamagedFolderError(
            f"{path} is damaged: passage {min(missing)} of a question is missing; {run.REMEDY}, or restore it from a "
            "copy."
        )
    return {
        "title": path.resolve().name,
        "settings": report.describe_settings(report.config_part(summary, "config")),
        "measures": {name: value for name, value in summary.items() if name != "config"},
        "total": answers.num_rows,
        "questions": [_question(row, rows) for row in shown_rows],
        "passages": [_passage(path, rows[number]) for number in sorted(read)],
    }


def _read(path: Path) -> tuple[dict[str, JsonValue], pa.Table, pa.Table]:
    answers = run.read_table(path, run.ANSWERS_KIND)
    with tables.damage_errors(path, run.REMEDY):
        passages = pq.read_table(path / PASSAGES)
    summary = read_summary(path, run.REMEDY)
    columns = {**tables.PASSAGE_COLUMNS, "metadata": pa.string()}
    return summary, answers, tables.select_columns(path, passages, columns, remedy=run.REMEDY)


def _passage(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in tables.PASSAGE_COLUMNS}
    return {**shown, "place": tables.passage_in(path, row).place}


def _question(row: Mapping[str, Any], passages: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a question with answers and passages, the characters `marked` that hold an answer, and those quoted."""
    is_shared = sum(share > 0 for share in row["shares"]) > 1
    return {
        "id": row["question_id"],
        "question": row["question"],
        "answers": row["answers"],
        **_judged(row, ""),
        "without_passages": None if row["without_answer"] is None else _judged(row, "without_"),
        "closed_book": None if row["closed_answer"] is None else _judged(row, "closed_"),
        "passages": [
            {
                "passage": number,
                "share": round(share, _DECIMALS) if is_shared else None,
                "quotes": [[*span] for _, span in quotes(row["answer"], passages[number]["text"], row["question"])],
                "marked": metrics.answer_spans(passages[number]["text"], row["answers"]),
            }
            for number, share in zip(row["passages"], row["shares"], strict=True)
        ],
        "answer_at": row["answer_at"],
        "cut": {name: row[f"cut_{name}"] for name in ("demonstrations", "documents", "special")},
    }


def _judged(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    values = {name: row[f"{prefix}{name}"] for name in run.ANSWER_COLUMNS}
    return {name: round(value, _DECIMALS) if isinstance(value, float) else value for name, value in values.items()}
