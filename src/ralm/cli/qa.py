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
from ralm.cli.flags import Flags, Given, Output
from ralm.cli.models import open_model, open_retrieval
from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options

if TYPE_CHECKING:
    from ralm.answering.prompts import QuestionPrompt
    from ralm.protocols import Reader

_DEMONSTRATIONS: Final = Needs("`demonstrations`", lambda job: job.demonstrations is not None)
_ENSEMBLE: Final = Needs('`reader="ensemble"`', lambda job: job.reading.reader == "ensemble")
_NAMED_FIELDS: Final = Needs("records with named fields, such as JSON Lines", lambda job: job.has_fields)
_RunFolder = Annotated[Path | None, Option("Folder for the run: one row per question, and the summary.")]


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
    model: options.Model
    ray: options.ModelRay = None

    def __post_init__(self) -> None:
        check_options(self)
        options.check_passage_sources(self.index, self.retrieved, self.reading)

    @property
    def has_passages(self) -> bool:
        """Whether passages are read."""
        return bool(self.index or self.retrieved)


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
    demonstrations: Annotated[
        Path | None, Option("File of questions with answers to show before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int, Option("How many demonstrations are shown, from the beginning of the file.", needs=_DEMONSTRATIONS)
    ] = 16
    answering: Annotated[
        AnswerOptions,
        Option("How an answer is drawn."),
        Flags(needs={"join": _ENSEMBLE, "robust": options.NEEDS_UNIFORM}, default_text=options.ANSWER_TEXTS),
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

    def opened(self, given: Given) -> _Arguments:
        """The arguments of the evaluation, but for the reader."""
        named = None if self.prompt is None else ralm.open_prompt(self.prompt)
        [questions, model], parts = _open(self, ralm.read_questions)
        prompt, answering = options.choose_prompt(named, model.tokenizer, self.reading, self.answering, given)
        if self.judge is not None:
            judging = model if self.judge == self.lm else open_model(self.judge, self.model, self.ray)
            parts["judge"] = ralm.Judge(judging)
        return [questions, model, prompt], {**parts, "options": answering, "semantics": self.semantics}

    def description(self, prompt: "QuestionPrompt", answering: AnswerOptions) -> str:
        """How the questions were asked, in a sentence."""
        why = ", as the model has a chat template" if prompt.chat and self.prompt is None else ""
        return f"asked with the prompt {prompt.name}{why}; answers have at most {answering.new_tokens} tokens"


def _open(job: "QuestionJob | ChoiceJob", read: Callable[..., Sequence[Any]]) -> _Arguments:
    """The questions and the model of a job, and the source of passages and the demonstrations."""
    questions = read(job.questions, job.fields, limit=job.limit)
    shown = [] if job.demonstrations is None else read(job.demonstrations, job.fields, limit=job.shots)
    source: Any = None
    if job.retrieved is not None:
        source = ralm.GivenPassages.read(job.retrieved, job.fields)
    elif job.index is not None:
        source = ralm.QuestionRetriever(open_retrieval(job.index, job.retrieval))
    return [questions, open_model(job.lm, job.model, job.ray)], {"source": source, "demonstrations": shown}


def _evaluate(
    asked: _Arguments,
    reader: "Reader",
    evaluate: Callable[..., Any],
    describe: Callable[..., JsonValue],
    show: Callable[[Any], None],
    *,
    baseline: bool,
) -> Output:
    """The outcome of a job: `evaluate` judges the answers, `describe` returns their config, `show` prints them."""
    arguments, parts = asked
    parts["reader"] = reader
    evaluation = evaluate(*arguments, baseline=baseline, **parts)
    return Output(lambda: {**evaluation.summary(), "config": describe(*arguments, **parts)}, partial(show, evaluation))


def qa_command(
    given: Given,
    job: QuestionJob,
    baseline: Annotated[
        bool, Option("Also answer every question without passages (closed book).", needs=options.NEEDS_PASSAGES)
    ] = False,
    out: _RunFolder = None,
    force: options.Force = False,
) -> Output:
    """Answer questions with a frozen language model, and judge the answers.

    Without --index and --retrieved, the model answers without passages (closed book). Reports exact match, whether the
    answer contains a gold answer, F1, token recall, whether the passages hold an answer, and the log-probability of the
    first gold answer. With --out, rerun the command to resume a killed run.
    """
    from ralm.answering.run import ANSWERS_KIND, questions_config
    from ralm.cli.answers import print_answers
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=ANSWERS_KIND, force=force)
    run = ralm.evaluate_questions if out is None else partial(ralm.run_questions, out, force=force)
    asked = job.opened(given)
    show = partial(print_answers, out=out, how=job.description(asked[0][2], asked[1]["options"]))
    return _evaluate(asked, job.reading.chosen_reader, run, questions_config, show, baseline=baseline)


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
) -> Output:
    """Answer questions with several numbers of passages, as in Figure 8 of In-Context RALM, and plot the measures.

    Takes the options of `ralm qa`. Several passages stand in one prompt; with --reader ensemble, each in its own. With
    --out, rerun the command to resume a killed run.
    """
    if not job.has_passages:
        raise UsageError("a curve reads passages: give `index` or `retrieved`.")

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
    if out is not None:
        check_output(out, kind=CURVE_KIND, force=force)

    def ensemble_of(number: int) -> "Reader":
        return replace(job.reading.ensemble, documents=number)

    asked, parts = job.opened(given)
    several_of = partial(several_in_context, order=job.reading.concatenation.order)
    parts["reader_of"] = ensemble_of if job.reading.reader == "ensemble" else several_of
    run: Any = answer_curve if out is None else partial(run_curve, out, force=force)
    curve = run(several, *asked, **parts)
    return Output(
        lambda: {"rows": [*curve.rows()], "config": curve_config(several, *asked, **parts)},
        partial(print_curve, curve, out, job.description(asked[2], parts["options"])),
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
    choosing: Annotated[ChoiceOptions, Option("How an answer is chosen.")]
    fields: Annotated[ChoiceFields, Option("Where a record has the question.", needs=_NAMED_FIELDS)]
    limit: Annotated[int | None, Option("Use only this many questions of each subject.", default_text="all")] = None

    @property
    def has_fields(self) -> bool:
        """Whether questions, demonstrations or passages are in records with named fields."""
        from ralm.answering.questions import has_fields

        sources = (self.questions, self.demonstrations, self.retrieved)
        return any(has_fields(str(source)) for source in sources if source is not None)

    def opened(self) -> _Arguments:
        """The arguments of the evaluation, but for the reader. Texts are judged as answers to the bare question."""
        prompt = ralm.open_prompt(self.prompt or ("replug" if self.choosing.score == "text" else "replug-choice"))
        asked, parts = _open(self, ralm.read_choice_questions)
        return [*asked, prompt], {**parts, "options": self.choosing}


def choice_command(
    job: ChoiceJob,
    baseline: Annotated[
        bool, Option("Also ask every question without passages (closed book).", needs=options.NEEDS_PASSAGES)
    ] = False,
    out: _RunFolder = None,
    force: options.Force = False,
) -> Output:
    """Let a frozen language model choose among the choices of questions, and judge what it chooses.

    Without --index and --retrieved, the model chooses without passages (closed book). Reports the accuracy, by category
    for the subjects of MMLU, and how well the model's confidence is calibrated. With --out, rerun the command to resume
    a killed run.
    """
    from ralm.answering.run import CHOICES_KIND, choices_config
    from ralm.cli.answers import print_choices
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=CHOICES_KIND, force=force)
    run = ralm.evaluate_choices if out is None else partial(ralm.run_choices, out, force=force)
    show = partial(print_choices, out=out)
    return _evaluate(job.opened(), job.reading.chosen_reader, run, choices_config, show, baseline=baseline)
