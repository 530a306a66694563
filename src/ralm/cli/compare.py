"""`ralm compare`: runs over the same text side by side, with intervals."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.options import Option


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that `ralm eval --out` wrote over the same text."),
    ],
    documents: Annotated[
        str | None,
        Option(
            "Regular expression of the line that begins a document.",
            default_said="512 tokens count as a document",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare runs over the same text with the first of them.

    Prints token perplexities, and how much lower or higher they are than the first run's, with 95% intervals from a
    paired bootstrap over documents.
    """
    from ralm.cli.output import print_comparison, print_json
    from ralm.runs.comparison import compare_runs

    compared = compare_runs(runs, documents=documents)
    if json:
        print_json(compared.as_json())
    else:
        print_comparison(compared)
