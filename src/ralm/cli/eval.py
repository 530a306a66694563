"""`ralm eval`: scores a text with a language model, with and without passages in front.

From here to a log-probability: `open_pipeline` puts the parts together, `evaluation.perplexity.evaluate_text` plans and
retrieves, `reading.score.score_text` reads and mixes, `lm.scoring.Scorer` asks the model, `lm.local.engine` computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import JsonValue

import ralm
from ralm.cli import flags, options, process
from ralm.cli.options import Over, Shared, make_jobs, sharing
from ralm.corpus.documents import Fields
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Option, check_options
from ralm.protocols import Tokenizer
from ralm.settings import PipelineOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """The text and the settings of an evaluation, of which `--over` makes several; UsageError if they do not agree."""

    text: Annotated[
        Path, options.argument("Text to evaluate, or documents as JSON lines, each read on its own.", "TEXTFILE")
    ]
    pipeline: Annotated[PipelineOptions, Option("")]
    retrieved: Annotated[Path | None, Option("Read with the passages that `ralm retrieve` wrote.")] = None
    plan: Annotated[ralm.PlanOptions, Option("What is read for a stride.")]
    limit_tokens: options.LimitTokens = None
    fields: Annotated[Fields, options.FIELDS]

    def __post_init__(self) -> None:
        check_options(self)
        self.plan.check_documents(1)
        self.plan.check_block()
        self.pipeline.check_source(self.retrieved)
        self.pipeline.reading.parts().require_average("a perplexity")

    @property
    def has_passages(self) -> bool:
        """Whether the evaluation reads passages."""
        return bool(self.pipeline.retrieves or self.retrieved)

    def settings(self, user_flags: flags.UserFlags, shared: Shared) -> ralm.ReadingSettings:
        """Open the pipeline of a job; `shared` opens what jobs have in common."""
        from ralm.pipeline import open_pipeline

        pipeline = self.pipeline
        source: Any = None
        if self.retrieved:
            source = shared(ralm.FromFile.read, self.retrieved)
        elif pipeline.retrieves:
            source = shared(ralm.FromRetriever.of_index, pipeline.index, pipeline.retrieval)
        opened = open_pipeline(
            pipeline,
            source=source,
            plan=options.with_query_tokens(self.plan, pipeline.retrieval, user_flags),
            load=process.open_scorer,
            load_pairs=lambda part: shared(process.open_pairs, part.cross_encoder, part.tokens),
        )
        source = opened.source
        return ralm.ReadingSettings(plan=opened.plan, source=source, parts=opened.parts)


def eval_command(
    user_flags: flags.UserFlags,
    make_job: Callable[..., EvaluationJob],
    baseline: Annotated[bool, Option("Also score the same targets without passages; with `over` they always are.")] = (
        False
    ),
    over: Over = None,
    out: Annotated[
        Path | None,
        Option("Folder for the run: one row per token, and the summary; with `over`, the table and its plot."),
    ] = None,
    force: options.Force = False,
) -> flags.TableOutput:
    """Score a text with a frozen language model, with or without retrieved passages in front.

    Without --index and --retrieved, this scores the plain language model. With --over, each row is the result for one
    value, with and without passages; what they share is computed once. With --out, rerun the command to resume a killed
    run.

    Example: `ralm eval my-text.txt -m smollm2 -i my-index --baseline -o my-run`
    """
    jobs = make_jobs(user_flags, make_job, EvaluationJob, over)
    job = next(iter(jobs.by_value.values()))

    from ralm.cli.results import print_evaluation, print_sweep
    from ralm.corpus.sources import read_texts
    from ralm.reading.tokens import read_beginning
    from ralm.runs.run import RUN_KIND, evaluation_config
    from ralm.runs.sweep import SWEEP_KIND
    from ralm.storage.outputs import check_output

    if over and not all(job.has_passages for job in jobs.by_value.values()):
        raise UsageError("`over` compares readings with passages: give `index` or `retrieved`.")
    if out is not None:
        check_output(out, kind=SWEEP_KIND if over else RUN_KIND, force=force)
    text, shared = read_texts(job.text, job.fields), sharing()
    points = {value: job.settings(jobs.user_flags, shared) for value, job in jobs.by_value.items()}
    model = process.open_scorer(job.pipeline.lm, job.pipeline.model)
    beginning = read_beginning(text, model.tokenizer, job.limit_tokens)
    if (baseline or over) and any(_mixes_bos_with_gain(point.plan, model.tokenizer) for point in points.values()):
        process.print_note(
            "as in the published code, the special tokens (BOS) of the tokenizer are read with passages alone, so the "
            "gain is theirs too; with --semantics paper every reading has them"
        )
    limit: Any = {"limit_tokens": job.limit_tokens}
    if over:
        swept = ralm.sweep(text, model, jobs.option, points, out=out, name=job.text, force=force, **limit)
        return flags.TableOutput(swept.summary, partial(print_sweep, swept, out))
    run: Any = ralm.evaluate_text if out is None else partial(ralm.run_evaluation, out, name=job.text, force=force)
    [point] = points.values()
    evaluation = run(text, model, point.plan, source=point.source, parts=point.parts, baseline=baseline, **limit)
    config: JsonValue = evaluation_config(job.text, beginning, model, point, job.limit_tokens)
    return flags.TableOutput(
        lambda: {**evaluation.summary(), "config": config}, partial(print_evaluation, evaluation, out)
    )


def _mixes_bos_with_gain(plan: ralm.PlanOptions, tokenizer: Tokenizer) -> bool:
    """Return whether readings with a passage begin with special tokens, and those without one do not."""
    as_published = plan.semantics == "official" and plan.windows != "rolling"
    return as_published and len(full_tokenizer(tokenizer).special_tokens.before) > 0
