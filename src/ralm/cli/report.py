"""`ralm report` shows one run; `ralm compare` shows several runs over the same text side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.options import Needs, Option

_TOKENS, _TOKENS_OF_A_PAGE = 400, 4000
_QUESTIONS, _QUESTIONS_OF_A_PAGE = 10, 1000


def report_command(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder that `ralm eval --baseline --out` or `ralm qa --out` wrote.",
            show_default=False,
        ),
    ],
    html: Annotated[Path | None, Option("Write a self-contained HTML page to this file instead.")] = None,
    tokens: Annotated[
        int | None,
        Option(
            "Number of tokens to show.",
            needs=Needs("a run of `ralm eval`", lambda own: not _has_answers(own.run)),
            default_text=f"{_TOKENS}; a page: {_TOKENS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    questions: Annotated[
        int | None,
        Option(
            "Number of questions to show.",
            needs=Needs("a run of `ralm qa`", lambda own: _has_answers(own.run)),
            default_text=f"{_QUESTIONS}; a page: {_QUESTIONS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    force: Annotated[bool, options.force_option("html")] = False,
    json: Annotated[
        bool,
        Option(
            "Print only one JSON object.", needs=Needs("output on the terminal, not `html`", lambda own: not own.html)
        ),
    ] = False,
) -> None:
    """Show the text of a run with tokens shaded by their gain from passages, and the passages that contributed most. Of
    a run of questions, show each with its answers, and its passages with the answer marked.
    """

    from ralm.storage.outputs import check_output_file

    if html is not None:
        check_output_file(html, force)
    if _has_answers(run):
        _show_answers(run, html, questions, json=json)
    else:
        _show_text(run, html, tokens, json=json)


def _has_answers(run: Path) -> bool:
    """Whether `ralm qa` wrote a run."""
    from ralm.answering.run import ANSWERS_KIND
    from ralm.storage.manifest import kind_of

    return kind_of(run) == ANSWERS_KIND.name


def _show_text(run: Path, html: Path | None, tokens: int | None, *, json: bool) -> None:
    from ralm.cli.output import print_json
    from ralm.cli.results import print_report, write_page
    from ralm.runs.report import build_report
    from ralm.runs.run import open_run

    opened = open_run(run)
    usual = _TOKENS_OF_A_PAGE if html is not None else len(opened.text) if json else _TOKENS
    made = build_report(opened, tokens or usual)
    if html is not None:
        write_page(html, made)
    elif json:
        print_json(made.as_json())
    else:
        print_report(made)


def _show_answers(run: Path, html: Path | None, questions: int | None, *, json: bool) -> None:
    from ralm.answering.report import report_of_answers
    from ralm.cli.answers import print_answers_report, write_answers_page
    from ralm.cli.output import print_json

    usual = _QUESTIONS_OF_A_PAGE if html is not None else None if json else _QUESTIONS
    made = report_of_answers(run, questions or usual)
    if html is not None:
        write_answers_page(html, made)
    elif json:
        print_json(made.as_json())
    else:
        print_answers_report(made)


def compare_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that `ralm eval --out` wrote over the same text."),
    ],
    documents: Annotated[
        str | None,
        Option(
            "Regular expression of the line that begins a document.",
            default_text="512 tokens count as a document",
        ),
    ] = None,
    json: options.PrintJson = False,
) -> None:
    """Compare runs over the same text with the first of them.

    Prints token perplexities, and how much lower or higher they are than the first run's, with 95% intervals from a
    paired bootstrap over documents.
    """
    from ralm.cli.output import print_json
    from ralm.cli.results import print_comparison
    from ralm.runs.compare import compare_runs

    compared = compare_runs(runs, documents=documents)
    if json:
        print_json(compared.as_json())
    else:
        print_comparison(compared)
