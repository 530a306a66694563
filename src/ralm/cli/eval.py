"""`ralm eval`: what a text is worth to a language model, with passages in front and without."""

from collections.abc import Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import typer

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.errors import UsageError
from ralm.lm.local.options import ModelOptions
from ralm.options import Needs, Option, check_options
from ralm.reading.concatenation import ConcatenationOptions
from ralm.reading.ensemble import EnsembleOptions
from ralm.reading.plan import PlanOptions
from ralm.reranking.options import RerankOptions
from ralm.retrieval.options import RetrieverOptions

if TYPE_CHECKING:
    from ralm.pipeline import ReaderOptions

ReaderName = Literal["in-context", "ensemble", "concatenation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an evaluation reads, and how; a sweep does several.

    Raises UsageError where options do not go together.
    """

    text: Annotated[Path, typer.Argument(metavar="TEXTFILE", help="Text to evaluate, UTF-8.", show_default=False)]
    lm: options.Model
    index: Annotated[Path | None, Option("Read with passages from this index.")] = None
    retrieved: Annotated[Path | None, Option("Read with the passages that `ralm retrieve` wrote.")] = None
    retrieval: Annotated[
        RetrieverOptions,
        Option("How passages are retrieved.", needs=Needs("`index`", lambda job: job.index is not None)),
    ] = field(default_factory=RetrieverOptions)
    reranking: Annotated[RerankOptions, Option("How one of several passages is chosen.")] = field(
        default_factory=RerankOptions
    )
    rerank_lm: Annotated[
        str | None,
        Option(
            "Model to rank with (zero-shot).",
            default_said="the reading model",
            needs=Needs('`rerank="zero-shot"`', lambda job: job.reranking.method == "zero-shot"),
        ),
    ] = None
    reader: Annotated[
        ReaderName,
        Option(
            "Read one passage, or several: each alone, and what they predict averaged (ensemble: REPLUG); or all in "
            "one context (concatenation)."
        ),
    ] = "in-context"
    ensemble: Annotated[
        EnsembleOptions,
        Option("How an ensemble reads.", needs=Needs('`reader="ensemble"`', lambda job: job.reader == "ensemble")),
    ] = field(default_factory=EnsembleOptions)
    concatenation: Annotated[
        ConcatenationOptions,
        Option(
            "How several passages stand in one context.",
            needs=Needs('`reader="concatenation"`', lambda job: job.reader == "concatenation"),
        ),
    ] = field(default_factory=ConcatenationOptions)
    plan: Annotated[
        PlanOptions, Option("What is read for a stride."), Flags(default_said=options.QUERY_TOKENS_SAID)
    ] = field(default_factory=PlanOptions)
    model: Annotated[ModelOptions, Option("How the models run.")] = field(default_factory=ModelOptions)
    limit_tokens: options.LimitTokens = None

    def __post_init__(self) -> None:
        check_options(self)
        self.plan.check_documents(1)
        if self.index and self.retrieved:
            raise UsageError("`index` and `retrieved` are two sources of passages: give one of them.")
        reranks = self.reranking.method != "none"
        if reranks and not self.has_passages:
            raise UsageError("`rerank` chooses among retrieved passages: give `index` or `retrieved` too.")
        if self.reader != "in-context" and (reranks or not self.has_passages):
            raise UsageError(
                f'`reader="{self.reader}"` reads all of `index` or `retrieved`: give one of them, and no `rerank`.'
            )

    @property
    def has_passages(self) -> bool:
        """Whether anything is retrieved."""
        return bool(self.index or self.retrieved)

    @property
    def reads(self) -> "ReaderOptions":
        """The options of the reader that is chosen."""
        match self.reader:
            case "in-context":
                return self.reranking
            case "ensemble":
                return self.ensemble
            case "concatenation":
                return self.concatenation

    @property
    def uses(self) -> tuple[Use, ...]:
        """What its options go with."""
        asks = self.index is not None or self.plan.windows == "rolling"
        return Use(self), Use("query_tokens", asks, "`index`")

    def settled(self, given: Container[str]) -> Self:
        """The same with the defaults that follow from several options, and without what has no effect."""
        return replace(
            self,
            plan=options.with_query_tokens(self.plan, self.retrieval, given),
            rerank_lm=self.rerank_lm if self.reranking.method == "zero-shot" else None,
        )


def evaluate(
    context: typer.Context,
    job: Job,
    baseline: Annotated[bool, Option("Score the same targets without passages too.")] = False,
    out: Annotated[Path | None, Option("Folder for the run: a row per token, and the summary.")] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Score a text with a frozen language model, with retrieved passages in front and without.

    Without --index or --retrieved nothing is retrieved: the plain language model. With --out a run that was killed goes
    on where it was when it is started again.
    """
    refuse_idle(
        context,
        *job.uses,
        Use("baseline", job.has_passages, "`index` or `retrieved`"),
        Use("force", out is not None, "`out`"),
    )
    job = job.settled(given_options(context))

    from ralm.cli.loading import open_source
    from ralm.cli.models import journals, load_model
    from ralm.cli.output import print_cache, print_evaluation, print_json
    from ralm.corpus.text import read_text
    from ralm.evaluation.perplexity import evaluate_text
    from ralm.folders.outputs import check_output
    from ralm.runs.run import KIND, evaluation_config, write_run

    if out is not None:
        check_output(out, kind=KIND, force=force)
    content = read_text(job.text)
    source = open_source(job.index, job.retrieved, job.retrieval)
    model = load_model(job.lm, job.model)
    ranker = load_model(job.rerank_lm, job.model) if job.rerank_lm else None
    config = evaluation_config(job.text, content, model, job.plan, source, job.limit_tokens, job.reads, ranker)
    with journals(out, config, [model, ranker], force=force):
        evaluation = evaluate_text(
            content,
            model,
            job.plan,
            source=source,
            reader=job.reads,
            ranker=ranker,
            limit_tokens=job.limit_tokens,
            baseline=baseline,
        )
        if out is not None:
            write_run(out, evaluation, config, force=force)
    if json:
        print_json(evaluation.summary(config))
    else:
        print_evaluation(evaluation, out)
    print_cache(source)
