"""Evaluate the same questions with several values of one option; of passages, this is Figure 8 of In-Context RALM."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.answering import evaluation, run
from ralm.answering.compare import Figures, compare_columns
from ralm.protocols import WritingModel
from ralm.reading.parts import IN_CONTEXT
from ralm.reading.sources import share_retrievals
from ralm.runs.run import SWEEP_KIND, write_sweep
from ralm.storage.outputs import check_output

_PANELS: Final = {
    "share of the questions": {
        "exact_match": "exact match",
        "f1": "F1",
        "accuracy": "accuracy",
        "has_answer": "an answer in the passages",
    },
    "log-probability, nats": {"gold_log_prob": "right answer"},
}
"""What the plot shows: columns of the rows with their labels, by the label of the axis."""


@dataclass(frozen=True, eq=False)
class AnswerSweep:
    """The evaluations of the same questions, by the value of an option, and the configuration of each."""

    option: str
    evaluations: Mapping[str, evaluation.AnswerEvaluation]
    configs: Mapping[str, dict[str, JsonValue]]

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Return the summary of each value. Figures side by side are of the same questions: the log-probability of
        gold answers is that of the questions that could be scored with every value."""
        judged = [one for one in self.evaluations.values() if isinstance(one, evaluation.QuestionEvaluation)]
        if not judged:
            return {value: found.summary() for value, found in self.evaluations.items()}
        scored_Q = np.logical_and.reduce([one.scored_Q for one in judged])
        return {value: one.summary(scored_Q) for value, one in zip(self.evaluations, judged, strict=True)}

    @cached_property
    def differences(self) -> Figures:
        """Each measure of every value minus that of the first."""
        return compare_columns([one.columns for one in self.evaluations.values()])[2]

    def rows(self) -> list[dict[str, JsonValue]]:
        """Return a row per value: the figures of its summary, each measure with the ends of its 95% interval;
        `has_answer` is the share of questions with an answer in one of the passages that are read, `..._over_first` the
        difference from the first value."""
        rows: list[dict[str, JsonValue]] = []
        for value, summary in self.summaries().items():
            row: dict[str, JsonValue] = {self.option: value}
            for name, figure in summary.items():
                if isinstance(figure, int | float) and name != "seconds":
                    row[name] = figure
                if f"{name}_interval" in summary:
                    row[f"{name}_low"], row[f"{name}_high"] = summary[f"{name}_interval"] or (None, None)
            if "has_answer" in summary:
                row["has_answer"] = [*summary["has_answer"].values()][-1]
            if rows:
                for name, estimates in self.differences.items():
                    row |= estimates[len(rows)].columns(f"{name}_over_first")
            rows.append(row)
        return rows

    def summary(self) -> dict[str, JsonValue]:
        """Return the summaries with their configurations, and the differences from the first value as `over_first`."""
        points: list[JsonValue] = []
        for place, (value, summary) in enumerate(self.summaries().items()):
            over_first: dict[str, JsonValue] = {
                name: estimates[place].as_json() for name, estimates in (self.differences if place else {}).items()
            }
            points.append({self.option: value, **summary, "over_first": over_first, "config": self.configs[value]})
        return {"option": self.option, "points": points}


def sweep_answers(
    option: str,
    points: Mapping[str, Mapping[str, Any]],
    model: WritingModel,
    *,
    baseline: bool = False,
    out: Path | None = None,
    force: bool = False,
) -> AnswerSweep:
    """Evaluate the same questions with the arguments of `evaluate_answers` of every point, by the value of the option;
    points with one source share retrievals. With `out`, write a folder with all runs, and resume as `run_questions`."""
    configs = {value: run.questions_config(model=model, **point) for value, point in points.items()}
    settings: dict[str, JsonValue] = {"option": option, "points": [*configs.values()]}
    hits = [point.get("parts", IN_CONTEXT).hits for point in points.values()]
    shared, _ = share_retrievals([point.get("source") for point in points.values()], hits)
    if out is not None:
        check_output(out, kind=SWEEP_KIND, force=force)
    with nullcontext() if out is None else run.answer_store(out, settings, force=force) as store:
        evaluations = {}
        for (value, point), source in zip(points.items(), shared, strict=True):
            how = {**point, "source": source, "baseline": baseline, "store": store}
            evaluations[value] = evaluation.evaluate_answers(model=model, **how)
        swept = AnswerSweep(option, evaluations, configs)
        if out is not None:
            _write(out, swept, force=force)
    return swept


def _write(out: Path, swept: AnswerSweep, *, force: bool) -> None:
    rows = swept.rows()
    names = {name for row in rows for name in row}
    panels = {
        label: {column: name for column, name in columns.items() if column in names}
        for label, columns in _PANELS.items()
        if names.intersection(columns)
    }
    runs = {
        f"{swept.option}-{value}".replace("/", "_"): partial(
            run.write_answers, found=found, config=swept.configs[value], force=False
        )
        for value, found in swept.evaluations.items()
    }
    write_sweep(out, swept.summary(), rows, panels, runs=runs, force=force)
