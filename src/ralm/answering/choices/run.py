"""Multiple choice on disk: a folder with a row per question, its passages, and the summary.

choices.parquet   question_id, subject, category, question, choices, gold (its letter), chosen (a letter or null),
                  right, log_probs and probabilities (of each choice), answer (if it was generated),
                  cut_demonstrations, cut_documents, passages (numbers, best first), shares (of the probability of what
                  was chosen, by passage); with a baseline, what was chosen without passages in closed_chosen, ...
passages.parquet  passage, document_id, title, text, metadata (as JSON) of every passage that was read
summary.json      the measures with their intervals, and the configuration
manifest.json     the configuration again, the environment, and a checksum of each file
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pydantic import JsonValue

from ralm.answering.choices.choosing import Choice
from ralm.answering.choices.evaluation import ChoiceEvaluation, ChosenQuestion, evaluate_choices
from ralm.answering.choices.questions import ChoiceQuestion
from ralm.answering.choices.subjects import category_of
from ralm.answering.options import ChoiceOptions
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.run import (
    PASSAGES,
    asking_config,
    brought,
    identified,
    kept_answers,
    passage_table,
    shares_of,
    write_tables,
)
from ralm.answering.sources import QuestionSource
from ralm.protocols import Reader, WritingModel
from ralm.storage.outputs import check_output

KIND: Final = "choices"
FORMAT_VERSION: Final = 1
CHOICES: Final = "choices.parquet"

_CHOSEN: Final = {
    "chosen": pa.string(),
    "right": pa.bool_(),
    "log_probs": pa.list_(pa.float64()),
    "probabilities": pa.list_(pa.float64()),
    "answer": pa.string(),
    "certified": pa.bool_(),
    "cut_demonstrations": pa.int64(),
    "cut_documents": pa.int64(),
}


def run_choices(
    out: Path | str,
    questions: Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    source: QuestionSource | None = None,
    reader: Reader | None = None,
    demonstrations: Sequence[ChoiceQuestion] = (),
    options: ChoiceOptions | None = None,
    baseline: bool = False,
    force: bool = False,
) -> ChoiceEvaluation:
    """Evaluate multiple choice as `evaluate_choices` does, and write the folder `out` atomically.

    If it is killed, call it again with the same arguments to resume. Raises what `evaluate_choices` raises,
    FolderExistsError if `out` exists and `force` is not set, and UsageError if a run with other settings was begun
    there.
    """
    check_output(Path(out), kind=KIND, force=force)
    config = choices_config(questions, model, prompt, source, reader, demonstrations, options)
    with kept_answers(out, config, force=force) as kept:
        evaluation = evaluate_choices(
            questions,
            model,
            prompt,
            source=source,
            reader=reader,
            demonstrations=demonstrations,
            options=options,
            baseline=baseline,
            kept=kept,
        )
        tables = {
            CHOICES: choice_table(evaluation.rows),
            PASSAGES: passage_table(passage for row in evaluation.rows for passage in row.passages),
        }
        write_tables(out, tables, evaluation.summary(), config, kind=KIND, version=FORMAT_VERSION, force=force)
    return evaluation


def choices_config(
    questions: Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: QuestionPrompt,
    source: QuestionSource | None,
    reader: Reader | None,
    demonstrations: Sequence[ChoiceQuestion],
    options: ChoiceOptions | None,
) -> dict[str, JsonValue]:
    """Everything that determines the figures, by name: equal configurations give equal figures."""
    return {
        "questions": _identified(questions, source),
        "demonstrations": _identified(demonstrations, source),
        **asking_config(model, prompt, source, reader),
        "options": asdict(options or ChoiceOptions()),
    }


def choice_table(rows: Sequence[ChosenQuestion]) -> pa.Table:
    """A row per question, in order."""
    questions = [row.question for row in rows]
    return pa.table(
        {
            "question_id": pa.array([one.id for one in questions], pa.string()),
            "subject": pa.array([one.subject or None for one in questions], pa.string()),
            "category": pa.array([category_of(one.subject) for one in questions], pa.string()),
            "question": pa.array([one.text for one in questions], pa.string()),
            "choices": pa.array([list(one.choices) for one in questions], pa.list_(pa.string())),
            "gold": pa.array([one.letters[one.gold] for one in questions], pa.string()),
            **_chosen_columns(rows, [row.choice for row in rows], ""),
            "passages": pa.array([[one.number for one in row.passages] for row in rows], pa.list_(pa.int64())),
            "shares": pa.array([shares_of(row.passages, row.choice.shares) for row in rows], pa.list_(pa.float64())),
            **_chosen_columns(rows, [row.closed for row in rows], "closed_"),
        }
    )


def _chosen_columns(
    rows: Sequence[ChosenQuestion], choices: Sequence[Choice | None], prefix: str
) -> dict[str, pa.Array]:
    values = [None if one is None else _values(row, one) for row, one in zip(rows, choices, strict=True)]
    return {f"{prefix}{name}": pa.array([one and one[name] for one in values], kind) for name, kind in _CHOSEN.items()}


def _values(row: ChosenQuestion, choice: Choice) -> dict[str, Any]:
    """What a row says of a choice, by column."""
    return {
        "chosen": None if choice.chosen is None else row.question.letters[choice.chosen],
        "right": choice.right,
        "log_probs": None if choice.log_probs_C is None else choice.log_probs_C.tolist(),
        "probabilities": None if choice.probabilities_C is None else choice.probabilities_C.tolist(),
        "answer": choice.answer,
        "certified": choice.certified,
        "cut_demonstrations": choice.cut.demonstrations,
        "cut_documents": choice.cut.documents,
    }


def _identified(questions: Sequence[ChoiceQuestion], source: QuestionSource | None) -> dict[str, JsonValue]:
    return identified(
        [[one.id, one.text, [*one.choices], one.gold, one.subject, *brought(one.passages, source)] for one in questions]
    )
