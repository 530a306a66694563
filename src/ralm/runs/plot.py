"""Plots: token perplexity at every value of a sweep, and answers by the number of passages. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INCHES: Final = (5.5, 3.6)
DOTS_AN_INCH: Final = 150


def draw_sweep(option: str, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the rows of a sweep: a line, sorted by value, if the values are numbers, else bars."""
    values = [str(row[option]) for row in rows]
    figure = Figure(figsize=INCHES, dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    places: Sequence[Any] = values
    color: str | None = None
    try:
        places = sorted(map(float, values))
        rows = sorted(rows, key=lambda row: float(row[option]))
    except ValueError:
        axes.bar(values, [row["token_perplexity"] for row in rows], label="with passages", color="C0")
        color = "C1"
    else:
        axes.plot(places, [row["token_perplexity"] for row in rows], "o-", label="with passages")
    axes.plot(places, [row["none_token_perplexity"] for row in rows], "--", label="no retrieval", color=color)
    axes.set_xlabel(f"--{option}")
    axes.set_ylabel("token perplexity")
    axes.legend()
    figure.savefig(path)


def draw_curve(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw answers by the number of passages, with 95% intervals: exact match, F1 and has_answer in percent, and the
    log-probability of the gold answer."""
    order = sorted(rows, key=lambda row: row["documents"])
    figure = Figure(figsize=(2 * INCHES[0], INCHES[1]), dpi=DOTS_AN_INCH, layout="constrained")
    judged, likely = figure.subplots(1, 2)
    for metric, label in (("exact_match", "exact match"), ("f1", "F1")):
        _draw_metric(judged, order, metric, label, 100)
    held = [row for row in order if row["has_answer"] is not None]
    places = [row["documents"] for row in held]
    judged.plot(places, [100 * row["has_answer"] for row in held], "k:", label="an answer in the passages")
    judged.set_ylabel("percent of the questions")
    judged.legend()
    _draw_metric(likely, order, "gold_log_prob", "gold answer", 1)
    likely.legend()
    likely.set_ylabel("log-probability, nats a token")
    for axes in (judged, likely):
        axes.set_xlabel("passages in the prompt")
    figure.savefig(path)


def _draw_metric(axes: Axes, rows: Sequence[dict[str, Any]], metric: str, label: str, factor: int) -> None:
    known = [row for row in rows if row[metric] is not None]
    places = [row["documents"] for row in known]
    middle, low, high = ([factor * row[f"{metric}{end}"] for row in known] for end in ("", "_low", "_high"))
    [line] = axes.plot(places, middle, "o-", label=label)
    axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
