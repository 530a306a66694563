"""`ralm search`: searches an index."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.messages import note
from ralm.errors import UsageError
from ralm.options import Option
from ralm.retrieval.retriever import RetrieverOptions

_RETRIEVAL = RetrieverOptions()


def search(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    query: Annotated[
        str | None, typer.Argument(help="What to search for; - reads standard input.", show_default=False)
    ] = None,
    queries: Annotated[
        Path | None,
        Option(
            "Search for every line of this file instead; .jsonl: one JSON string, or one object with a query, per "
            "line. The output is JSON Lines, in the same order."
        ),
    ] = None,
    k: Annotated[int, Option("Passages per query.", flag="-k")] = 10,
    retrieval: RetrieverOptions = _RETRIEVAL,
    json: options.Json = False,
) -> None:
    """Find the passages of an index that best match a query."""
    from ralm.cli.asked import read_asked
    from ralm.cli.output import print_cache, print_json, print_passages
    from ralm.reading.provenance import hits_as_json
    from ralm.reading.sources import FromRetriever
    from ralm.validation import ask

    if (query is None) == (queries is None):
        raise UsageError("give either a `query` or `queries` FILE.")
    asked = read_asked(query, queries, "query")
    refuse_idle(context, Use(retrieval))
    source = FromRetriever.of_index(index, retrieval)
    hits = ask(source.retriever, asked, k, len(source.passages))
    for row, question in enumerate(asked):
        found = [(source.passages[number], score) for number, score in hits.of(row)]
        if json or queries is not None:
            print_json({"query": question, "hits": hits_as_json(found)})
        elif found:
            print_passages(found)
        else:
            note("no passage was found: none contains an indexed word of the query, or all are forbidden")
    print_cache(source)
