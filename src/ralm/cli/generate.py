"""`ralm generate`: write on from a prompt, with a passage in front that is looked up again every few tokens."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.errors import UsageError
from ralm.pipeline.generation import GenerationOptions
from ralm.protocols import Reader
from ralm.reading.ensemble import EnsembleOptions
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions
from ralm.retrieval.opening import RetrieverOptions

_DEFAULT = GenerationOptions()


def generate(
    context: typer.Context,
    lm: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to go on from; - reads standard input.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Go on from every line of this file instead, all of them together; .jsonl: a JSON string, or an "
            "object with a prompt, a line."
        ),
    ] = None,
    index: Annotated[Path | None, typer.Option(help="Read with passages from this index.")] = None,
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
    reader: options.Reader = "in-context",
    documents: options.Documents = options.ENSEMBLE.documents,
    weights: options.EnsembleWeights = options.ENSEMBLE.weights,
    weights_temperature: options.WeightsTemperature = options.ENSEMBLE.temperature,
    new_tokens: Annotated[int, typer.Option(help="Write at most so many tokens.")] = _DEFAULT.new_tokens,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = _DEFAULT.temperature,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from so many likeliest tokens.", show_default="all")
    ] = _DEFAULT.top_k,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this probability.")] = _DEFAULT.top_p,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be given again.")] = None,
    seed: options.Seed = _DEFAULT.seed,
    stride: options.Stride = _DEFAULT.stride,
    query_tokens: options.QueryTokens = None,
    document_tokens: options.DocumentTokens = _DEFAULT.document_tokens,
    max_length: Annotated[int | None, typer.Option(help="Tokens read at once.", show_default="the model's")] = None,
    bos: options.Bos = _DEFAULT.bos,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also read what was written without passages, and show what they gave.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page that shows where every token came from; with one prompt.")
    ] = None,
    force: options.Force = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each prompt, with every token, and nothing else.")
    ] = False,
) -> None:
    """Generate with In-Context RALM or an ensemble: the text, then which passage each part of it was read with.

    What is written after a prompt does not depend on the other prompts, if there are any.
    """
    _check(prompt, prompts, index, reader, baseline=baseline, report=report)
    ensemble = EnsembleOptions(documents=documents, weights=weights, temperature=weights_temperature)
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
    settings = GenerationOptions(
        new_tokens=new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=tuple(stop or ()),
        seed=seed,
        stride=stride,
        query_tokens=options.query_tokens(choice, query_tokens),
        document_tokens=document_tokens,
        max_length=max_length,
        bos=bos,
    )
    averaged, drawn = reader == "ensemble", temperature > 0
    refuse_idle(
        context,
        Use(f"{options.RETRIEVAL} query_tokens stride", index is not None, "--index"),
        *options.retriever_uses(choice),
        Use("documents weights weights_temperature", averaged, "--reader ensemble"),
        Use("weights_temperature", weights == "similarity", "--weights similarity"),
        Use("top_k top_p", drawn, "a --temperature above 0"),
        Use("seed", drawn or retriever == "random", "a --temperature above 0 or --retriever random"),
        Use("force", report is not None, "--report"),
    )

    from ralm.cli.asked import read_prompts
    from ralm.cli.models import load_model
    from ralm.cli.output import by_prompt, generation_as_json, print_cache, print_generations, print_json
    from ralm.cli.shading import print_report, write_page
    from ralm.evaluation.generated import traced_generation
    from ralm.folders.outputs import check_output_file
    from ralm.pipeline import FromRetriever
    from ralm.pipeline.generation import generate_many
    from ralm.reading.in_context import InContext
    from ralm.runs.report import report_of_generation

    if report is not None:
        check_output_file(report, force)
    texts = read_prompts(prompt, prompts)
    source = None if index is None else FromRetriever.of_index(index, choice)
    model = load_model(lm, dtype, device)
    passages = source.passages if source else ()
    read_as = ensemble if reader == "ensemble" else InContext()
    pieces = generate_many(texts, model, settings, source, reader=read_as)
    written = by_prompt(len(texts), pieces) if json else print_generations(texts, pieces, passages)
    config = {"model": model.config, "passages": source.config if source else None, **_reading(settings, read_as)}
    for text, own in zip(texts, written, strict=True):
        traced = traced_generation(text, own, model, passages, max_length, bos) if baseline or report else None
        if json:
            print_json(generation_as_json(text, own, passages, model.tokenizer, traced))
        elif traced is not None:
            print_report(report_of_generation(traced, config))
        if traced is not None and report is not None:
            write_page(report, report_of_generation(traced, config))
    print_cache(source)


def _check(
    prompt: str | None, prompts: Path | None, index: Path | None, reader: str, *, baseline: bool, report: Path | None
) -> None:
    """Raise UsageError where options do not go together."""
    if (prompt is None) == (prompts is None):
        raise UsageError("give either a PROMPT or --prompts FILE.")
    if reader == "ensemble" and index is None:
        raise UsageError("--reader ensemble reads several passages of an index: give --index too.")
    if (baseline or report) and index is None:
        raise UsageError("--baseline and --report show what passages gave: give --index too.")
    if report is not None and prompts is not None:
        raise UsageError("--report is a page of one text: give a PROMPT, not --prompts.")


def _reading(settings: GenerationOptions, reader: Reader) -> dict[str, JsonValue]:
    """How generation reads, as a run's configuration says it."""
    return {"reader": reader.config, "plan": {"stride": settings.stride, "bos": settings.bos}}
