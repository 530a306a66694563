"""Draws the figure of a recipe as the paper does: lines or bars, with intervals, and the paper's figures as crosses.

Needs the extra `plots`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from ralm.recipes.results import MeasuredCell, Result
from ralm.runs.plot import DOTS_AN_INCH, INCHES


def draw(result: Result, path: Path) -> None:
    """Draw the measured cells, a panel for each column."""
    drawn = result.recipe.figure
    assert drawn is not None, "called for recipes with a figure"
    columns = list(dict.fromkeys(one.cell.column for one in result.cells))
    figure = Figure(figsize=(INCHES[0] * min(len(columns), 4), INCHES[1]), dpi=DOTS_AN_INCH, layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for column, axes in zip(columns, panels, strict=True):
        cells = [one for one in result.cells if one.cell.column == column and one.value is not None]
        if drawn.kind == "lines":
            _draw_lines(axes, cells)
            axes.set_xlabel(drawn.over)
            if drawn.logarithmic:
                _logarithmic(axes, cells)
        else:
            _draw_bars(axes, cells)
        axes.set_ylabel(column)
    stand_in = result.folder.stand_in
    warning = "STAND-IN: not the paper's data and models" if stand_in else "CHANGED: the table says how"
    if stand_in or result.changes:
        figure.suptitle(warning, color="C3", fontsize="small")
    figure.savefig(path)


def _draw_lines(axes: Axes, cells: Sequence[MeasuredCell]) -> None:
    """A line for each model and way of reading; a level one for what has no place on the x axis."""
    for (model, how), its in _series(cells):
        placed = sorted((one for one in its if one.cell.at is not None), key=lambda one: float(one.cell.at or 0))
        label = ", ".join(part for part in (model, how) if part)
        for one in its:
            if one.cell.at is None and one.value is not None:
                axes.axhline(one.value, linestyle="--", color="0.5", label=label)
        if not placed:
            continue
        places = [float(one.cell.at or 0) for one in placed]
        [line] = axes.plot(places, [float(one.value or 0) for one in placed], "o-", label=label)
        ends = [one.interval or (float(one.value or 0),) * 2 for one in placed]
        low, high = [end[0] for end in ends], [end[1] for end in ends]
        axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        published = [(float(one.cell.at or 0), one.cell.published) for one in placed if one.cell.published is not None]
        if published:
            axes.plot(*zip(*published, strict=True), "x", color=line.get_color(), label=f"{label} (paper)")
    if cells:
        axes.legend(fontsize="small")


def _logarithmic(axes: Axes, cells: Iterable[MeasuredCell]) -> None:
    places = sorted({float(one.cell.at) for one in cells if one.cell.at})
    axes.set_xscale("log")
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_bars(axes: Axes, cells: Sequence[MeasuredCell]) -> None:
    """A bar for each model and way of reading."""
    several = len({one.cell.model for one in cells}) > 1
    labels = [f"{one.cell.model}, {one.cell.how}" if several else one.cell.how for one in cells]
    for place, one in enumerate(cells):
        value = float(one.value or 0)
        low, high = one.interval or (value, value)
        errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.bar(place, value, yerr=errors, capsize=3, color=f"C{place % 10}")
        if one.cell.published is not None:
            axes.plot(place, one.cell.published, "kx")
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize="small")


def _series(cells: Sequence[MeasuredCell]) -> list[tuple[tuple[str, str], list[MeasuredCell]]]:
    def key(one: MeasuredCell) -> tuple[str, str]:
        return one.cell.line or one.cell.model, one.cell.how

    order = list(dict.fromkeys(map(key, cells)))
    return [(name, [*its]) for name, its in groupby(sorted(cells, key=lambda one: order.index(key(one))), key)]
