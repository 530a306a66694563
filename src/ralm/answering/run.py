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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, Unpack

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.answering.answers import AnswerStores
from ralm.answering.evaluation import (
    AnsweredQuestion,
    ChoiceEvaluation,
    ChoiceParts,
    ChosenQuestion,
    JudgedAnswer,
    QuestionEvaluation,
    QuestionParts,
    evaluate_choices,
    evaluate_questions,
)
from ralm.answering.multiple_choice import Choice, category_of
from ralm.answering.options import AnswerOptions, ChoiceOptions
from ralm.answering.prompts import QuestionPrompt, prompt_config
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import GivenPassages, QuestionSource
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.records import Passage
from ralm.runs.resume import unfinished_run, unfinished_store
from ralm.runs.run import PASSAGES, SUMMARY, environment, to_json
from ralm.runs.tables import passage_columns
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.validation import config_of

ANSWERS_KIND: Final = FolderKind("answers")
ANSWERS_TABLE: Final = "answers.parquet"
CHOICES_KIND: Final = FolderKind("choices")
CHOICES_TABLE: Final = "choices.parquet"

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
_CHOICE_COLUMNS: Final = {
    "chosen": pa.string(),
    "right": pa.bool_(),
    "log_probs": pa.list_(pa.float64()),
    "probabilities": pa.list_(pa.float64()),
    "answer": pa.string(),
    "certified": pa.bool_(),
    "cut_demonstrations": pa.int64(),
    "cut_documents": pa.int64(),
}
"""The columns of a choice, with and without passages."""
_Config: TypeAlias = dict[str, JsonValue]


def run_questions(
    out: Path | str,
    questions: Sequence[Question],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    baseline: bool = False,
    force: bool = False,
    **parts: Unpack[QuestionParts],
) -> QuestionEvaluation:
    """Evaluate questions as `evaluate_questions` does, whose arguments `parts` are, and write the folder `out`
    atomically.

    If it is killed, call it again with the same arguments to resume. Raises the errors of `evaluate_questions`,
    FolderExistsError if `out` exists and `force` is not set, and UsageError if a run with other settings was begun
    there.
    """
    check_output(Path(out), kind=ANSWERS_KIND, force=force)
    config = questions_config(questions, model, prompt, **parts)
    with answer_stores(out, config, force=force) as stores:
        found = evaluate_questions(questions, model, prompt, baseline=baseline, stores=stores, **parts)
        _FOLDER_OF_ANSWERS.write(out, _answer_table(found.rows), found.rows, found.summary(), config, force=force)
    return found


def run_choices(
    out: Path | str,
    questions: Sequence[ChoiceQuestion],
    model: WritingModel,
    prompt: QuestionPrompt,
    *,
    baseline: bool = False,
    force: bool = False,
    **parts: Unpack[ChoiceParts],
) -> ChoiceEvaluation:
    """Evaluate multiple choice as `evaluate_choices` does, whose arguments `parts` are, and write the folder `out`
    atomically.

    Resumes and raises errors as `run_questions` does.
    """
    check_output(Path(out), kind=CHOICES_KIND, force=force)
    config = choices_config(questions, model, prompt, **parts)
    with answer_stores(out, config, force=force) as stores:
        found = evaluate_choices(questions, model, prompt, baseline=baseline, stores=stores, **parts)
        _FOLDER_OF_CHOICES.write(out, _choice_table(found.rows), found.rows, found.summary(), config, force=force)
    return found


@contextmanager
def answer_stores(out: Path | str, config: _Config, *, force: bool) -> Iterator[AnswerStores]:
    """The stores of scores and answers of a run beside its folder `out`, until the block succeeds.

    Raises the errors of `unfinished_run`.
    """
    with (
        unfinished_run(Path(out), config, force=force) as folder,
        unfinished_store(folder, "model-0") as scores,
        unfinished_store(folder, "answers") as answers,
    ):
        yield AnswerStores(scores, answers)


def questions_config(
    questions: Sequence[Question], model: WritingModel, prompt: QuestionPrompt, **parts: Unpack[QuestionParts]
) -> _Config:
    """Everything that determines the figures, by name: equal configurations give equal figures."""
    source, options = parts.get("source"), asdict(parts.get("options") or AnswerOptions())
    del options["top_logprobs"]  # it changes no draw
    semantics = parts.get("semantics", "paper")
    return {
        **_inputs_config(questions, parts.get("demonstrations", ()), source),
        **_model_config(model, prompt, source, parts.get("reader")),
        "options": {**options, "stop": list(options["stop"]), "semantics": semantics},
    }


def choices_config(
    questions: Sequence[ChoiceQuestion], model: WritingModel, prompt: QuestionPrompt, **parts: Unpack[ChoiceParts]
) -> _Config:
    """Everything that determines the figures, by name: equal configurations give equal figures."""
    source = parts.get("source")
    return {
        **_inputs_config(questions, parts.get("demonstrations", ()), source),
        **_model_config(model, prompt, source, parts.get("reader")),
        "options": asdict(parts.get("options") or ChoiceOptions()),
    }


def _inputs_config(
    questions: Sequence[Question | ChoiceQuestion],
    demonstrations: Sequence[Question | ChoiceQuestion],
    source: QuestionSource | None,
) -> _Config:
    return {"questions": _identity(questions, source), "demonstrations": _identity(demonstrations, source)}


def _model_config(
    model: WritingModel, prompt: QuestionPrompt, source: QuestionSource | None, reader: Reader | None
) -> _Config:
    return {
        "model": config_of(model, "language model"),
        "passages": None if source is None else source.config,
        "reader": None if source is None else config_of(reader or InContext(), "reader"),
        "prompt": prompt_config(prompt, model.tokenizer),
    }


def _identity(questions: Sequence[Question | ChoiceQuestion], source: QuestionSource | None) -> _Config:
    """The count of questions and a hash of their content. The passages of a question count only if they may be read:
    if the source is a file of passages that lacks the question."""
    digest = hashlib.sha256()
    for one in questions:
        own: list[JsonValue] = [one.id, one.text]
        own += one.answers if isinstance(one, Question) else ([*one.choices], one.gold, one.subject)
        if isinstance(source, GivenPassages):
            own += [[passage.title, passage.text, passage.score] for passage in one.passages]
        digest.update(json.dumps(own).encode())
    return {"count": len(questions), "sha256": digest.hexdigest()}


@dataclass(frozen=True, slots=True)
class _Folder:
    """A kind of folder of answered questions, with the name of its table."""

    kind: FolderKind
    table: str

    def write(
        self,
        out: Path | str,
        table: pa.Table,
        rows: Sequence[AnsweredQuestion | ChosenQuestion],
        summary: _Config,
        config: _Config,
        *,
        force: bool,
    ) -> None:
        """Write the table, the passages of the rows, the summary and the manifest, atomically.

        Raises FolderExistsError if `out` exists and `force` is not set.
        """
        read = {passage.number: passage for row in rows for passage in row.passages}
        passages = pa.table(passage_columns([read[number] for number in sorted(read)]))
        with new_folder(Path(out), kind=self.kind, force=force) as folder:
            for name, content in ((self.table, table), (PASSAGES, passages)):
                pq.write_table(content, folder / name, compression="zstd")
            (folder / SUMMARY).write_text(to_json({**summary, "config": config}, indent=2) + "\n", encoding="utf-8")
            write_manifest(
                folder,
                kind=self.kind,
                settings={"config": config, "environment": environment()},
                counts={"questions": len(rows)},
            )


_FOLDER_OF_ANSWERS: Final = _Folder(ANSWERS_KIND, ANSWERS_TABLE)
_FOLDER_OF_CHOICES: Final = _Folder(CHOICES_KIND, CHOICES_TABLE)


def _answer_table(rows: Sequence[AnsweredQuestion]) -> pa.Table:
    """A row per question; the columns of a question without gold answers are null."""
    columns: dict[str, pa.Array] = {
        "question_id": pa.array([row.question.id for row in rows], pa.string()),
        "question": pa.array([row.question.text for row in rows], pa.string()),
        "answers": pa.array([list(row.question.answers) for row in rows], pa.list_(pa.string())),
        **_columns(ANSWER_COLUMNS, "", [_answer_values(row.judged) for row in rows]),
        **_passage_columns([(row.passages, row.judged.answer.shares) for row in rows]),
        "answer_at": pa.array([row.answer_at for row in rows], pa.int64()),
        "cut_demonstrations": pa.array([row.cut.demonstrations for row in rows], pa.int64()),
        "cut_documents": pa.array([row.cut.documents for row in rows], pa.int64()),
        **_columns(ANSWER_COLUMNS, "closed_", [_answer_values(row.closed) for row in rows]),
    }
    return pa.table(columns)


def _answer_values(judged: JudgedAnswer | None) -> Mapping[str, Any] | None:
    if judged is None:
        return None
    return {
        "answer": judged.answer.text,
        "exact_match": judged.exact_match,
        "token_match": judged.token_match,
        "f1": judged.f1,
        "log_prob": judged.answer.log_prob,
        "gold_log_prob": judged.gold_log_prob,
        "gold_tokens": judged.gold_tokens,
    }


def _choice_table(rows: Sequence[ChosenQuestion]) -> pa.Table:
    """A row per question, in order."""
    questions = [row.question for row in rows]
    columns: dict[str, pa.Array] = {
        "question_id": pa.array([one.id for one in questions], pa.string()),
        "subject": pa.array([one.subject or None for one in questions], pa.string()),
        "category": pa.array([category_of(one.subject) for one in questions], pa.string()),
        "question": pa.array([one.text for one in questions], pa.string()),
        "choices": pa.array([list(one.choices) for one in questions], pa.list_(pa.string())),
        "gold": pa.array([one.letters[one.gold] for one in questions], pa.string()),
        **_columns(_CHOICE_COLUMNS, "", [_choice_values(row.question, row.choice) for row in rows]),
        **_passage_columns([(row.passages, row.choice.shares) for row in rows]),
        **_columns(_CHOICE_COLUMNS, "closed_", [_choice_values(row.question, row.closed) for row in rows]),
    }
    return pa.table(columns)


def _choice_values(question: ChoiceQuestion, choice: Choice | None) -> Mapping[str, Any] | None:
    if choice is None:
        return None
    return {
        "chosen": None if choice.chosen is None else question.letters[choice.chosen],
        "right": choice.right,
        "log_probs": None if choice.log_probs_C is None else choice.log_probs_C.tolist(),
        "probabilities": None if choice.probabilities_C is None else choice.probabilities_C.tolist(),
        "answer": choice.answer,
        "certified": choice.certified,
        "cut_demonstrations": choice.cut.demonstrations,
        "cut_documents": choice.cut.documents,
    }


def _columns(
    kinds: Mapping[str, pa.DataType], prefix: str, rows: Sequence[Mapping[str, Any] | None]
) -> dict[str, pa.Array]:
    """A column for each name, null where a row has no values."""
    return {f"{prefix}{name}": pa.array([row and row[name] for row in rows], kind) for name, kind in kinds.items()}


def _passage_columns(rows: Sequence[tuple[Sequence[Passage], Mapping[int, float]]]) -> dict[str, pa.Array]:
    """The numbers of passages, and their shares; a passage that a file lists twice has its share at the first."""
    numbers, shares = [], []
    for passages, given in rows:
        left = dict(given)
        numbers.append([one.number for one in passages])
        shares.append([left.pop(one.number, 0.0) for one in passages])
    return {
        "passages": pa.array(numbers, pa.list_(pa.int64())),
        "shares": pa.array(shares, pa.list_(pa.float64())),
    }
