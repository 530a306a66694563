"""`ralm report` shows the measures of a run, or compares several runs over the same text or the same questions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import ralm
from ralm.cli import flags, options
from ralm.errors import UsageError
from ralm.evaluation import SHOWN_TOKENS
from ralm.options import Option


def report_command(
    runs: Annotated[list[Path], options.argument("Folder that `ralm eval --out` or `qa --out` wrote.", "RUN...")],
    html: Annotated[Path | None, Option("Write an HTML page of the run of `eval --baseline` too.")] = None,
    limit: Annotated[int, Option("Number of tokens on the page.")] = SHOWN_TOKENS,
    force: options.Force = False,
) -> flags.TableOutput:
    """Print the measures of a run, or compare several runs over the same text or the same questions.

    Figures have 95% intervals over documents, or over questions. Changes are from the first run, below 0 if lower, with
    paired intervals. Of a run of `ralm eval --baseline`, the passages that contributed most are listed too.

    The page shows the text with tokens shaded by their gain from passages; --json prints the same data.

    Example: `ralm report my-run --html my-report.html`
    """
    from ralm.cli.output import write_page
    from ralm.cli.results import print_comparison, print_gain
    from ralm.evaluation.report import render_report
    from ralm.runs.run import build_report, open_run
    from ralm.storage.manifest import kind_of
    from ralm.storage.outputs import check_output_file

    if html is not None:
        check_output_file(html, force)
    run, kind = runs[0], kind_of(runs[0]) if len(runs) == 1 else "several runs"
    opened = cache(partial(open_run, run))
    compared = ralm.compare_runs(runs)
    if html is not None:
        if kind != "run":
            raise UsageError("`html` shows the text of a single run of `ralm eval`: leave it out.")
        write_page(html, render_report(build_report(opened(), limit)), "where every token came from")

    def as_json() -> Any:
        if kind == "run":
            return build_report(opened(), len(opened().text)).as_json()
        return compared.as_json()

    def print_text() -> None:
        text = opened().text if kind == "run" and "change" in compared.columns else None
        print_comparison(replace(compared, names=_short_names(runs)), "run")
        if text is not None:
            print_gain(text)

    return flags.TableOutput(as_json, print_text)


def _short_names(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders; their paths if two have one name."""
    names = [run.name for run in runs]
    return names if len({*names}) == len(names) else [*map(str, runs)]
