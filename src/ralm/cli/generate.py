"""`ralm generate`: write on from a prompt, with a passage in front that is looked up again every few tokens."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.reading.generation import GenerationOptions
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions

_DEFAULT = GenerationOptions()


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to go on from; - reads standard input.", show_default=False)],
    lm: options.Model,
    index: Annotated[Path | None, typer.Option(help="Read with passages from this index.")] = None,
    retriever: options.Retriever = "bm25",
    query_encoder: options.QueryEncoder = None,
    any_encoder: options.AnyEncoder = False,
    nprobe: options.Nprobe = None,
    ef_search: options.EfSearch = None,
    fusion: options.Fusion = options.FUSION.method,
    dense_weight: options.DenseWeight = options.FUSION.dense_weight,
    forbidden_titles: options.ForbiddenTitles = None,
    forbidden_documents: options.ForbiddenDocuments = None,
    cache: options.Cache = None,
    new_tokens: Annotated[int, typer.Option(help="Write at most so many tokens.")] = _DEFAULT.new_tokens,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = _DEFAULT.temperature,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this probability.")] = _DEFAULT.top_p,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be given again.")] = None,
    seed: options.Seed = _DEFAULT.seed,
    stride: options.Stride = _DEFAULT.stride,
    query_tokens: options.QueryTokens = None,
    document_tokens: options.DocumentTokens = _DEFAULT.document_tokens,
    max_length: Annotated[int | None, typer.Option(help="Tokens read at once.", show_default="the model's")] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Generate with In-Context RALM: the text as it is written, then which passage each part of it was read with."""
    choice = options.RetrieverChoice(
        name=retriever,
        seed=seed,
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
        top_p=top_p,
        stop=tuple(stop or ()),
        seed=seed,
        stride=stride,
        query_tokens=choice.query_tokens(query_tokens),
        document_tokens=document_tokens,
        max_length=max_length,
    )

    from ralm.cli.loading import open_retriever, read_prompt
    from ralm.cli.models import load_model
    from ralm.cli.output import print_cache, print_generation, print_json, spans_as_json
    from ralm.reading.generation import generate as write_on
    from ralm.reading.generation import spans

    text = read_prompt(prompt)
    source = None if index is None else open_retriever(index, choice)
    model = load_model(lm, dtype, device)
    finder, passages = (source.retriever, source.passages) if source else (None, ())
    pieces = write_on(text, model, settings, finder, passages)
    if json:
        print_json({"prompt": text, "spans": spans_as_json(spans(pieces), passages)})
    else:
        print_generation(text, pieces, passages)
    print_cache(source)
