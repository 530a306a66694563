"""`ralm search`: ask an index."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.errors import UsageError


def search(
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    query: Annotated[str | None, typer.Argument(help="What to look for.", show_default=False)] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Ask every line of this file instead; answers as JSON lines, in order.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Passages a query.")] = 10,
    json: options.Json = False,
) -> None:
    """Find the passages of an index that match a query best."""
    from ralm.cli.output import hits_as_json, print_json, print_passages
    from ralm.corpus.text import read_text
    from ralm.retrieval.index import open_index

    if queries is not None and query is None:
        asked = read_text(queries).splitlines()
    elif queries is None and query is not None:
        asked = [query]
    else:
        raise UsageError("give either a QUERY or --queries FILE.")
    opened = open_index(index)
    hits = opened.bm25.retrieve(asked, k)
    for row, question in enumerate(asked):
        found = [(opened.passages[number], score) for number, score in hits.of(row)]
        if json or queries is not None:
            print_json({"query": question, "hits": hits_as_json(found)})
        else:
            print_passages(found)
