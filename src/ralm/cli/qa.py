"""`ralm qa`: answers a set of questions with a frozen language model, or chooses among their choices."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final

import ralm
from ralm.answering.options import AnswerSemantics
from ralm.cli import options
from ralm.cli.flags import TableOutput, UserFlags
from ralm.cli.options import Over, Shared, make_jobs, sharing
from ralm.cli.process import open_model, open_pairs
from ralm.errors import UsageError
from ralm.options import Option, check_options
from ralm.settings import PipelineOptions

_SHOTS: Final = 16
_SHOTS_OF_CHOICES: Final = 5


@dataclass(frozen=True, kw_only=True)
class QuestionJob:
    """The questions, the prompt, and how they are answered; UsageError if options do not agree."""

    questions: Annotated[
        str,
        options.argument(
            "File of questions and answers (JSON Lines, DPR's JSON or TSV, SQuAD) or with choices (MMLU's "
            "CSV, a folder of it, JSON Lines), or hf:NAME.",
            "QUESTIONS",
        ),
    ]
    pipeline: Annotated[PipelineOptions, Option("")]
    retrieved: Annotated[Path | None, Option("Read with the passages in this file: questions with `ctxs`.")] = None
    prompt: Annotated[
        str | None,
        Option(
            "Prompt by name (in-context-ralm, replug, chat; with choices: replug-choice, replug-choice-code, "
            "chat-choice), or a TOML file.",
            default_text=f"{options.PROMPT_TEXT}; with choices: replug-choice",
        ),
    ] = None
    demonstrations: Annotated[
        str | None, Option("File of questions with answers to show before each question; see `shots`.")
    ] = None
    shots: Annotated[
        int | None,
        Option(
            "How many demonstrations are shown, of the question's subject, from the beginning of the file.",
            default_text=f"{_SHOTS}; with choices: {_SHOTS_OF_CHOICES}",
        ),
    ] = None
    answering: Annotated[ralm.AnswerOptions, Option("How an answer is drawn.")]
    semantics: Annotated[
        AnswerSemantics, Option("paper or official: follow the paper's text, or its published code, where they differ.")
    ] = "paper"
    fields: Annotated[
        ralm.QuestionFields,
        Option(
            "Fields of a record, such as question=query,answers=gold; `ralm help question-fields` lists the keys.",
            part="keys",
        ),
    ] = field(default_factory=ralm.QuestionFields)
    limit: Annotated[
        int | None, Option("Use only this many questions, with choices of each subject.", default_text="all")
    ] = None
    is_closed_book: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        self.pipeline.check_source(self.retrieved)
        if self.shots is not None and self.demonstrations is None:
            raise UsageError("`shots` has no effect without `demonstrations`.")
        if self.pipeline.reading.reranks and self.retrieved:
            raise UsageError("`rerank` chooses among passages of an index: give `index` instead of `retrieved`.")
        options.check_reranked_questions(self.pipeline.reading)

    @property
    def has_passages(self) -> bool:
        """Whether passages are read."""
        return bool(self.pipeline.retrieves or self.retrieved) and not self.is_closed_book

    @cached_property
    def has_choices(self) -> bool:
        """Whether the questions are multiple choice."""
        from ralm.answering.questions import has_choices

        return has_choices(self.questions, self.fields)

    def point(self, user_flags: UserFlags, shared: Shared) -> dict[str, Any]:
        """Return the arguments of the evaluation; `shared` opens what jobs have in common."""
        from ralm.answering.prompts import chosen_prompt
        from ralm.pipeline import open_pipeline

        pipeline = self.pipeline
        if self.has_choices:
            pipeline.reading.parts().require_average("a choice")
            if "semantics" in user_flags:
                raise UsageError(
                    "`semantics` is of open questions: choices are asked as REPLUG's code does with `prompt` "
                    "replug-choice-code and `join` answers."
                )
        shots = self.shots or (_SHOTS_OF_CHOICES if self.has_choices else _SHOTS)
        questions = shared(_read, self.has_choices, self.questions, self.fields, self.limit)
        shown = [] if self.demonstrations is None else _read(self.has_choices, self.demonstrations, self.fields, shots)
        opened = open_pipeline(
            pipeline,
            source=self._source(shared),
            load=open_model,
            load_pairs=lambda part: shared(open_pairs, part.cross_encoder, part.tokens),
        )
        how: dict[str, Any] = {"demonstrations": shown}
        if self.has_choices:
            prompt, how["options"] = ralm.open_prompt(self.prompt or "replug-choice"), self.answering
        else:
            named, reader = None if self.prompt is None else ralm.open_prompt(self.prompt), opened.parts.reader
            prompt, how["options"] = chosen_prompt(named, opened.model.tokenizer, reader, self.answering, user_flags)
            how["semantics"] = self.semantics
        if self.has_passages:
            how |= {"source": opened.source, "parts": opened.parts}
        return {"questions": questions, "prompt": prompt, **how}

    def _source(self, shared: Shared) -> Any:
        if self.retrieved is not None:
            return shared(ralm.GivenPassages.read, self.retrieved, self.fields)
        pipeline = self.pipeline
        of_index = ralm.FromRetriever.of_index
        return shared(of_index, pipeline.index, pipeline.retrieval) if pipeline.retrieves else None

    def describe(self, point: dict[str, Any]) -> str:
        """Return how the questions were asked, in a sentence."""
        prompt = point["prompt"]
        asked = f"asked with the prompt {prompt.name}"
        if self.has_choices:
            return asked
        why = ", as the model has a chat template" if prompt.chat and self.prompt is None else ""
        return f"{asked}{why}; answers have at most {point['options'].new_tokens} tokens"


def _read(has_choices: bool, source: str, names: ralm.QuestionFields, limit: int | None) -> Any:
    """Return the questions of a source, at most so many."""
    return (ralm.read_choice_questions if has_choices else ralm.read_questions)(source, names, limit=limit)


def qa_command(
    user_flags: UserFlags,
    make_job: Callable[..., QuestionJob],
    baseline: Annotated[bool, Option("Also answer every question without passages (closed book).")] = False,
    over: Over = None,
    out: Annotated[
        Path | None,
        Option(
            "Folder for the run: one row per question, and the summary; with `over`, a run for each value, the table "
            "and its plot."
        ),
    ] = None,
    force: options.Force = False,
) -> TableOutput:
    """Answer questions with a frozen language model, and judge the answers; or let it choose, if they have choices.

    Without --index and --retrieved, the model answers without passages (closed book). Reports exact match, whether the
    answer contains a gold answer, F1, token recall, whether the passages hold an answer, and the log-probability of the
    first gold answer; of choices the accuracy, by category for the subjects of MMLU. --over documents=0,1,2,5 is Figure
    8 of In-Context RALM: 0 is the closed book, and without --reader several passages stand in one prompt. With --out,
    rerun the command to resume a killed run.

    Example: `ralm qa my-questions.jsonl -m smollm2 -i my-index --baseline`
    """

    def make(**values: Any) -> QuestionJob:
        if "documents" not in values:
            return make_job(**values)
        several = {} if "reader" in user_flags else {"reader": "concatenation"}
        is_closed = values["documents"] == 0
        job = make_job(**several, documents=2 if is_closed else values["documents"])  # any number that readers take
        return replace(job, is_closed_book=is_closed)

    jobs = make_jobs(user_flags, make, QuestionJob, over)

    from ralm.answering.evaluation import evaluate_answers
    from ralm.answering.run import ANSWERS_KIND, CHOICES_KIND, questions_config, sweep_answers
    from ralm.cli.output import print_line
    from ralm.cli.results import print_answers, print_sweep
    from ralm.runs.sweep import SWEEP_KIND
    from ralm.storage.outputs import check_output

    job, shared = next(iter(jobs.by_value.values())), sharing()
    if out is not None:
        kind = SWEEP_KIND if over else CHOICES_KIND if job.has_choices else ANSWERS_KIND
        check_output(out, kind=kind, force=force)
    points = {value: job.point(jobs.user_flags, shared) for value, job in jobs.by_value.items()}
    model = open_model(job.pipeline.lm, job.pipeline.model)
    if over:
        swept = sweep_answers(jobs.option, points, model, baseline=baseline, out=out, force=force)
        described = dict.fromkeys(job.describe(points[value]) for value, job in jobs.by_value.items())

        def print_text() -> None:
            print_sweep(swept, out)
            for how in described:
                print_line(f"  {how}")

        return TableOutput(swept.summary, print_text)
    [point] = points.values()
    asked = {**point, "model": model}
    run: Any = evaluate_answers if out is None else partial(ralm.run_questions, out, force=force)
    evaluation = run(baseline=baseline, **asked)
    return TableOutput(
        lambda: {**evaluation.summary(), "config": questions_config(**asked)},
        partial(print_answers, evaluation, out, job.describe(point)),
    )
