"""`ralm choice`: multiple choice with a frozen language model, with and without passages."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ralm.answering.options import ChoiceFields, ChoiceOptions
from ralm.cli import options
from ralm.cli.asking import AskingJob
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.models import open_model
from ralm.lm.options import ModelOptions
from ralm.options import Needs, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJob(AskingJob):
    """Which questions a model chooses the answers of, and how.

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
            default_said="text: replug, which does not show the choices; else replug-choice",
        ),
    ] = None
    demonstrations: Annotated[
        str | None, Option("File or folder of questions to show with their answers before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int,
        Option(
            "Most demonstrations that are shown, from the beginning of those of the question's subject.",
            needs=Needs("`demonstrations`", lambda job: job.demonstrations is not None),
        ),
    ] = 5
    choosing: Annotated[ChoiceOptions, Option("How an answer is chosen.")] = field(default_factory=ChoiceOptions)
    fields: Annotated[
        ChoiceFields,
        Option(
            "Where a record has the question.",
            needs=Needs("records with named fields, such as JSON Lines", lambda job: job.has_fields),
        ),
    ] = field(default_factory=ChoiceFields)
    limit: Annotated[int | None, Option("Use only this many questions of each subject.", default_said="all")] = None
    model: Annotated[ModelOptions, Option("How the model runs.")] = field(default_factory=ModelOptions)

    @property
    def has_fields(self) -> bool:
        """Whether questions, demonstrations or passages are in records with named fields."""
        from ralm.answering.questions import has_fields

        sources = (self.questions, self.demonstrations, self.retrieved)
        return any(has_fields(str(source)) for source in sources if source is not None)

    @property
    def prompt_name(self) -> str:
        """The prompt that is used if none is given: texts are judged as answers to the bare question."""
        return self.prompt or ("replug" if self.choosing.score == "text" else "replug-choice")


def choice(
    context: typer.Context,
    job: ChoiceJob,
    baseline: Annotated[bool, Option("Also ask every question without passages (closed book).")] = False,
    out: Annotated[Path | None, Option("Folder for the run: one row per question, and the summary.")] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Let a frozen language model choose among the choices of questions, and judge what it chooses.

    Without --index and --retrieved, the model chooses without passages (closed book). Reports the accuracy, by category
    for the subjects of MMLU, and how well the model's confidence is calibrated. With --out, rerun the command to resume
    a killed run.
    """
    refuse_idle(
        context,
        Use(job),
        *options.model_uses(job.lm),
        Use("baseline", job.has_passages, "`index` or `retrieved`"),
        Use("force", out is not None, "`out`"),
    )

    from ralm.answering.evaluation import evaluate_choices
    from ralm.answering.prompts import open_prompt
    from ralm.answering.questions import read_choice_questions
    from ralm.answering.run import CHOICES_KIND, choices_config, run_choices
    from ralm.answering.sources import given_passages
    from ralm.cli.answers import print_choices
    from ralm.cli.output import print_cache, print_json
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=CHOICES_KIND, force=force)
    prompt = open_prompt(job.prompt_name)
    questions = read_choice_questions(job.questions, job.fields, limit=job.limit)
    shown = [] if job.demonstrations is None else read_choice_questions(job.demonstrations, job.fields, limit=job.shots)
    found = job.retriever()
    source = job.source(found, lambda file: given_passages(file, job.fields))
    model = open_model(job.lm, job.model, job.ray)
    reader = job.reading.chosen_reader
    parts: Any = {
        "source": source,
        "reader": reader,
        "demonstrations": shown,
        "options": job.choosing,
        "baseline": baseline,
    }
    if out is None:
        evaluation = evaluate_choices(questions, model, prompt, **parts)
    else:
        evaluation = run_choices(out, questions, model, prompt, force=force, **parts)
    if json:
        config = choices_config(questions, model, prompt, source, reader, shown, job.choosing)
        print_json({**evaluation.summary(), "config": config})
    else:
        print_choices(evaluation, out)
    print_cache(found)
