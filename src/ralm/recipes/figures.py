"""Draws the figure of a recipe as the paper does: lines or bars, with intervals, and the paper's figures as crosses.

Needs the extra `plots`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from ralm.recipes import recipe, results
from ralm.runs.plot import DOTS_AN_INCH, INCHES


class _Point(NamedTuple):
    """A cell with its figure, and the ends of its interval."""

    cell: recipe.Cell
    value: float
    low: float
    high: float


def draw(result: results.Result, path: Path) -> None:
    """Draw the measured cells, a panel for each column."""
    drawn = result.recipe.figure
    assert drawn is not None, "called for recipes with a figure"
    columns = list(dict.fromkeys(one.cell.column for one in result.cells))
    figure = Figure(figsize=(INCHES[0] * min(len(columns), 4), INCHES[1]), dpi=DOTS_AN_INCH, layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for column, axes in zip(columns, panels, strict=True):
        points = [
            _Point(one.cell, one.value, *(one.interval or (one.value, one.value)))
            for one in result.cells
            if one.cell.column == column and one.value is not None
        ]
        if drawn.kind == "lines":
            _draw_lines(axes, points)
            axes.set_xlabel(drawn.over)
        else:
            _draw_bars(axes, points)
        if drawn.logarithmic:
            axes.set_xscale("log")
            axes.set_xticks(sorted({one.cell.at for one in points if one.cell.at}))
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(column)
    warning = "STAND-IN: not the paper's data and models" if result.folder.stand_in else "CHANGED: the table says how"
    if result.folder.stand_in or result.changes:
        figure.suptitle(warning, color="C3", fontsize="small")
    figure.savefig(path)


def _draw_lines(axes: Axes, points: Sequence[_Point]) -> None:
    """A line for each model and way of reading; a level one for what has no place on the x axis."""
    series = dict.fromkeys((one.cell.line or one.cell.model, one.cell.how) for one in points)
    for model, how in series:
        its = [one for one in points if (one.cell.line or one.cell.model, one.cell.how) == (model, how)]
        label = ", ".join(part for part in (model, how) if part)
        for one in its:
            if one.cell.at is None:
                axes.axhline(one.value, linestyle="--", color="0.5", label=label)
        placed = sorted((one for one in its if one.cell.at is not None), key=lambda one: one.cell.at or 0)
        if not placed:
            continue
        cells, values, lows, highs = zip(*placed, strict=True)
        places = [cell.at for cell in cells]
        [line] = axes.plot(places, values, "o-", label=label)
        axes.fill_between(places, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
        published = [(cell.at, cell.published) for cell in cells if cell.published is not None]
        if published:
            axes.plot(*zip(*published, strict=True), "x", color=line.get_color(), label=f"{label} (paper)")
    if points:
        axes.legend(fontsize="small")


def _draw_bars(axes: Axes, points: Sequence[_Point]) -> None:
    """A bar for each model and way of reading."""
    several = len({one.cell.model for one in points}) > 1
    labels = [f"{one.cell.model}, {one.cell.how}" if several else one.cell.how for one in points]
    for place, (cell, value, low, high) in enumerate(points):
        errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.bar(place, value, yerr=errors, capsize=3, color=f"C{place % 10}")
        if cell.published is not None:
            axes.plot(place, cell.published, "kx")
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize="small")
