"""Write the results of question answering and of multiple choice as folders (docs/formats.md).

A folder has a table of answers or of choices, the passages that were read, the summary with the configuration, and the
manifest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.answering import evaluation, metrics, multiple_choice, prompts, sources
from ralm.answering.options import AnswerOptions
from ralm.answering.questions import ChoiceQuestion, identity_of
from ralm.protocols import WritingModel
from ralm.reading.parts import IN_CONTEXT
from ralm.reading.sources import share_retrievals
from ralm.records import Passage
from ralm.runs import resume, run, sweep
from ralm.storage import outputs
from ralm.storage.store import Store
from ralm.validation import config_of

ANSWERS_KIND: Final = outputs.FolderKind("answers")
CHOICES_KIND: Final = outputs.FolderKind("choices")

_TYPES: Final = {bool: pa.bool_(), float: pa.float64()}
_ANSWER_COLUMNS: Final = {
    "answer": pa.string(),
    **{name: _TYPES[measure.returns] for name, measure in metrics.ANSWER_MEASURES.items()},
    "log_prob": pa.float64(),
    "gold_log_prob": pa.float64(),
    "gold_tokens": pa.int64(),
}
"""The columns of an answer, with and without passages."""
_CUT: Final = {name: pa.int64() for name in ("cut_demonstrations", "cut_documents", "cut_special")}
_CHOICE_COLUMNS: Final = {
    "chosen": pa.string(),
    "right": pa.bool_(),
    "log_probs": pa.list_(pa.float64()),
    "probabilities": pa.list_(pa.float64()),
    "answer": pa.string(),
    **_CUT,
}
_READ: Final = {"passages": pa.list_(pa.int64()), "shares": pa.list_(pa.float64())}
_ANSWERS_COLUMNS: Final = {
    "question_id": pa.string(),
    "question": pa.string(),
    "answers": pa.list_(pa.string()),
    **_ANSWER_COLUMNS,
    **_READ,
    "answer_at": pa.int64(),
    **_CUT,
    **{f"{book}_{name}": kind for book in ("without", "closed") for name, kind in _ANSWER_COLUMNS.items()},
}
_CHOICES_COLUMNS: Final = {
    "question_id": pa.string(),
    "subject": pa.string(),
    "category": pa.string(),
    "question": pa.string(),
    "choices": pa.list_(pa.string()),
    "gold": pa.string(),
    **_CHOICE_COLUMNS,
    **_READ,
    **{f"closed_{name}": kind for name, kind in _CHOICE_COLUMNS.items()},
}
_Config: TypeAlias = dict[str, JsonValue]


def run_questions(
    out: Path | str,
    questions: evaluation.Questions,
    model: WritingModel,
    prompt: prompts.QuestionPrompt,
    *,
    baseline: bool = False,
    force: bool = False,
    **how: Any,
) -> evaluation.AnswerEvaluation:
    """Evaluate questions as `evaluate_questions` or `evaluate_choices` does, and write the folder `out` atomically.

    `how` are the other arguments of these. If it is killed, call it again with the same arguments to resume.

    Raises:
        FolderExistsError: `out` exists, and `force` is not set.
        UsageError: A run with other settings was begun there.
    """
    kind = CHOICES_KIND if evaluation.have_choices(questions) else ANSWERS_KIND
    outputs.check_output(Path(out), kind=kind, force=force)
    config = questions_config(questions, model, prompt, **how)
    with answer_store(out, config, force=force) as store:
        evaluated = evaluation.evaluate_answers(questions, model, prompt, baseline=baseline, store=store, **how)
        write_answers(out, evaluated, config, force=force)
    return evaluated


def sweep_answers(
    option: str,
    points: Mapping[str, Mapping[str, Any]],
    model: WritingModel,
    *,
    baseline: bool = False,
    out: Path | None = None,
    force: bool = False,
) -> sweep.Sweep[evaluation.AnswerEvaluation]:
    """Evaluate the same questions with the arguments of every value of an option; resume as `run_questions`."""
    configs = {value: questions_config(model=model, **point) for value, point in points.items()}
    settings: _Config = {"option": option, "points": {**configs}}
    hits = [point.get("parts", IN_CONTEXT).hits for point in points.values()]
    shared = share_retrievals([point.get("source") for point in points.values()], hits)
    if out is not None:
        outputs.check_output(out, kind=sweep.SWEEP_KIND, force=force)
    with nullcontext() if out is None else answer_store(out, settings, force=force) as store:
        evaluations = {}
        for (value, point), source in zip(points.items(), shared, strict=True):
            how = {**point, "source": source, "baseline": baseline, "store": store}
            evaluations[value] = evaluation.evaluate_answers(model=model, **how)
        swept = sweep.Sweep(option, evaluations, configs)
        if out is not None:
            sweep.write_sweep(out, swept, partial(write_answers, force=False), force=force)
    return swept


@contextmanager
def answer_store(out: Path | str, config: _Config, *, force: bool) -> Iterator[Store]:
    """Yield the store of scores and answers of a run beside its folder `out`, until the block succeeds."""
    with (
        resume.unfinished_run(Path(out), config, force=force) as folder,
        resume.unfinished_store(folder, "answers") as store,
    ):
        yield store


def questions_config(
    questions: evaluation.Questions, model: WritingModel, prompt: prompts.QuestionPrompt, **how: Any
) -> _Config:
    """Return everything that determines the figures, by name: equal configurations give equal figures."""
    drawn: AnswerOptions = how.get("options") or AnswerOptions()
    options: _Config = {**asdict(drawn), "stop": [*drawn.stop]}
    del options["top_logprobs"]  # it changes no draw
    if evaluation.have_choices(questions):
        writes = drawn.join == "answers"
        options = {"score": "generated", **options} if writes else {"score": "letter", "max_length": drawn.max_length}
    else:
        options["semantics"] = how.get("semantics", "paper")
    source, parts = how.get("source"), how.get("parts", IN_CONTEXT)
    reranked = {} if parts.reranker is None else config_of(parts.reranker, "reranker")
    may_be_read = isinstance(source, sources.GivenPassages)  # the passages of a question that the file lacks
    asked = {"questions": questions, "demonstrations": how.get("demonstrations", ())}
    return {
        **{
            name: {"count": len(listed), "sha256": identity_of(listed, with_passages=may_be_read)}
            for name, listed in asked.items()
        },
        "model": config_of(model, "language model"),
        "passages": None if source is None else {**source.config, **reranked},
        "reader": None if source is None else parts.config["reader"],
        "prompt": prompts.prompt_config(prompt, model.tokenizer),
        "options": options,
    }


def write_answers(out: Path | str, evaluated: evaluation.AnswerEvaluation, config: _Config, *, force: bool) -> None:
    """Write the folder of an evaluation atomically; FolderExistsError if `out` exists and `force` is not set."""
    kind = CHOICES_KIND if evaluated.has_choices else ANSWERS_KIND
    columns, row_of = (_CHOICES_COLUMNS, _choice_row) if evaluated.has_choices else (_ANSWERS_COLUMNS, _answer_row)
    table = pa.Table.from_pylist([row_of(row) for row in evaluated.rows], pa.schema(columns))
    read = {passage.number: passage for row in evaluated.rows for passage in row.passages}
    passages = pa.table(run.passage_columns([read[number] for number in sorted(read)]))
    with outputs.new_folder(Path(out), kind=kind, force=force) as folder:
        pq.write_table(table, folder / f"{kind.name}.parquet", compression="zstd")
        pq.write_table(passages, folder / run.PASSAGES, compression="zstd")
        run.write_units(folder, evaluated.units)
        summary = {**evaluated.summary(), "config": config}
        run.write_summary(folder, kind, summary, {"config": config}, {"questions": table.num_rows})


def _answer_row(row: Any) -> dict[str, Any]:
    """Return a row of the table of answers; what is not known is null."""
    books = {"": row.judged, "without_": row.without, "closed_": row.closed}
    return {
        "question_id": row.question.id,
        "question": row.question.text,
        "answers": row.question.answers,
        **_read_values(row.passages, row.judged.answer.shares),
        "answer_at": row.answer_at,
        **_of_books(books, _answer_values),
    }


def _answer_values(judged: evaluation.JudgedAnswer) -> dict[str, Any]:
    return {
        "answer": judged.answer.text,
        "log_prob": judged.answer.log_prob,
        "gold_tokens": judged.gold_tokens,
        "gold_log_prob": judged.gold_log_prob,
        **{name: judged.measures.get(name) for name in metrics.ANSWER_MEASURES},
        **_cut_values(judged.cut),
    }


def _choice_row(row: Any) -> dict[str, Any]:
    question, books = row.question, {"": row.judged, "closed_": row.closed}
    return {
        "question_id": question.id,
        "subject": question.subject or None,
        "category": multiple_choice.category_of(question.subject),
        "question": question.text,
        "choices": question.choices,
        "gold": question.letters[question.gold],
        **_read_values(row.passages, row.judged.shares),
        **_of_books(books, partial(_choice_values, question)),
    }


def _choice_values(question: ChoiceQuestion, choice: multiple_choice.Choice) -> dict[str, Any]:
    return {
        "chosen": None if choice.chosen is None else question.letters[choice.chosen],
        "right": choice.right,
        "log_probs": choice.log_probs_C,
        "probabilities": choice.probabilities_C,
        "answer": choice.answer,
        **_cut_values(choice.cut),
    }


def _of_books(books: Mapping[str, Any], values: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{way}{name}": value for way, judged in books.items() if judged for name, value in values(judged).items()}


def _cut_values(cut: prompts.Cut) -> dict[str, Any]:
    return {f"cut_{name}": tokens for name, tokens in asdict(cut).items()}


def _read_values(passages: Sequence[Passage], shares: Mapping[int, float]) -> dict[str, Any]:
    """Return the numbers of passages, and their shares; one that a file lists twice has its share at the first."""
    remaining = dict(shares)
    numbers = [passage.number for passage in passages]
    return {"passages": numbers, "shares": [remaining.pop(number, 0.0) for number in numbers]}
