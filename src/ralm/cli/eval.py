"""`ralm eval`: scores a text with a language model, with and without passages in front."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self

import ralm
from ralm.cli import flags, models, options
from ralm.corpus.files import read_text
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Needs, Option, check_options
from ralm.protocols import Tokenizer
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions

_RETRIEVES: Final = Needs("`index`", lambda job: job.index is not None or job.plan.windows == "rolling")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """What an evaluation reads, and how; a sweep runs several.

    Raises UsageError if options do not go together.
    """

    text: Annotated[Path, options.argument("Text to evaluate, UTF-8.", "TEXTFILE")]
    lm: options.ModelName
    index: options.ReadIndex = None
    retrieved: Annotated[Path | None, Option("Read with the passages that `ralm retrieve` wrote.")] = None
    retrieval: options.Retrieval
    reading: Annotated[ReadingOptions, Option("How passages are read."), flags.Flags(without=("contrast",))]
    plan: Annotated[
        PlanOptions,
        Option("What is read for a stride."),
        flags.Flags(default_text=options.QUERY_TOKENS_TEXT, needs={"query_tokens": _RETRIEVES}),
    ]
    model: options.Model
    ray: options.ModelRay = None
    limit_tokens: options.LimitTokens = None

    def __post_init__(self) -> None:
        check_options(self)
        self.plan.check_documents(1)
        options.check_passage_sources(self.index, self.retrieved, self.reading)
        self.reading.parts().require_average("a perplexity")
        if self.reading.reranks and not self.has_passages:
            raise UsageError("`rerank` chooses among retrieved passages: give `index` or `retrieved` too.")

    @property
    def has_passages(self) -> bool:
        """Whether the evaluation reads passages."""
        return bool(self.index or self.retrieved)

    def settled(self, given: flags.Given) -> Self:
        """The same job with the defaults that depend on several options, without options that have no effect."""
        reading = replace(self.reading, rerank_lm=self.reading.ranks_with)
        return replace(self, plan=options.with_query_tokens(self.plan, self.retrieval, given), reading=reading)


def eval_command(
    given: flags.Given,
    job: EvaluationJob,
    baseline: Annotated[
        bool, Option("Also score the same targets without passages.", needs=options.NEEDS_PASSAGES)
    ] = False,
    out: Annotated[Path | None, Option("Folder for the run: one row per token, and the summary.")] = None,
    force: options.Force = False,
) -> flags.Output:
    """Score a text with a frozen language model, with or without retrieved passages in front.

    Without --index and --retrieved, this scores the plain language model. With --out, rerun the command to resume a
    killed run.
    """
    job = job.settled(given)

    from ralm.cli.process import print_note
    from ralm.cli.results import print_evaluation
    from ralm.runs.run import RUN_KIND, evaluation_config
    from ralm.storage.outputs import check_output

    if out is not None:
        check_output(out, kind=RUN_KIND, force=force)
    text, reading = read_text(job.text), job.reading
    source = ralm.open_source(job.index, job.retrieved, job.retrieval) if job.has_passages else None
    model = models.open_scorer(job.lm, job.model, job.ray)
    if baseline and _mixes_bos_with_gain(job.plan, model.tokenizer):
        print_note(
            "as in the published code, the special tokens (BOS) of the tokenizer are read with passages alone, so the "
            "gain is theirs too; with --semantics paper every reading has them"
        )
    ranks = reading.rerank_lm
    ranker = models.open_scorer(ranks, job.model.of(ranks, job.lm), job.ray) if ranks else None
    parts: Any = {
        "source": source,
        "parts": reading.parts(reading.reranking.reranker(ranker)),
        "limit_tokens": job.limit_tokens,
    }
    run = ralm.evaluate_text if out is None else partial(ralm.run_evaluation, out, name=job.text, force=force)
    evaluation = run(text, model, job.plan, baseline=baseline, **parts)
    return flags.Output(
        lambda: evaluation.summary(evaluation_config(job.text, evaluation.prepared.text, model, job.plan, **parts)),
        partial(print_evaluation, evaluation, out),
    )


def _mixes_bos_with_gain(plan: PlanOptions, tokenizer: Tokenizer) -> bool:
    """Whether readings with a passage begin with special tokens, and those without one do not."""
    as_published = plan.semantics == "official" and plan.windows != "rolling"
    return as_published and len(full_tokenizer(tokenizer).special_tokens.before) > 0
