"""`ralm qa`, `ralm curve` and `ralm choice`: answer sets of questions with a frozen language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from pydantic import JsonValue

import ralm
from ralm.answering.options import AnswerOptions, AnswerSemantics, ChoiceFields, ChoiceOptions, QuestionFields
from ralm.cli import options
from ralm.cli.flags import Flags, Given, TableOutput, option_types, reject_unused, unused_options
from ralm.cli.models import open_model
from ralm.cli.sweep import swept_jobs
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option, check_options

if TYPE_CHECKING:
    from ralm.answering.prompts import QuestionPrompt
    from ralm.protocols import WritingModel
    from ralm.reading.parts import Parts
    from ralm.storage.outputs import FolderKind

_DEMONSTRATIONS: Final = Needs("`demonstrations`", lambda job: job.demonstrations is not None)
_ENSEMBLE: Final = Needs('`reader="ensemble"`', lambda job: job.reading.reader == "ensemble")
_NAMED_FIELDS: Final = Needs("records with named fields, such as JSON Lines", lambda job: job.has_fields)
_RunFolder = Annotated[
    Path | None, Option("Folder for the run: one row per question, and the summary; with `over`, of such folders.")
]
_Turns = Annotated[
    bool,
    Option("Show demonstrations as turns of the chat, not in the message that asks.", needs=_DEMONSTRATIONS),
]
_Over = Annotated[str | None, Option("Evaluate with several values of this option.")]
_Values = Annotated[str | None, Option("The values of the option `over`, separated by commas.")]
_FIXED: Final = ("lm", "rerank_lm", "judge", "limit", "ray", "stop", *option_types(ModelOptions))
"""Options that all jobs share: the same questions are read with one model, which is loaded once."""


_Arguments: TypeAlias = tuple[list[Any], dict[str, Any]]
"""The positional and named arguments of an evaluation: the questions, the model and the prompt; and how it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassagesJob:
    """The model and the source of passages.

    Raises UsageError if options do not go together.
    """

    lm: options.ModelName
    index: options.ReadIndex = None
    retrieved: Annotated[Path | None, Option("Read with the passages in this file: questions with `ctxs`.")] = None
    retrieval: options.Retrieval
    reading: options.QuestionReading
    model: options.QuestionModel
    ray: options.ModelRay = None

    def __post_init__(self) -> None:
        check_options(self)
        options.check_passage_sources(self.index, self.retrieved, self.reading)
        options.check_reranked_questions(self.reading.reranking, self.index)

    @property
    def has_passages(self) -> bool:
        """Whether passages are read."""
        return bool(self.index or self.retrieved)

    def open_model(self, name: str, opened: "dict[str, WritingModel]") -> "WritingModel":
        """A model of this name, one of those that are `opened` already if it is there."""
        if name not in opened:
            opened[name] = open_model(name, self.model.of(name, self.lm), self.ray)
        return opened[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionJob(_PassagesJob):
    """Questions, the prompt, and how they are answered.

    Raises UsageError if options do not go together.
    """

    questions: Annotated[
        str,
        options.argument(
            "File of questions and answers (JSON Lines, DPR's JSON or TSV, TriviaQA, SQuAD), or hf:NAME.", "QUESTIONS"
        ),
    ]
    prompt: Annotated[
        str | None,
        Option(
            "Prompt by name (in-context-ralm, replug, chat), or a TOML file.",
            default_text=options.PROMPT_TEXT,
        ),
    ] = None
    system: options.System = None
    demonstrations: Annotated[
        Path | None, Option("File of questions with answers to show before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int, Option("How many demonstrations are shown, from the beginning of the file.", needs=_DEMONSTRATIONS)
    ] = 16
    turns: _Turns = False
    answering: Annotated[
        AnswerOptions,
        Option("How an answer is drawn."),
        Flags(needs={"join": _ENSEMBLE}, default_text=options.ANSWER_TEXTS),
    ]
    semantics: Annotated[
        AnswerSemantics,
        Option("paper or official: follow the paper's text, or its published code, where they differ."),
    ] = "paper"
    fields: Annotated[QuestionFields, Option("Where a record has the question.")]
    limit: Annotated[int | None, Option("Use only this many questions.", default_text="all")] = None

    judge: Annotated[
        str | None, Option("Also ask this language model whether each answer agrees with a gold answer.")
    ] = None

    def opened(self, given: Given, models: "dict[str, WritingModel]") -> _Arguments:
        """The arguments of the evaluation, but for the reader; `models` are those that are opened, by name."""
        named = None if self.prompt is None else ralm.open_prompt(self.prompt)
        [questions, model], parts = _open(self, ralm.read_questions, models)
        prompt, answering = options.choose_prompt(named, model.tokenizer, self.reading, self.answering, given)
        prompt = options.with_messages(prompt, self.system, turns=self.turns)
        if self.judge is not None:
            parts["judge"] = ralm.Judge(self.open_model(self.judge, models))
        return [questions, model, prompt], {**parts, "options": answering, "semantics": self.semantics}

    def describe(self, prompt: "QuestionPrompt", answering: AnswerOptions) -> str:
        """How the questions were asked, in a sentence."""
        why = ", as the model has a chat template" if prompt.chat and self.prompt is None else ""
        return f"asked with the prompt {prompt.name}{why}; answers have at most {answering.new_tokens} tokens"


def _open(
    job: "QuestionJob | ChoiceJob", read: Callable[..., Sequence[Any]], models: "dict[str, WritingModel]"
) -> _Arguments:
    """The questions and the model of a job, and the source of passages and the demonstrations."""
    questions = read(job.questions, job.fields, limit=job.limit)
    shown = [] if job.demonstrations is None else read(job.demonstrations, job.fields, limit=job.shots)
    source: Any = None
    if job.retrieved is not None:
        source = ralm.GivenPassages.read(job.retrieved, job.fields)
    elif job.index is not None:
        source = ralm.FromRetriever.of_index(job.index, job.retrieval)
    model = job.open_model(job.lm, models)
    options.warn_of_lexical(job.reading.reranking)
    ranker = None if job.reading.ranks_with is None else job.open_model(job.reading.ranks_with, models)
    parts = job.reading.parts(job.reading.reranking.reranker(ranker))
    return [questions, model], {"source": source, "demonstrations": shown, "parts": parts}


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """How jobs of one kind are evaluated: `evaluate` judges the answers, `run` also writes the folder of this `kind`,
    `describe` returns the config, `show` prints the result."""

    job: type
    kind: "FolderKind"
    evaluate: Callable[..., Any]
    run: Callable[..., Any]
    describe: Callable[..., JsonValue]
    show: Callable[[Any, Path | None, str], None]

    def of(self, asked: _Arguments, out: Path | None, **how: bool) -> tuple[Any, Any]:
        """The result of a job with these arguments, and a function that describes it."""
        arguments, keywords = asked
        force = how.pop("force")
        run = self.evaluate if out is None else partial(self.run, out, force=force)
        return run(*arguments, **how, **keywords), partial(self.describe, *arguments, **keywords)


def _evaluate(
    given: Given,
    make_job: Callable[..., "QuestionJob | ChoiceJob"],
    evaluation: _Evaluation,
    swept: tuple[str | None, str | None],
    out: Path | None,
    **how: bool,
) -> TableOutput:
    """The outcome of a job, or of one for each value of the `swept` option, each in a folder of its own in `out`."""
    from ralm.cli.answers import print_swept
    from ralm.storage.outputs import check_output

    over, values = swept
    if (over is None) != (values is None):
        raise UsageError("`over` and `values` belong together: give both.")
    if over is None or values is None:
        job = make_job()
        reject_unused(unused_options(job, given), given)
        jobs, folders = {"": job}, [out]
    else:
        kinds = {name: kind for name, kind in option_types(evaluation.job).items() if name not in _FIXED}
        jobs = swept_jobs(given, make_job, kinds, over, values)
        given = {**given, over.replace("-", "_"): f"--{over}"}
        folders = [None if out is None else out / f"{over}-{value}".replace("/", "_") for value in jobs]
    for folder in filter(None, folders):
        check_output(folder, kind=evaluation.kind, force=how["force"])
    if how["baseline"] and not any(job.has_passages for job in jobs.values()):
        reject_unused({"baseline": "--index or --retrieved"}, given)
    models: dict[str, WritingModel] = {}
    opened = [job.opened(given, models) for job in jobs.values()]
    results = [evaluation.of(asked, folder, **how) for asked, folder in zip(opened, folders, strict=True)]

    def as_json(result: tuple[Any, Any]) -> dict[str, JsonValue]:
        return {**result[0].summary(), "config": result[1]()}

    if over is None:
        how_asked = job.describe(opened[0][0][2], opened[0][1]["options"]) if isinstance(job, QuestionJob) else ""
        return TableOutput(lambda: as_json(results[0]), partial(evaluation.show, results[0][0], out, how_asked))
    points = dict(zip(jobs, results, strict=True))
    return TableOutput(
        lambda: {"option": over, "points": [{over: value, **as_json(result)} for value, result in points.items()]},
        partial(print_swept, over, {value: found.summary() for value, (found, _) in points.items()}, out),
    )


def qa_command(
    given: Given,
    make_job: Callable[..., QuestionJob],
    baseline: Annotated[bool, Option("Also answer every question without passages (closed book).")] = False,
    over: _Over = None,
    values: _Values = None,
    out: _RunFolder = None,
    force: options.Force = False,
) -> TableOutput:
    """Answer questions with a frozen language model, and judge the answers.

    Without --index and --retrieved, the model answers without passages (closed book). Reports exact match, whether the
    answer contains a gold answer, F1, token recall, whether the passages hold an answer, and the log-probability of the
    first gold answer. With --out, rerun the command to resume a killed run.
    """
    from ralm.answering.run import ANSWERS_KIND, questions_config
    from ralm.cli.answers import print_answers

    evaluation = _Evaluation(
        QuestionJob, ANSWERS_KIND, ralm.evaluate_questions, ralm.run_questions, questions_config, print_answers
    )
    return _evaluate(given, make_job, evaluation, (over, values), out, baseline=baseline, force=force)


def curve_command(
    given: Given,
    job: Annotated[QuestionJob, Flags(without=("documents",))],
    numbers: Annotated[
        str, Option("Numbers of passages in the prompt, separated by commas; 0 is the closed book.")
    ] = "0,1,2,5",
    out: Annotated[
        Path | None, Option("Folder for the table, the plot and the summary; this needs the extra `plots`.")
    ] = None,
    force: options.Force = False,
) -> TableOutput:
    """Answer questions with several numbers of passages, as in Figure 8 of In-Context RALM, and plot the measures.

    Takes the options of `ralm qa`. Several passages stand in one prompt; with --reader ensemble, each in its own. With
    --out, rerun the command to resume a killed run.
    """
    if not job.has_passages:
        raise UsageError("a curve needs passages: give `index` or `retrieved`.")

    from ralm.answering.curve import (
        CURVE_KIND,
        answer_curve,
        check_numbers,
        curve_config,
        run_curve,
        several_in_context,
    )
    from ralm.cli.answers import print_curve
    from ralm.storage.outputs import check_output

    try:
        several = [int(number) for number in numbers.split(",")]
    except ValueError:
        raise UsageError(f"`numbers` must be whole numbers separated by commas, not {numbers!r}.") from None
    check_numbers(several)
    if job.reading.reranks and max(several) > job.reading.reranking.candidates:
        raise UsageError("`numbers` are more passages than the `candidates` to choose from: raise `candidates`.")
    if out is not None:
        check_output(out, kind=CURVE_KIND, force=force)

    def ensemble_of(number: int) -> "Parts":
        return replace(parts, reader=replace(job.reading.ensemble, documents=number))

    def several_of(number: int) -> "Parts":
        return replace(several_in_context(number, job.reading.concatenation.order), reranker=parts.reranker)

    asked, keywords = job.opened(given, {})
    parts = keywords.pop("parts")
    keywords["parts_of"] = ensemble_of if job.reading.reader == "ensemble" else several_of
    run: Any = answer_curve if out is None else partial(run_curve, out, force=force)
    curve = run(several, *asked, **keywords)
    return TableOutput(
        lambda: {"rows": [*curve.rows()], "config": curve_config(several, *asked, **keywords)},
        partial(print_curve, curve, out, job.describe(asked[2], keywords["options"])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJob(_PassagesJob):
    """Questions with choices, the prompt, and how a choice is made.

    Raises UsageError if options do not go together.
    """

    questions: Annotated[
        str,
        options.argument(
            "File of questions with choices (MMLU's CSV, JSON Lines), folder of CSV, or hf:NAME.", "QUESTIONS"
        ),
    ]
    prompt: Annotated[
        str | None,
        Option(
            "Prompt of a paper (replug-choice, replug-choice-code, replug), chat-choice, or a TOML file.",
            default_text="text: replug, which does not show the choices; else replug-choice",
        ),
    ] = None
    system: options.System = None
    demonstrations: Annotated[
        str | None, Option("File or folder of questions to show with their answers before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int,
        Option(
            "Most demonstrations that are shown, from the beginning of those of the question's subject.",
            needs=_DEMONSTRATIONS,
        ),
    ] = 5
    turns: _Turns = False
    choosing: Annotated[ChoiceOptions, Option("How an answer is chosen.")]
    fields: Annotated[ChoiceFields, Option("Where a record has the question.", needs=_NAMED_FIELDS)]
    limit: Annotated[int | None, Option("Use only this many questions of each subject.", default_text="all")] = None

    def __post_init__(self) -> None:
        _PassagesJob.__post_init__(self)
        self.reading.parts().require_average("a choice")

    @property
    def has_fields(self) -> bool:
        """Whether questions, demonstrations or passages are in records with named fields."""
        from ralm.answering.questions import has_fields

        sources = (self.questions, self.demonstrations, self.retrieved)
        return any(has_fields(str(source)) for source in sources if source is not None)

    def opened(self, _given: Given, models: "dict[str, WritingModel]") -> _Arguments:
        """The arguments of the evaluation, but for the reader; `models` are those that are opened, by name. Texts are
        judged as answers to the bare question."""
        prompt = ralm.open_prompt(self.prompt or ("replug" if self.choosing.score == "text" else "replug-choice"))
        prompt = options.with_messages(prompt, self.system, turns=self.turns)
        [questions, model], parts = _open(self, ralm.read_choice_questions, models)
        return [questions, model, prompt], {**parts, "options": self.choosing}


def choice_command(
    given: Given,
    make_job: Callable[..., ChoiceJob],
    baseline: Annotated[bool, Option("Also ask every question without passages (closed book).")] = False,
    over: _Over = None,
    values: _Values = None,
    out: _RunFolder = None,
    force: options.Force = False,
) -> TableOutput:
    """Let a frozen language model choose among the choices of questions, and judge what it chooses.

    Without --index and --retrieved, the model chooses without passages (closed book). Reports the accuracy, by category
    for the subjects of MMLU. With --out, rerun the command to resume a killed run.
    """
    from ralm.answering.run import CHOICES_KIND, choices_config
    from ralm.cli.answers import print_choices

    evaluation = _Evaluation(
        ChoiceJob,
        CHOICES_KIND,
        ralm.evaluate_choices,
        ralm.run_choices,
        choices_config,
        lambda found, out, _: print_choices(found, out),
    )
    return _evaluate(given, make_job, evaluation, (over, values), out, baseline=baseline, force=force)
