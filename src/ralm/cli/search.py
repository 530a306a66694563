"""`ralm search`: ask an index."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.messages import note
from ralm.errors import UsageError
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions
from ralm.retrieval.opening import RetrieverOptions


def search(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    query: Annotated[str | None, typer.Argument(help="What to look for.", show_default=False)] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Ask every line of this file instead; .jsonl: a JSON string, or an object with a query, a line. "
            "Answers as JSON lines, in order."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Passages a query.")] = 10,
    retriever: options.Retriever = "bm25",
    seed: options.Seed = 0,
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
    json: options.Json = False,
) -> None:
    """Find the passages of an index that match a query best."""
    from ralm.asking import ask
    from ralm.cli.asked import read_queries
    from ralm.cli.output import hits_as_json, print_cache, print_json, print_passages
    from ralm.pipeline import FromRetriever

    if (query is None) == (queries is None):
        raise UsageError("give either a QUERY or --queries FILE.")
    asked = read_queries(query, queries)
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
    refuse_idle(context, *options.retriever_uses(choice), Use("seed", retriever == "random", "--retriever random"))
    source = FromRetriever.of_index(index, choice)
    hits = ask(source.retriever, asked, k, len(source.passages))
    for row, question in enumerate(asked):
        found = [(source.passages[number], score) for number, score in hits.of(row)]
        if json or queries is not None:
            print_json({"query": question, "hits": hits_as_json(found)})
        elif found:
            print_passages(found)
        else:
            note("no passage was found: none has a word of the query that is indexed, or all are forbidden")
    print_cache(source)
