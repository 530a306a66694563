"""Prints reports in the terminal (tokens shaded by their gain, passages by contribution), or writes them as a page."""

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ralm.cli.messages import note
from ralm.cli.output import passage_name, print_line
from ralm.reading.provenance import TracedText
from ralm.runs.page import report_page
from ralm.runs.report import Report
from ralm.storage.outputs import replaced_file
from ralm.terminal import visible

FULL = 3.0
"""The gain, in nats, at which the shade of a token is strongest."""
_HELPED, _HURT, _STEPS = (24, 122, 96), (190, 84, 32), 4
_SHOWN_PASSAGES = 10


def print_report(report: Report) -> None:
    """Print a summary, the text, and the passages that contributed most."""
    text, gain = report.text, report.text.gain
    print_line(f"{report.title}: " + ", ".join(f"{label} {value}" for label, value in report.settings.items()))
    fall = report.perplexity / report.baseline_perplexity - 1
    print_line(
        f"token perplexity {report.baseline_perplexity:.2f} without passages, {report.perplexity:.2f} with them "
        f"({fall:+.1%})\n{gain.nats:+,.1f} nats over {gain.targets:,} tokens: {gain.helped:,} helped, "
        f"{gain.hurt:,} hurt\n"
    )
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.print(_legend(), end="\n\n")
    console.print(_shaded(text, report.shown_tokens))
    if report.shown_tokens < len(text):
        print_line(f"\n(the first {report.shown_tokens:,} of {len(text):,} tokens)")
    print_line("\nPassages by contribution, in nats:\n")
    rows = text.contributions
    for row in rows[:_SHOWN_PASSAGES]:
        name = passage_name(text.passages[row.passage])
        print_line(f"  {row.gain:+8.2f}  {name}: {row.helped:,} helped, {row.hurt:,} hurt")
    if len(rows) > _SHOWN_PASSAGES:
        rest = sum(row.gain for row in rows[_SHOWN_PASSAGES:])
        print_line(f"  {rest:+8.2f}  {len(rows) - _SHOWN_PASSAGES:,} more passages together")


def write_page(file: Path, report: Report) -> None:
    """Write the report as an HTML page, and print its path on standard error."""
    with replaced_file(file) as page:
        page.write(report_page(report))
    note(f"{file} shows where every token came from; open it in a browser")


def _legend() -> Text:
    legend = Text("passages hurt ")
    for step in range(-_STEPS, _STEPS + 1):
        legend.append("  ", style=_style(step / _STEPS * FULL))
    return legend.append(f" helped; full at {FULL:g} nats")


def _shaded(text: TracedText, tokens: int) -> Text:
    """The text before the tokens, dim, and the first `tokens` tokens, each with a background for its gain."""
    shaded = Text(visible(text.before), style="", overflow="fold")
    shaded.stylize("dim")
    for piece, gain in zip(text.texts[:tokens], text.gain_T.tolist(), strict=False):
        shaded.append(visible(piece), style=_style(gain))
    return shaded


def _style(gain: float) -> str:
    """The background for a gain in nats, in a few steps; none for a small gain."""
    step = round(min(1.0, abs(gain) / FULL) * _STEPS)
    if step == 0:
        return ""
    red, green, blue = (round(channel * step / _STEPS) for channel in (_HELPED if gain > 0 else _HURT))
    return f"white on rgb({red},{green},{blue})"
