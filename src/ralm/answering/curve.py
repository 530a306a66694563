"""Evaluates questions by the number of passages in the prompt (In-Context RALM, Figure 8), and writes the folder.

curve.csv      a row per number of passages: the measures with their intervals
curve.png      the plot
summary.json   the rows, and the configuration
manifest.json  the configuration again, the environment, and a checksum of each file
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pydantic import JsonValue

from ralm.answering import answers, prompts, run, sources
from ralm.answering.evaluation import METRICS, AnswerParts, QuestionEvaluation, evaluate_questions
from ralm.answering.questions import Question
from ralm.errors import UsageError
from ralm.protocols import WritingModel
from ralm.reading import concatenation
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.sources import FromRetriever
from ralm.runs.run import check_plot
from ralm.storage import outputs

CURVE_KIND: Final = outputs.FolderKind("answers-curve")
CURVE_TABLE: Final = "curve.csv"
CURVE_PLOT: Final = "curve.png"


@dataclass(frozen=True, slots=True, eq=False)
class AnswerCurve:
    """The evaluations of the same questions, by number of passages."""

    evaluations: Mapping[int, QuestionEvaluation]

    def rows(self) -> list[dict[str, JsonValue]]:
        """A row per number of passages: the measures as fractions, each with the ends of its 95% interval; `has_answer`
        is the share of questions with an answer in one of the passages. The log-probability of gold answers is that of
        the `gold_scored` questions that could be scored with every number of passages."""
        scored_Q = np.logical_and.reduce([one.scored_Q for one in self.evaluations.values()])
        rows: list[dict[str, JsonValue]] = []
        for number, evaluation in self.evaluations.items():
            summary: dict[str, Any] = evaluation.summary(scored_Q)
            row = {"documents": number, "questions": summary["questions"]}
            for metric in METRICS:
                if metric == "agrees" and evaluation.judge is None:
                    continue
                low, high = summary.get(f"{metric}_interval", (None, None))
                row |= {metric: summary.get(metric), f"{metric}_low": low, f"{metric}_high": high}
            row["has_answer"] = summary["has_answer"][str(number)] if number else None
            counts = ("without_answers", "gold_scored", "cut", *(["judge_failures"] if evaluation.judge else []))
            rows.append(row | {name: summary[name] for name in counts})
        return rows


def several_in_context(number: int, order: concatenation.PassageOrder = "best-first") -> Parts:
    """The reader of Figure 8: that many passages in one prompt."""
    return IN_CONTEXT if number == 1 else Parts(reader=concatenation.Concatenation(documents=number, order=order))


def answer_curve(
    numbers: Sequence[int],
    questions: Sequence[Question],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    source: sources.QuestionSource | FromRetriever,
    *,
    parts_of: Callable[[int], Parts] = several_in_context,
    stores: answers.AnswerStores | None = None,
    **how: Unpack[AnswerParts],
) -> AnswerCurve:
    """Evaluate questions with each of these numbers of passages; 0 is the closed book.

    `parts_of` gives the parts that read so many passages. `how` are other arguments of `evaluate_questions`. Raises
    UsageError if a number is negative or a duplicate, and the errors of `evaluate_questions`.
    """
    check_numbers(numbers)
    evaluations = {
        number: evaluate_questions(
            questions,
            model,
            prompt,
            source=source if number else None,
            parts=parts_of(number) if number else IN_CONTEXT,
            stores=stores,
            **how,
        )
        for number in numbers
    }
    return AnswerCurve(evaluations)


def run_curve(
    out: Path | str,
    numbers: Sequence[int],
    questions: Sequence[Question],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    source: sources.QuestionSource | FromRetriever,
    *,
    parts_of: Callable[[int], Parts] = several_in_context,
    force: bool = False,
    **how: Unpack[AnswerParts],
) -> AnswerCurve:
    """Evaluate as `answer_curve` does, and write the folder `out` atomically, with the plot.

    Resumes as `run_questions` does. Raises the errors of `answer_curve`, FolderExistsError if `out` exists and `force`
    is not set, MissingExtraError without the extra `plots`, and UsageError if a run with other settings was begun
    there.
    """
    check_numbers(numbers)
    outputs.check_output(Path(out), kind=CURVE_KIND, force=force)
    check_plot()
    from ralm.runs.plot import draw_curve

    config = curve_config(numbers, questions, model, prompt, source, parts_of, **how)
    with run.answer_stores(out, config, force=force) as stores:
        curve = answer_curve(numbers, questions, model, prompt, source, parts_of=parts_of, stores=stores, **how)
        rows = curve.rows()
        with run.run_folder(out, CURVE_KIND, {"rows": [*rows]}, config, {"points": len(rows)}, force=force) as folder:
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows), folder / CURVE_TABLE)
            draw_curve(rows, folder / CURVE_PLOT)
    return curve


def curve_config(
    numbers: Sequence[int],
    questions: Sequence[Question],
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    source: sources.QuestionSource | FromRetriever,
    parts_of: Callable[[int], Parts] = several_in_context,
    **how: Unpack[AnswerParts],
) -> dict[str, JsonValue]:
    """Everything that determines a curve, by name; the reader is that of the largest number."""
    parts = parts_of(max(1, *numbers))
    config = run.questions_config(questions, model, prompt, source=source, parts=parts, **how)
    return {**config, "numbers": [*numbers]}


def check_numbers(numbers: Sequence[int]) -> None:
    """Raise UsageError unless these are different numbers of passages."""
    if not numbers or min(numbers) < 0 or len({*numbers}) < len(numbers):
        given = ",".join(map(str, numbers))
        raise UsageError(f"`numbers` needs different numbers of passages, from 0, such as 0,1,2,5, not {given!r}.")
