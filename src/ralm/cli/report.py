"""`ralm report` shows one run, or compares several runs over the same text or the same questions."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import ralm
from ralm.cli import flags, options
from ralm.errors import UsageError
from ralm.options import Needs, Option

_TOKENS, _TOKENS_OF_A_PAGE = 400, 4000
_QUESTIONS, _QUESTIONS_OF_A_PAGE = 10, 1000
_SHOWN: Final = Needs("output on the terminal, not `html`", lambda own: not own.html)
_SINGLE: Final = Needs("a single run", lambda own: len(own.runs) == 1)
_SEVERAL: Final = Needs("several runs", lambda own: len(own.runs) > 1)
_TEXT: Final = Needs("a single run of `ralm eval`", lambda own: _SINGLE.met(own) and _wrote(own.runs[0], "run"))
_ASKED: Final = Needs("a single run of `ralm qa`", lambda own: _SINGLE.met(own) and _wrote(own.runs[0], "answers"))


def report_command(
    runs: Annotated[
        list[Path], options.argument("Folder that `ralm eval --baseline --out` or `qa --out` wrote.", "RUN...")
    ],
    html: Annotated[Path | None, Option("Write an HTML page to this file instead.", needs=_SINGLE)] = None,
    tokens: Annotated[
        int | None,
        Option(
            "Number of tokens to show.",
            needs=_TEXT,
            default_text=f"{_TOKENS}; a page: {_TOKENS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    questions: Annotated[
        int | None,
        Option(
            "Number of questions to show.",
            needs=_ASKED,
            default_text=f"{_QUESTIONS}; a page: {_QUESTIONS_OF_A_PAGE}; --json: all",
        ),
    ] = None,
    force: Annotated[bool, options.force_option("html")] = False,
    json: Annotated[bool, Option("Print only one JSON object.", needs=_SHOWN)] = False,
    latex: Annotated[bool, replace(flags.LATEX, needs=_SEVERAL)] = False,
) -> None:
    """Show the text of a run with tokens shaded by their gain from passages, and the passages that contributed most. Of
    a run of questions, show each with its answers, and its passages with the answer marked.

    Compare several runs over the same text, or over the same questions, with the first of them: each measure, and its
    change from the first run, below 0 if lower, with paired 95% intervals over documents, or over questions. They need
    no baseline.

    Example: `ralm report my-run --html my-report.html`
    """
    if len(runs) > 1:
        from ralm.cli.results import print_comparison

        compared = ralm.compare_runs(runs)
        short = [run.name for run in runs]
        printed = replace(compared, names=short if len({*short}) == len(short) else compared.names)
        flags.TableOutput(compared.as_json, partial(print_comparison, printed, "run")).print(json=json, latex=latex)
        return

    from ralm.answering.report import report_of_answers
    from ralm.cli import answers, output, results
    from ralm.runs.report import build_report, render_page, render_report
    from ralm.runs.run import open_run
    from ralm.storage.outputs import check_output_file

    if html is not None:
        check_output_file(html, force)
    (run,) = runs
    if _wrote(run, "choices", "sweep"):
        raise UsageError(
            f"{run} has no text or answers to show: give several runs to compare, or read its summary.json."
        )
    report: Any
    if _wrote(run, "answers"):
        usual = _QUESTIONS_OF_A_PAGE if html is not None else None if json else _QUESTIONS
        report = report_of_answers(run, questions or usual)
        shown = flags.Output(partial(dict, report), partial(answers.print_answers_report, report))
        page = partial(render_page, "ralm.answering", "answers.html", f"{report['title']} · ralm report", {**report})
        what = "every question with its answers and passages"
    else:
        opened = open_run(run)
        usual = _TOKENS_OF_A_PAGE if html is not None else len(opened.text) if json else _TOKENS
        report = build_report(opened, tokens or usual)
        shown = flags.Output(report.as_json, partial(results.print_report, report))
        page, what = partial(render_report, report), "where every token came from"
    if html is not None:
        output.write_page(html, page(), what)
    else:
        shown.print(json=json)


def _wrote(run: Path, *kinds: str) -> bool:
    """Whether a command wrote a run of one of these kinds: answers (of `ralm qa`) or choices."""
    from ralm.storage.manifest import kind_of

    return kind_of(run) in kinds
