"""`ralm report`: shows the source of every token of a run, and the gain from each passage."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.options import Option

_TOKENS, _TOKENS_OF_A_PAGE = 400, 4000


def report(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder that `ralm eval --baseline --out` wrote.", show_default=False)
    ],
    html: Annotated[Path | None, Option("Write a self-contained HTML page to this file instead.")] = None,
    tokens: Annotated[
        int | None,
        Option("Number of tokens to show.", default_said=f"{_TOKENS}; a page: {_TOKENS_OF_A_PAGE}; --json: all"),
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Show the text of a run with tokens shaded by their gain from passages, and the passages that contributed most."""
    refuse_idle(
        context, Use("force", html is not None, "`html`"), Use("json", html is None, "standard output, not `html`")
    )

    from ralm.cli.output import print_json
    from ralm.cli.shading import print_report, write_page
    from ralm.folders.outputs import check_output_file
    from ralm.runs.report import report_of
    from ralm.runs.run import open_run

    if html is not None:
        check_output_file(html, force)
    opened = open_run(run)
    usual = _TOKENS_OF_A_PAGE if html is not None else len(opened.text) if json else _TOKENS
    made = report_of(opened, tokens or usual)
    if html is not None:
        write_page(html, made)
    elif json:
        print_json(made.as_json())
    else:
        print_report(made)
