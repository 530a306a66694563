"""Write the results of question answering and of multiple choice as folders (docs/formats.md).

A folder has a table of answers or of choices, the passages that were read, the summary with the configuration, and the
manifest.
"""

from collections.abc import Iterator, Mapping
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
) -> sweep.Sweep:
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
    columns = _CHOICES_COLUMNS if evaluated.has_choices else _ANSWERS_COLUMNS
    table = pa.Table.from_pylist([_row(row) for row in evaluated.rows], pa.schema(columns))
    read = {passage.number: passage for row in evaluated.rows for passage in row.passages}
    passages = pa.table(run.passage_columns([read[number] for number in sorted(read)]))
    with outputs.new_folder(Path(out), kind=kind, force=force) as folder:
        pq.write_table(table, folder / f"{kind.name}.parquet", compression="zstd")
        pq.write_table(passages, folder / run.PASSAGES, compression="zstd")
        run.write_units(folder, evaluated.units)
        summary = {**evaluated.summary(), "config": config}
        run.write_summary(folder, kind, summary, {"config": config}, {"questions": table.num_rows})


def _row(row: evaluation.AnsweredQuestion) -> dict[str, Any]:
    """Return the row of a question in its table, without the columns that are not known."""
    question, shares = row.question, dict(row.judged.shares)
    numbers = [passage.number for passage in row.passages]
    values = {
        "question_id": question.id,
        "question": question.text,
        "passages": numbers,
        "shares": [shares.pop(number, 0.0) for number in numbers],  # a passage listed twice has its share at the first
    }
    if isinstance(question, ChoiceQuestion):
        category = multiple_choice.category_of(question.subject)
        values |= {"subject": question.subject or None, "category": category}
        values |= {"choices": question.choices, "gold": question.letters[question.gold]}
    else:
        values |= {"answers": question.answers, "answer_at": row.answer_at}
    for way, judged in (("", row.judged), ("without_", row.without), ("closed_", row.closed)):
        if judged is not None:
            values |= {f"{way}{name}": value for name, value in judged.as_row().items()}
    return values
