"""Compares runs of `ralm qa` over the same questions, question by question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ralm.answering import run
from ralm.answering.evaluation import METRICS, MetricColumns, metric_columns
from ralm.answering.metrics import statistic_of
from ralm.answering.multiple_choice import choice_columns
from ralm.answering.prompts import LETTERS
from ralm.errors import UsageError
from ralm.evaluation.intervals import Estimate, compare, estimate
from ralm.storage.manifest import kind_of, open_consistently
from ralm.validation import check_strings

Figures: TypeAlias = Mapping[str, Sequence[Estimate]]
"""The figure of every run, by metric."""
_QUESTION: Final = {
    run.ANSWERS_KIND: ["question_id", "question", "answers"],
    run.CHOICES_KIND: ["question_id", "question", "choices", "gold"],
}
"""For each kind of run the columns of its table that say what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersComparison:
    """Runs over the same questions. `measures` has, for each metric, the figure of every run; `differences` those of
    every run minus the first. `judged` counts the questions of a metric: those that all runs could be judged on."""

    runs: Sequence[Path]
    questions: int
    judged: Mapping[str, int]
    measures: Figures
    differences: Figures

    def as_json(self) -> dict[str, JsonValue]:
        """The comparison as JSON; the difference of the first run is null."""
        rows: list[Any] = []
        for place, path in enumerate(self.runs):
            measures, differences = (
                {name: estimates[place].as_json() for name, estimates in figures.items()}
                for figures in (self.measures, self.differences)
            )
            rows.append({"run": str(path), "measures": measures, "difference": differences if place else None})
        return {"questions": self.questions, "judged": dict(self.judged), "runs": rows}


def compare_answers(paths: Sequence[Path | str]) -> AnswersComparison:
    """Compare runs that `run_questions`, or `run_choices`, wrote over the same questions with the first of them.

    Of questions: the measures of answers that all runs have, the log-probability of the gold answer in nats a token; of
    choices: accuracy, and where all choices have probabilities the log-probability of the right one and the Brier
    score. Raises UsageError if the runs are of several kinds or have other questions, and the errors of reading a
    folder.
    """
    check_strings("paths", paths)
    folders = [Path(path) for path in paths]
    kinds = {kind_of(folder) for folder in folders}
    kind = next((kind for kind in _QUESTION if {kind.name} == kinds), None)
    if kind is None:
        raise UsageError("only runs of one kind can be compared: all of `ralm eval`, of `ralm qa` or of `ralm choice`.")
    tables = [open_consistently(folder, partial(run.read_table, folder, kind)) for folder in folders]
    for folder, table in zip(folders[1:], tables[1:], strict=True):
        if not table.select(_QUESTION[kind]).equals(tables[0].select(_QUESTION[kind])):
            raise UsageError(f"{folder} and {folders[0]} have other questions or answers: compare runs over the same.")
    columns = [_answer_columns(table) if kind is run.ANSWERS_KIND else _choice_columns(table) for table in tables]
    judged, measures, differences = compare_columns(columns)
    return AnswersComparison(
        runs=folders, questions=len(tables[0]), judged=judged, measures=measures, differences=differences
    )


def compare_columns(columns: Sequence[MetricColumns]) -> tuple[dict[str, int], Figures, Figures]:
    """Return, by metric, the number of questions that all runs could be judged on, the figure of every run, and its
    difference from the first."""
    judged: dict[str, int] = {}
    measures, differences = {}, {}
    for name in [name for name in columns[0] if all(name in own for own in columns)]:
        both_U = np.logical_and.reduce([own[name].counts_U > 0 for own in columns])
        if not both_U.any():
            continue
        judged[name] = int(both_U.sum())
        units, statistic = [own[name].select(both_U) for own in columns], statistic_of(name)
        measures[name] = [estimate(run, statistic) for run in units]
        differences[name] = [compare(run, units[0], statistic) for run in units]
    return judged, measures, differences


def _answer_columns(table: pa.Table) -> MetricColumns:
    return metric_columns({name: table[name].to_pylist() for name in METRICS}, table["gold_tokens"].to_pylist())


def _choice_columns(table: pa.Table) -> MetricColumns:
    rows = zip(*(table[name].to_pylist() for name in ("right", "probabilities", "gold")), strict=True)
    return choice_columns([(right, probabilities, LETTERS.index(gold)) for right, probabilities, gold in rows])
