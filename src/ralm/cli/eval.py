"""`ralm eval`: what a text is worth to a language model, with passages in front and without."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ralm.cli import options
from ralm.cli.idle import Use, idle_options, refuse
from ralm.errors import UsageError
from ralm.reading.concatenation import ConcatenationOptions
from ralm.reading.ensemble import EnsembleOptions
from ralm.reading.in_context import InContext
from ralm.reading.plan import PlanOptions
from ralm.reranking.options import Method, RerankOptions
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions
from ralm.retrieval.opening import RetrieverOptions

if TYPE_CHECKING:
    from ralm.lm.local.model import Dtype
    from ralm.protocols import Reader

ReaderName = Literal["in-context", "ensemble", "concatenation"]

_RERANK = RerankOptions()
_CONCATENATION = ConcatenationOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an evaluation is asked to do: the options of the command line, checked and put together."""

    text: Path
    lm: str
    rerank_lm: str | None
    dtype: "Dtype"
    device: str
    compile_layers: bool
    index: Path | None
    retrieved: Path | None
    choice: RetrieverOptions
    plan: PlanOptions
    reader: "Reader"
    reranking: RerankOptions
    limit_tokens: int | None
    baseline: bool
    out: Path | None
    force: bool
    json: bool
    idle: dict[str, str] = field(compare=False)


def evaluate(
    context: typer.Context,
    text: Annotated[Path, typer.Argument(metavar="TEXTFILE", help="Text to evaluate, UTF-8.", show_default=False)],
    lm: options.Model,
    index: Annotated[Path | None, typer.Option(help="Read with passages from this index.")] = None,
    retrieved: Annotated[Path | None, typer.Option(help="Read with the passages that `ralm retrieve` wrote.")] = None,
    retriever: options.Retriever = "bm25",
    vectors: options.Vectors = None,
    query_encoder: options.QueryEncoder = None,
    any_encoder: options.AnyEncoder = False,
    nprobe: options.Nprobe = None,
    ef_search: options.EfSearch = None,
    fusion: options.Fusion = options.FUSION.method,
    dense_weight: options.DenseWeight = options.FUSION.dense_weight,
    forbidden_titles: options.ForbiddenTitles = None,
    forbidden_documents: options.ForbiddenDocuments = None,
    cache: options.Cache = None,
    rerank: Annotated[
        Method, typer.Option(help="Choose among candidates: by a language model, by the targets, or at random.")
    ] = _RERANK.method,
    candidates: Annotated[int, typer.Option(help="Passages to choose from.")] = _RERANK.candidates,
    rerank_tokens: Annotated[
        int, typer.Option(help="Rank by so many last tokens of the prefix (zero-shot).")
    ] = _RERANK.tokens,
    rerank_lm: Annotated[
        str | None, typer.Option(help="Model to rank with (zero-shot).", show_default="the reading model")
    ] = None,
    reader: Annotated[
        ReaderName,
        typer.Option(
            help="Read one passage, or several: each alone, and what they predict averaged (ensemble: REPLUG); or all "
            "in one context (concatenation)."
        ),
    ] = "in-context",
    documents: Annotated[
        int | None,
        typer.Option(
            help="Passages that are read together.",
            show_default=f"ensemble: {options.ENSEMBLE.documents}; concatenation: {_CONCATENATION.documents}",
        ),
    ] = None,
    cut_together: Annotated[
        bool,
        typer.Option(
            "--cut-together",
            help="Concatenation: cut all passages together to --document-tokens (REPLUG's code).",
        ),
    ] = False,
    weights: options.EnsembleWeights = options.ENSEMBLE.weights,
    weights_temperature: options.WeightsTemperature = options.ENSEMBLE.temperature,
    seed: options.Seed = 0,
    stride: options.Stride = options.PLAN.stride,
    query_tokens: options.QueryTokens = None,
    document_tokens: options.DocumentTokens = options.PLAN.document_tokens,
    max_length: options.MaxLength = options.PLAN.max_length,
    windows: options.Windows = options.PLAN.windows,
    block: options.Block = options.PLAN.block,
    semantics: options.Semantics = options.PLAN.semantics,
    bos: options.Bos = options.PLAN.bos,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    compile_layers: options.Compile = False,
    limit_tokens: options.LimitTokens = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Score the same targets without passages too.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the run: a row per token, and the summary.")] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Score a text with a frozen language model, with retrieved passages in front and without.

    Without --index or --retrieved nothing is retrieved: the plain language model. With --out a run that was killed goes
    on where it was when it is started again.
    """
    if index and retrieved:
        raise UsageError("--index and --retrieved are two sources of passages: give one of them.")
    choice = RetrieverOptions(
        retriever=retriever,
        seed=seed,
        vectors=vectors,
        query_encoder=query_encoder,
        any_encoder=any_encoder,
        search=DenseSearchOptions(nprobe=nprobe, ef_search=ef_search),
        fusion=FusionOptions(method=fusion, dense_weight=dense_weight),
        forbidden_titles=forbidden_titles,
        forbidden_documents=forbidden_documents,
        cache=cache,
    )
    plan = PlanOptions(
        semantics=semantics,
        stride=stride,
        query_tokens=options.query_tokens(choice, query_tokens),
        document_tokens=document_tokens,
        max_length=max_length,
        windows=windows,
        block=block,
        bos=bos,
    )
    plan.check_documents(1)
    if rerank != "none" and not (index or retrieved):
        raise UsageError("--rerank chooses among retrieved passages: give --index or --retrieved too.")
    if reader != "in-context" and (rerank != "none" or not (index or retrieved)):
        raise UsageError(f"--reader {reader} reads all of --index or --retrieved: give one of them, and no --rerank.")
    averaged, seeded = reader == "ensemble", rerank == "random" or retriever == "random"
    idle = idle_options(
        context,
        [
            Use(options.RETRIEVAL, index is not None, "--index"),
            *options.retriever_uses(choice),
            Use("query_tokens", index is not None or windows == "rolling", "--index"),
            Use("baseline", bool(index or retrieved), "--index or --retrieved"),
            Use("candidates", rerank != "none", "--rerank"),
            Use("rerank_tokens rerank_lm", rerank == "zero-shot", "--rerank zero-shot"),
            Use("documents", reader != "in-context", "--reader ensemble or concatenation"),
            Use("cut_together", reader == "concatenation", "--reader concatenation"),
            Use("weights weights_temperature", averaged, "--reader ensemble"),
            Use("weights_temperature", weights == "similarity", "--weights similarity"),
            Use("seed", seeded, "--retriever random or --rerank random"),
            Use("block", windows == "blocked", "--windows blocked"),
            Use("force", out is not None, "--out"),
        ],
    )
    job = Job(
        text=text,
        lm=lm,
        rerank_lm=rerank_lm if rerank == "zero-shot" else None,
        dtype=dtype,
        device=device,
        compile_layers=compile_layers,
        index=index,
        retrieved=retrieved,
        choice=choice,
        plan=plan,
        reader=_reader_options(
            reader,
            documents,
            EnsembleOptions(weights=weights, temperature=weights_temperature),
            ConcatenationOptions(cut_together=cut_together),
        ),
        reranking=RerankOptions(method=rerank, candidates=candidates, tokens=rerank_tokens, seed=seed)
        if rerank != "none"
        else RerankOptions(),
        limit_tokens=limit_tokens,
        baseline=baseline,
        out=out,
        force=force,
        json=json,
        idle=idle,
    )
    do: Callable[[Job], None] = context.obj or run
    do(job)


def _reader_options(
    name: ReaderName,
    documents: int | None,
    ensemble: EnsembleOptions,
    concatenation: ConcatenationOptions,
) -> "Reader":
    match name:
        case "in-context":
            return InContext()
        case "ensemble":
            return ensemble if documents is None else replace(ensemble, documents=documents)
        case "concatenation":
            return concatenation if documents is None else replace(concatenation, documents=documents)


def run(job: Job) -> None:
    """Evaluate, write the run where one is asked for, and print the measures; refuse options that do nothing."""
    refuse(job.idle)

    from ralm.cli.models import load_model
    from ralm.cli.output import print_cache, print_evaluation, print_json
    from ralm.corpus.text import read_text
    from ralm.evaluation.perplexity import evaluate_text
    from ralm.folders.outputs import check_output
    from ralm.pipeline import open_source
    from ralm.runs.run import KIND, evaluation_config
    from ralm.runs.start import run_evaluation

    if job.out is not None:
        check_output(job.out, kind=KIND, force=job.force)
    content = read_text(job.text)
    source = open_source(job.index, job.retrieved, job.choice) if job.index or job.retrieved else None
    model = load_model(job.lm, job.dtype, job.device, job.compile_layers)
    ranker = load_model(job.rerank_lm, job.dtype, job.device, job.compile_layers) if job.rerank_lm else None
    parts: Any = {
        "source": source,
        "reranker": job.reranking.reranker(ranker),
        "reader": job.reader,
        "limit_tokens": job.limit_tokens,
    }
    if job.out is None:
        evaluation = evaluate_text(content, model, job.plan, baseline=job.baseline, **parts)
    else:
        evaluation = run_evaluation(
            job.out, content, model, job.plan, baseline=job.baseline, name=job.text, force=job.force, **parts
        )
    if job.json:
        print_json(evaluation.summary(evaluation_config(job.text, content, model, job.plan, **parts)))
    else:
        print_evaluation(evaluation, job.out)
    print_cache(source)
