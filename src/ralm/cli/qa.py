"""`ralm qa`, `ralm curve` and `ralm choice`: answer sets of questions with a frozen language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ralm.answering.options import AnswerOptions, AnswerSemantics, ChoiceFields, ChoiceOptions, QuestionFields
from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.cli.models import open_model
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option, check_options
from ralm.reading import ReadingOptions
from ralm.retrieval.retriever import RetrieverOptions

if TYPE_CHECKING:
    from ralm.answering.prompts import QuestionPrompt
    from ralm.answering.questions import Question
    from ralm.answering.sources import QuestionSource
    from ralm.protocols import Reader, WritingModel
    from ralm.reading.sources import FromRetriever

_DEMONSTRATIONS: Final = Needs("`demonstrations`", lambda job: job.demonstrations is not None)
_ENSEMBLE: Final = Needs('`reader="ensemble"`', lambda job: job.reading.reader == "ensemble")
_NAMED_FIELDS: Final = Needs("records with named fields, such as JSON Lines", lambda job: job.has_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassagesJob:
    """The model and the source of passages.

    Raises UsageError if options do not go together.
    """

    lm: options.ModelName
    index: options.ReadIndex = None
    retrieved: Annotated[Path | None, Option("Read with the passages in this file: questions with `ctxs`.")] = None
    retrieval: options.Retrieval = field(default_factory=RetrieverOptions)
    reading: Annotated[ReadingOptions, Option("How passages are read."), Flags(without=options.RERANKING)] = field(
        default_factory=ReadingOptions
    )
    model: Annotated[ModelOptions, Option("How the model runs."), Flags(needs=options.MODEL_NEEDS)] = field(
        default_factory=ModelOptions
    )
    ray: options.ModelRay = None

    def __post_init__(self) -> None:
        check_options(self)
        options.check_passage_sources(self.index, self.retrieved, self.reading)

    @property
    def has_passages(self) -> bool:
        """Whether passages are read."""
        return bool(self.index or self.retrieved)

    def retriever(self) -> "FromRetriever | None":
        """The retriever of the index, if there is one."""
        from ralm.reading.sources import FromRetriever

        return None if self.index is None else FromRetriever.of_index(self.index, self.retrieval)

    def source(
        self, found: "FromRetriever | None", given: "Callable[[Path], QuestionSource]"
    ) -> "QuestionSource | None":
        """The source of passages: the index, or the file of passages, which `given` reads."""
        from ralm.answering.sources import QuestionRetriever

        if self.retrieved is not None:
            return given(self.retrieved)
        return None if found is None else QuestionRetriever(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionJob(_PassagesJob):
    """Questions, the prompt, and how they are answered.

    Raises UsageError if options do not go together.
    """

    questions: Annotated[
        str,
        typer.Argument(
            metavar="QUESTIONS",
            help="File of questions and answers (JSON Lines, DPR's JSON or TSV, TriviaQA, SQuAD), or hf:NAME.",
            show_default=False,
        ),
    ]
    prompt: Annotated[
        str | None,
        Option(
            "Prompt by name (in-context-ralm, replug, chat), or a TOML file.",
            default_text="ensemble: replug, else in-context-ralm",
        ),
    ] = None
    demonstrations: Annotated[
        Path | None, Option("File of questions with answers to show before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int,
        Option(
            "How many demonstrations are shown, from the beginning of the file.",
            needs=_DEMONSTRATIONS,
        ),
    ] = 16
    answering: Annotated[AnswerOptions, Option("How an answer is drawn."), Flags(needs={"join": _ENSEMBLE})] = field(
        default_factory=AnswerOptions
    )
    semantics: Annotated[
        AnswerSemantics,
        Option("paper or official: follow the paper's text, or its published code, where they differ."),
    ] = "paper"
    fields: Annotated[QuestionFields, Option("Where a record has the question.")] = field(
        default_factory=QuestionFields
    )
    limit: Annotated[int | None, Option("Use only this many questions.", default_text="all")] = None

    @property
    def prompt_name(self) -> str:
        """The given prompt, else that of the paper that has this reader."""
        return self.prompt or options.paper_prompt(self.reading)

    def opened(self) -> "_OpenedQuestions":
        """The questions, the model and the source of passages, read and loaded."""
        from ralm.answering.prompts import open_prompt
        from ralm.answering.questions import read_questions
        from ralm.answering.sources import GivenPassages

        prompt = open_prompt(self.prompt_name)
        questions = read_questions(self.questions, self.fields, limit=self.limit)
        shown: Sequence[Question] = ()
        if self.demonstrations is not None:
            shown = read_questions(self.demonstrations, self.fields, limit=self.shots)
        found = self.retriever()
        return _OpenedQuestions(
            questions=questions,
            model=open_model(self.lm, self.model, self.ray),
            prompt=prompt,
            found=found,
            source=self.source(found, lambda file: GivenPassages.read(file, self.fields)),
            how={"demonstrations": shown, "options": self.answering, "semantics": self.semantics},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedQuestions:
    """The opened parts of a job; `found` is the retriever of the index, if there is one."""

    questions: "Sequence[Question]"
    model: "WritingModel"
    prompt: "QuestionPrompt"
    found: "FromRetriever | None"
    source: "QuestionSource | None"
    how: dict[str, Any]


def qa_command(
    job: QuestionJob,
    baseline: Annotated[
        bool, Option("Also answer every question without passages (closed book).", needs=options.NEEDS_PASSAGES)
    ] = False,
    out: Annotated[Path | None, Option("Folder for the run: one row per question, and the summary.")] = None,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Answer questions with a frozen language model, and judge the answers.

    Without --index and --retrieved, the model answers without passages (closed book). Reports exact match, F1, whether
    the passages hold an answer, and the log-probability of the first gold answer. With --out, rerun the command to
    resume a killed run.
    """

    from ralm.answering.evaluation import evaluate_questions
    from ralm.answering.run import ANSWERS_KIND, questions_config, run_questions
    from ralm.cli.answers import print_answers
    from ralm.cli.output import print_cache, print_json
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=ANSWERS_KIND, force=force)
    asked = job.opened()
    questions, model, prompt = asked.questions, asked.model, asked.prompt
    how: Any = {"source": asked.source, "reader": job.reading.chosen_reader, **asked.how}
    if out is None:
        evaluation = evaluate_questions(questions, model, prompt, baseline=baseline, **how)
    else:
        evaluation = run_questions(out, questions, model, prompt, baseline=baseline, force=force, **how)
    if json:
        print_json({**evaluation.summary(), "config": questions_config(questions, model, prompt, **how)})
    else:
        print_answers(evaluation, out)
    print_cache(asked.found)


def curve_command(
    job: Annotated[QuestionJob, Flags(without=("documents",))],
    numbers: Annotated[
        str, Option("Numbers of passages in the prompt, separated by commas; 0 is the closed book.")
    ] = "0,1,2,5",
    out: Annotated[
        Path | None, Option("Folder for the table, the plot and the summary; this needs the extra `plots`.")
    ] = None,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
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
    from ralm.cli.output import print_cache, print_json
    from ralm.storage.outputs import check_output

    several = _numbers(numbers)
    check_numbers(several)
    if out is not None:
        check_output(out, kind=CURVE_KIND, force=force)

    def ensemble_of(number: int) -> "Reader":
        return replace(job.reading.ensemble, documents=number)

    asked = job.opened()
    questions, model, prompt, source = asked.questions, asked.model, asked.prompt, asked.source
    assert source is not None
    how = {"reader_of": ensemble_of if job.reading.reader == "ensemble" else several_in_context, **asked.how}
    if out is None:
        made = answer_curve(several, questions, model, prompt, source, **how)
    else:
        made = run_curve(out, several, questions, model, prompt, source, force=force, **how)
    if json:
        print_json({"rows": [*made.rows()], "config": curve_config(several, questions, model, prompt, source, **how)})
    else:
        print_curve(made, out)
    print_cache(asked.found)


def _numbers(said: str) -> list[int]:
    try:
        return [int(number) for number in said.split(",")]
    except ValueError:
        raise UsageError(f"`numbers` must be whole numbers separated by commas, not {said!r}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJob(_PassagesJob):
    """Questions with choices, the prompt, and how a choice is made.

    Raises UsageError if options do not go together.
    """

    questions: Annotated[
        str,
        typer.Argument(
            metavar="QUESTIONS",
            help="File of questions with choices (MMLU's CSV, JSON Lines), folder of CSV, or hf:NAME.",
            show_default=False,
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
    choosing: Annotated[ChoiceOptions, Option("How an answer is chosen.")] = field(default_factory=ChoiceOptions)
    fields: Annotated[
        ChoiceFields,
        Option(
            "Where a record has the question.",
            needs=_NAMED_FIELDS,
        ),
    ] = field(default_factory=ChoiceFields)
    limit: Annotated[int | None, Option("Use only this many questions of each subject.", default_text="all")] = None

    @property
    def has_fields(self) -> bool:
        """Whether questions, demonstrations or passages are in records with named fields."""
        from ralm.answering.questions import has_fields

        sources = (self.questions, self.demonstrations, self.retrieved)
        return any(has_fields(str(source)) for source in sources if source is not None)

    @property
    def prompt_name(self) -> str:
        """The given prompt; else one without the choices if texts are judged, as answers to the bare question."""
        return self.prompt or ("replug" if self.choosing.score == "text" else "replug-choice")


def choice_command(
    job: ChoiceJob,
    baseline: Annotated[
        bool, Option("Also ask every question without passages (closed book).", needs=options.NEEDS_PASSAGES)
    ] = False,
    out: Annotated[Path | None, Option("Folder for the run: one row per question, and the summary.")] = None,
    force: options.Force = False,
    json: options.PrintJson = False,
) -> None:
    """Let a frozen language model choose among the choices of questions, and judge what it chooses.

    Without --index and --retrieved, the model chooses without passages (closed book). Reports the accuracy, by category
    for the subjects of MMLU, and how well the model's confidence is calibrated. With --out, rerun the command to resume
    a killed run.
    """

    from ralm.answering.evaluation import evaluate_choices
    from ralm.answering.prompts import open_prompt
    from ralm.answering.questions import read_choice_questions
    from ralm.answering.run import CHOICES_KIND, choices_config, run_choices
    from ralm.answering.sources import GivenPassages
    from ralm.cli.answers import print_choices
    from ralm.cli.output import print_cache, print_json
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=CHOICES_KIND, force=force)
    prompt = open_prompt(job.prompt_name)
    questions = read_choice_questions(job.questions, job.fields, limit=job.limit)
    shown = [] if job.demonstrations is None else read_choice_questions(job.demonstrations, job.fields, limit=job.shots)
    found = job.retriever()
    source = job.source(found, lambda file: GivenPassages.read(file, job.fields))
    model = open_model(job.lm, job.model, job.ray)
    reader = job.reading.chosen_reader
    parts: Any = {
        "source": source,
        "reader": reader,
        "demonstrations": shown,
        "options": job.choosing,
    }
    if out is None:
        evaluation = evaluate_choices(questions, model, prompt, baseline=baseline, **parts)
    else:
        evaluation = run_choices(out, questions, model, prompt, baseline=baseline, force=force, **parts)
    if json:
        config = choices_config(questions, model, prompt, **parts)
        print_json({**evaluation.summary(), "config": config})
    else:
        print_choices(evaluation, out)
    print_cache(found)
