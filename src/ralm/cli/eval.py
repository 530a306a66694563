"""`ralm eval`: what a text is worth to a language model, with passages in front and without."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ralm.cli import options
from ralm.errors import UsageError
from ralm.reading.ensemble import EnsembleOptions, Weights
from ralm.reading.plan import PlanOptions
from ralm.reranking.options import Method, RerankOptions
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions

_RERANK = RerankOptions()
_ENSEMBLE = EnsembleOptions()


def evaluate(
    text: Annotated[Path, typer.Argument(metavar="TEXTFILE", help="Text to evaluate, UTF-8.", show_default=False)],
    lm: options.Model,
    index: Annotated[Path | None, typer.Option(help="Read with passages from this index.")] = None,
    retrieved: Annotated[Path | None, typer.Option(help="Read with the passages that `ralm retrieve` wrote.")] = None,
    retriever: options.Retriever = "bm25",
    query_encoder: options.QueryEncoder = None,
    any_encoder: options.AnyEncoder = False,
    nprobe: options.Nprobe = None,
    ef_search: options.EfSearch = None,
    fusion: options.Fusion = options.FUSION.method,
    dense_weight: options.DenseWeight = options.FUSION.dense_weight,
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
        Literal["in-context", "ensemble"],
        typer.Option(help="Read one passage, or several, each alone, and average what they predict (REPLUG)."),
    ] = "in-context",
    documents: Annotated[int, typer.Option(help="Passages of an ensemble.")] = _ENSEMBLE.documents,
    weights: Annotated[
        Weights, typer.Option(help="Weights of an ensemble: softmax of the scores of retrieval, or all the same.")
    ] = _ENSEMBLE.weights,
    weights_temperature: Annotated[
        float, typer.Option(help="Divide the scores by this before the softmax.")
    ] = _ENSEMBLE.temperature,
    seed: options.Seed = 0,
    stride: options.Stride = options.PLAN.stride,
    query_tokens: options.QueryTokens = None,
    document_tokens: options.DocumentTokens = options.PLAN.document_tokens,
    max_length: options.MaxLength = options.PLAN.max_length,
    windows: options.Windows = options.PLAN.windows,
    block: options.Block = options.PLAN.block,
    semantics: options.Semantics = options.PLAN.semantics,
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
    choice = options.RetrieverChoice(
        name=retriever,
        seed=seed,
        query_encoder=query_encoder,
        any_encoder=any_encoder,
        search=DenseSearchOptions(nprobe=nprobe, ef_search=ef_search),
        fusion=FusionOptions(method=fusion, dense_weight=dense_weight),
        cache=cache,
    )
    plan = PlanOptions(
        semantics=semantics,
        stride=stride,
        query_tokens=choice.query_tokens(query_tokens),
        document_tokens=document_tokens,
        max_length=max_length,
        windows=windows,
        block=block,
    )
    reranking = RerankOptions(method=rerank, candidates=candidates, tokens=rerank_tokens, seed=seed)
    ensemble = EnsembleOptions(documents=documents, weights=weights, temperature=weights_temperature)
    if rerank != "none" and not (index or retrieved):
        raise UsageError("--rerank chooses among retrieved passages: give --index or --retrieved too.")
    if rerank_lm and rerank != "zero-shot":
        raise UsageError("--rerank-lm names the model that ranks: give --rerank zero-shot with it.")
    if reader == "ensemble" and (rerank != "none" or not (index or retrieved)):
        raise UsageError("--reader ensemble reads all of --index or --retrieved: give one of them, and no --rerank.")
    reading = ensemble if reader == "ensemble" else reranking

    from ralm.cli.loading import journals, load_model, open_source
    from ralm.cli.output import print_cache, print_evaluation, print_json
    from ralm.corpus.text import read_text
    from ralm.evaluation.perplexity import evaluate_text
    from ralm.evaluation.run import evaluation_config, write_run
    from ralm.folders import check_output

    if out is not None:
        check_output(out, force)
    content = read_text(text)
    source = open_source(index, retrieved, choice)
    model = load_model(lm, dtype, device, compile_layers)
    ranker = load_model(rerank_lm, dtype, device, compile_layers) if rerank_lm else None
    config = evaluation_config(text, content, model, plan, source, limit_tokens, reading, ranker)
    with journals(out, config, [model, ranker], force=force):
        evaluation = evaluate_text(
            content,
            model,
            plan,
            source=source,
            reader=reading,
            ranker=ranker,
            limit_tokens=limit_tokens,
            baseline=baseline,
        )
        if out is not None:
            write_run(out, evaluation, config, force=force)
    if json:
        print_json(evaluation.summary(config))
    else:
        print_evaluation(evaluation, out)
    print_cache(source)
