"""`ralm report` shows one run; `ralm compare` shows several runs over the same text side by side."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import ralm
from ralm.cli import flags, options
from ralm.options import Needs, Option

_TOKENS, _TOKENS_OF_A_PAGE = 400, 4000
_QUESTIONS, _QUESTIONS_OF_A_PAGE = 10, 1000
_SHOWN: Final = Needs("output on the terminal, not `html`", lambda own: not own.html)


def report_command(
    run: Annotated[Path, options.argument("Folder that `ralm eval --baseline --out` or `ralm qa --out` wrote.", "RUN")],
    html: Annotated[Path | None, Option("Write a self-contained HTML page to this file instead.")] = None,
    tokens: Annotated[
        int | None,
        Option(
            "Number of tokens to show.",
            needs=Needs("a run of `ralm eval`", lambda own: not _wrote(own.run, "answers")),
            default_text=f"{_TOKENS}; a page: {_TOKENS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    questions: Annotated[
        int | None,
        Option(
            "Number of questions to show.",
            needs=Needs("a run of `ralm qa`", lambda own: _wrote(own.run, "answers")),
            default_text=f"{_QUESTIONS}; a page: {_QUESTIONS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    force: Annotated[bool, options.force_option("html")] = False,
    json: Annotated[bool, Option("Print only one JSON object.", needs=_SHOWN)] = False,
) -> flags.Output | None:
    """Show the text of a run with tokens shaded by their gain from passages, and the passages that contributed most. Of
    a run of questions, show each with its answers, and its passages with the answer marked.
    """
    from ralm.answering.report import report_of_answers
    from ralm.cli import answers, results
    from ralm.runs.report import build_report
    from ralm.runs.run import open_run
    from ralm.storage.outputs import check_output_file

    if html is not None:
        check_output_file(html, force)
    report: Any
    write: Callable[[Path, Any], None]
    show: Callable[[Any], None]
    if _wrote(run, "answers"):
        usual = _QUESTIONS_OF_A_PAGE if html is not None else None if json else _QUESTIONS
        report = report_of_answers(run, questions or usual)
        write, show = answers.write_answers_page, answers.print_answers_report
    else:
        opened = open_run(run)
        shown = _TOKENS_OF_A_PAGE if html is not None else len(opened.text) if json else _TOKENS
        report = build_report(opened, tokens or shown)
        write, show = results.write_page, results.print_report
    if html is not None:
        write(html, report)
        return None
    return flags.Output(report.as_json, partial(show, report))


def _wrote(run: Path, *kinds: str) -> bool:
    """Whether a command wrote a run of one of these kinds: answers (of `ralm qa`) or choices."""
    from ralm.storage.manifest import kind_of

    return kind_of(run) in kinds


def compare_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders that `ralm eval --out` (or `qa`, `choice`) wrote over the same text."
        ),
    ],
    documents: Annotated[
        str | None,
        Option(
            "Regular expression of the line that begins a document.",
            needs=Needs("runs of `ralm eval`", lambda own: not _wrote(own.runs[0], "answers", "choices")),
            default_text="512 tokens count as a document",
        ),
    ] = None,
) -> flags.TableOutput:
    """Compare runs over the same text, or over the same questions, with the first of them.

    Prints token perplexities, and how much lower or higher they are than the first run's, with 95% intervals from a
    paired bootstrap over documents; of questions, the measures of answers, over questions.
    """
    if _wrote(runs[0], "answers", "choices"):
        from ralm.cli.answers import print_answers_comparison

        answers = ralm.compare_answers(runs)
        return flags.TableOutput(answers.as_json, partial(print_answers_comparison, answers))
    from ralm.cli.results import print_comparison

    compared = ralm.compare_runs(runs, documents=documents)
    return flags.TableOutput(compared.as_json, partial(print_comparison, compared))
