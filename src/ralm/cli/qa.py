"""`ralm qa`: answers questions with a frozen language model, with and without passages, and judges the answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ralm.answering.options import AnswerOptions, AnswerSemantics, QuestionFields
from ralm.cli import options
from ralm.cli.asking import AskingJob
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.models import open_model
from ralm.lm.options import ModelOptions
from ralm.options import Needs, Option

if TYPE_CHECKING:
    from ralm.answering.prompts import QuestionPrompt
    from ralm.answering.questions import Question
    from ralm.answering.sources import QuestionSource
    from ralm.protocols import WritingModel
    from ralm.reading.sources import FromRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionJob(AskingJob):
    """Which questions are answered, by what, and how.

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
            default_said="ensemble: replug, else in-context-ralm",
        ),
    ] = None
    demonstrations: Annotated[
        Path | None, Option("File of questions with answers to show before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int,
        Option(
            "How many demonstrations are shown, from the beginning of the file.",
            needs=Needs("`demonstrations`", lambda job: job.demonstrations is not None),
        ),
    ] = 16
    answering: Annotated[AnswerOptions, Option("How an answer is drawn.")] = field(default_factory=AnswerOptions)
    semantics: Annotated[
        AnswerSemantics,
        Option("paper or official: follow the paper's text, or its published code, where they differ."),
    ] = "paper"
    fields: Annotated[QuestionFields, Option("Where a record has the question.")] = field(
        default_factory=QuestionFields
    )
    limit: Annotated[int | None, Option("Use only this many questions.", default_said="all")] = None
    model: Annotated[ModelOptions, Option("How the model runs.")] = field(default_factory=ModelOptions)

    @property
    def prompt_name(self) -> str:
        """The prompt that is used: that of the paper which has this reader, if none is given."""
        return self.prompt or options.paper_prompt(self.reading)

    def opened(self) -> "OpenedQuestions":
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
        return OpenedQuestions(
            questions=questions,
            model=open_model(self.lm, self.model, self.ray),
            prompt=prompt,
            found=found,
            source=self.source(found, lambda file: GivenPassages.read(file, self.fields)),
            how={"demonstrations": shown, "options": self.answering, "semantics": self.semantics},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedQuestions:
    """What a job reads and loads: questions, model, prompt, where passages come from (`found` searches the index, if
    there is one), and how questions are answered besides."""

    questions: "Sequence[Question]"
    model: "WritingModel"
    prompt: "QuestionPrompt"
    found: "FromRetriever | None"
    source: "QuestionSource | None"
    how: dict[str, Any]


def qa(
    context: typer.Context,
    job: QuestionJob,
    baseline: Annotated[bool, Option("Also answer every question without passages (closed book).")] = False,
    out: Annotated[Path | None, Option("Folder for the run: one row per question, and the summary.")] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Answer questions with a frozen language model, and judge the answers.

    Without --index and --retrieved, the model answers without passages (closed book). Reports exact match, F1, whether
    the passages hold an answer, and the log-probability of the first gold answer. With --out, rerun the command to
    resume a killed run.
    """
    refuse_idle(
        context,
        Use(job),
        *options.model_uses(job.lm),
        Use("baseline", job.has_passages, "`index` or `retrieved`"),
        Use("join", job.reading.reader == "ensemble", '`reader="ensemble"`'),
        Use("force", out is not None, "`out`"),
    )

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
