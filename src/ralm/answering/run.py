"""Writes the results of question answering and of multiple choice as folders.

answers.parquet   question_id, question, answers, answer, exact_match, token_match, f1, log_prob, gold_log_prob,
                  gold_tokens, passages (numbers, best first), shares (of the answer's probability, by passage),
                  answer_at, cut_demonstrations, cut_documents; with a baseline, the same of the answer without passages
                  in closed_answer, closed_exact_match, ...
choices.parquet   question_id, subject, category, question, choices, gold (its letter), chosen (a letter or null),
                  right, log_probs and probabilities (of each choice), answer (if it was generated),
                  cut_demonstrations, cut_documents, passages (numbers, best first), shares (of the probability of the
                  chosen one, by passage); with a baseline, the choice without passages in closed_chosen, ...
passages.parquet  passage, document_id, title, text, metadata (as JSON) of every passage that was read
summary.json      the measures with their intervals, and the configuration
manifest.json     the configuration again, the environment, and a checksum of each file
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.answering.answers import KeptAnswers
from ralm.answering.evaluation import (
    AnsweredQuestion,
    ChoiceEvaluation,
    ChosenQuestion,
    Judged,
    QuestionEvaluation,
    evaluate_choices,
    evaluate_questions,
)
from ralm.answering.multiple_choice import Choice, category_of
from ralm.answering.options import AnswerOptions, AnswerSemantics, ChoiceOptions
from ralm.answering.prompts import QuestionPrompt, prompt_config
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import GivenPassages, QuestionSource
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.records import Passage
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.runs.resume import unfinished_run, unfinished_store
from ralm.runs.run import PASSAGES, SUMMARY, environment, to_json
from ralm.runs.tables import passage_columns
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.validation import config_of

ANSWERS_KIND: Final = FolderKind("answers")
ANSWERS_TABLE: Final = "answers.parquet"

ANSWER_COLUMNS: Final = {
    "answer": pa.string(),
    "exact_match": pa.bool_(),
    "token_match": pa.bool_(),
    "f1": pa.float64(),
    "log_prob": pa.float64(),
    "gold_log_prob": pa.float64(),
    "gold_tokens": pa.int64(),
}
"""The columns of an answer, with and without passages."""


def run_questions(
    out: Path | str,
    questions: Sequence[Question],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    source: QuestionSource | None = None,
    reader: Reader | None = None,
    demonstrations: Sequence[Question] = (),
    options: AnswerOptions | None = None,
    semantics: AnswerSemantics = "paper",
    baseline: bool = False,
    force: bool = False,
) -> QuestionEvaluation:
    """Evaluate questions as `evaluate_questions` does, and write the folder `out` atomically.

    If it is killed, call it again with the same arguments to resume. Raises what `evaluate_questions` raises,
    FolderExistsError if `out` exists and `force` is not set, and UsageError if a run with other settings was begun
    there.
    """
    check_output(Path(out), kind=ANSWERS_KIND, force=force)
    config = questions_config(questions, model, prompt, source, reader, demonstrations, options, semantics)
    with kept_answers(out, config, force=force) as kept:
        evaluation = evaluate_questions(
            questions,
            model,
            prompt,
            source=source,
            reader=reader,
            demonstrations=demonstrations,
            options=options,
            semantics=semantics,
            baseline=baseline,
            kept=kept,
        )
        write_answers(out, evaluation, config, force=force)
    return evaluation


@contextmanager
def kept_answers(out: Path | str, config: dict[str, JsonValue], *, force: bool) -> Iterator[KeptAnswers]:
    """What keeps the scores and answers of a run beside its folder `out`, until the block succeeds.

    Raises what `unfinished_run` raises.
    """
    with (
        unfinished_run(Path(out), config, force=force) as folder,
        unfinished_store(folder, "model-0") as scores,
        unfinished_store(folder, "answers") as answers,
    ):
        yield KeptAnswers(scores, answers)


def questions_config(
    questions: Sequence[Question],
    model: WritingModel,
    prompt: QuestionPrompt,
    source: QuestionSource | None = None,
    reader: Reader | None = None,
    demonstrations: Sequence[Question] = (),
    options: AnswerOptions | None = None,
    semantics: AnswerSemantics = "paper",
) -> dict[str, JsonValue]:
    """Everything that determines the figures, by name: equal configurations give equal figures."""
    decides = asdict(options or AnswerOptions())
    del decides["top_logprobs"]
    return {
        "questions": _identified(questions, source),
        "demonstrations": _identified(demonstrations, source),
        **asking_config(model, prompt, source, reader),
        "options": {**decides, "stop": list(decides["stop"]), "semantics": semantics},
    }


def asking_config(
    model: WritingModel, prompt: QuestionPrompt, source: QuestionSource | None, reader: Reader | None
) -> dict[str, JsonValue]:
    """What is asked, with which passages and in which prompt, by name."""
    return {
        "model": config_of(model, "language model"),
        "passages": None if source is None else source.config,
        "reader": None if source is None else config_of(reader or InContext(), "reader"),
        "prompt": prompt_config(prompt, model.tokenizer),
    }


def write_answers(
    out: Path | str, evaluation: QuestionEvaluation, config: dict[str, JsonValue], *, force: bool
) -> None:
    """Write the folder atomically; FolderExistsError if `out` exists and `force` is not set."""
    tables = {
        ANSWERS_TABLE: answer_table(evaluation.rows),
        PASSAGES: passage_table(passage for row in evaluation.rows for passage in row.passages),
    }
    write_tables(out, tables, evaluation.summary(), config, kind=ANSWERS_KIND, force=force)


def write_tables(
    out: Path | str,
    tables: Mapping[str, pa.Table],
    summary: dict[str, JsonValue],
    config: dict[str, JsonValue],
    *,
    kind: FolderKind,
    force: bool,
) -> None:
    """Write tables by the names of their files, a summary and the manifest, atomically; the first table has a row per
    question.

    Raises FolderExistsError if `out` exists and `force` is not set.
    """
    with new_folder(Path(out), kind=kind, force=force) as folder:
        for name, table in tables.items():
            pq.write_table(table, folder / name, compression="zstd")
        (folder / SUMMARY).write_text(to_json({**summary, "config": config}, indent=2) + "\n", encoding="utf-8")
        write_manifest(
            folder,
            kind=kind,
            settings={"config": config, "environment": environment()},
            counts={"questions": next(iter(tables.values())).num_rows},
        )


def answer_table(rows: Sequence[AnsweredQuestion]) -> pa.Table:
    """A row per question; columns of a question that could not be judged are null."""
    columns: dict[str, pa.Array] = {
        "question_id": pa.array([row.question.id for row in rows], pa.string()),
        "question": pa.array([row.question.text for row in rows], pa.string()),
        "answers": pa.array([list(row.question.answers) for row in rows], pa.list_(pa.string())),
        **_judged_columns([row.judged for row in rows], ""),
        "passages": pa.array([[one.number for one in row.passages] for row in rows], pa.list_(pa.int64())),
        "shares": pa.array([shares_of(row.passages, row.judged.answer.shares) for row in rows], pa.list_(pa.float64())),
        "answer_at": pa.array([row.answer_at for row in rows], pa.int64()),
        "cut_demonstrations": pa.array([row.cut.demonstrations for row in rows], pa.int64()),
        "cut_documents": pa.array([row.cut.documents for row in rows], pa.int64()),
        **_judged_columns([row.closed for row in rows], "closed_"),
    }
    return pa.table(columns)


def _judged_columns(judged: Sequence[Judged | None], prefix: str) -> dict[str, pa.Array]:
    def value(one: Judged | None, name: str) -> object:
        if one is None:
            return None
        match name:
            case "answer":
                return one.answer.text
            case "log_prob":
                return one.answer.log_prob
            case _:
                return getattr(one, name)

    return {
        f"{prefix}{name}": pa.array([value(one, name) for one in judged], kind) for name, kind in ANSWER_COLUMNS.items()
    }


def shares_of(passages: Sequence[Passage], shares: Mapping[int, float]) -> list[float]:
    """The share of each of these passages, by its number; of one that a file lists twice, at its first place."""
    left = dict(shares)
    return [left.pop(one.number, 0.0) for one in passages]


def passage_table(passages: Iterable[Passage]) -> pa.Table:
    """A row per passage that was read, by number."""
    read = {passage.number: passage for passage in passages}
    return pa.table(passage_columns([read[number] for number in sorted(read)]))


def identified(rows: Sequence[Sequence[JsonValue]]) -> dict[str, JsonValue]:
    """What identifies questions in the record of a run, given what each of them says: their count and a hash."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode())
    return {"count": len(rows), "sha256": digest.hexdigest()}


def _identified(questions: Sequence[Question], source: QuestionSource | None) -> dict[str, JsonValue]:
    return identified([[one.id, one.text, *one.answers, *brought(one.passages, source)] for one in questions])


def brought(passages: Sequence[RetrievedPassage], source: QuestionSource | None) -> list[JsonValue]:
    """What the passages say that a question brings itself, if they may be read: where a file of passages is the source
    and does not have the question."""
    return [[one.title, one.text, one.score] for one in passages] if isinstance(source, GivenPassages) else []


CHOICES_KIND: Final = FolderKind("choices")
CHOICES_TABLE: Final = "choices.parquet"

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
    check_output(Path(out), kind=CHOICES_KIND, force=force)
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
            CHOICES_TABLE: choice_table(evaluation.rows),
            PASSAGES: passage_table(passage for row in evaluation.rows for passage in row.passages),
        }
        write_tables(out, tables, evaluation.summary(), config, kind=CHOICES_KIND, force=force)
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
        "questions": _choices_identity(questions, source),
        "demonstrations": _choices_identity(demonstrations, source),
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


def _choices_identity(questions: Sequence[ChoiceQuestion], source: QuestionSource | None) -> dict[str, JsonValue]:
    return identified(
        [[one.id, one.text, [*one.choices], one.gold, one.subject, *brought(one.passages, source)] for one in questions]
    )
