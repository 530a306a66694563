"""Draws the figure of a recipe as the paper does: lines or bars, with intervals, and the paper's figures as crosses.
Needs the extra `plots`."""

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter

from ralm.recipes import recipe, results
from ralm.runs.plot import DOTS_AN_INCH, INCHES

_WIDTH: Final = 11
_BAR: Final = 0.3
"""The width of a figure, and the height of a bar, in inches."""
_WRAPPED: Final = 46
_MARKERS: Final = "osv^D<>P*X"


class _Point(NamedTuple):
    """A cell with its figure, and the ends of its interval."""

    cell: recipe.Cell
    value: float
    low: float
    high: float

    @property
    def series(self) -> str:
        """The label of the line that it is drawn in."""
        return ", ".join(filter(None, (self.cell.line or self.cell.model, self.cell.how)))


def draw(result: results.Result, path: Path) -> None:
    """Draw the measured cells, a panel for each column, below each other."""
    drawn = result.recipe.figure
    assert drawn is not None, "called for recipes with a figure"
    panels: dict[str, list[_Point]] = {}
    for cell, row in zip(result.recipe.cells, result.cells, strict=True):
        if (value := row["value"]) is not None:
            ends = (value, value) if row["low"] is None else (row["low"], row["high"])
            panels.setdefault(cell.column, []).append(_Point(cell, value, *ends))
    heights = [INCHES[1] if drawn.kind == "lines" else 1 + _BAR * len(points) for points in panels.values()]
    heights = heights or [INCHES[1]]
    figure = Figure(figsize=(_WIDTH, sum(heights)), dpi=DOTS_AN_INCH, layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (column, points), axes in zip(panels.items(), grid, strict=False):
        if drawn.kind == "lines":
            _draw_lines(axes, points, drawn)
            axes.set_ylabel(column, wrap=True)
        else:
            _draw_bars(axes, points)
            axes.set_xlabel(column)
    if result.warnings:
        warning = "STAND-IN: not the paper's data and models" if result.stand_in else "CHANGED: the table says how"
        figure.suptitle(warning, color="C3", fontsize="small")
    figure.savefig(path)


def _draw_lines(axes: Axes, points: Sequence[_Point], drawn: recipe.Figure) -> None:
    """A line for each model and way of reading; a level one for what has no place on the x axis."""
    labels = list(dict.fromkeys(point.series for point in points))
    colours = colormaps["tab10" if len(labels) <= 10 else "tab20"].colors
    for label, colour, marker in zip(labels, itertools.cycle(colours), itertools.cycle(_MARKERS), strict=False):
        line = [point for point in points if point.series == label]
        for point in line:
            if point.cell.at is None:
                axes.axhline(point.value, linestyle="--", color=colour, label=label)
        placed = sorted(
            (point.cell.at, *point[1:], point.cell.published) for point in line if point.cell.at is not None
        )
        if not placed:
            continue
        places, values, lows, highs, published = zip(*placed, strict=True)
        axes.plot(places, values, f"{marker}-", color=colour, label=label)
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
        if any(published):
            axes.plot(places, published, "x", color=colour, label=f"{label} (paper)")
    axes.set_xlabel(drawn.over)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    at = sorted({point.cell.at for point in points if point.cell.at is not None})
    if drawn.logarithmic and at:
        if at[0] > 0:
            axes.set_xscale("log")
        else:  # 0 has no logarithm
            axes.set_xscale("symlog", linthresh=min(place for place in at if place > 0))
        axes.xaxis.set_major_locator(FixedLocator(_apart(at)))
        axes.xaxis.set_major_formatter("{x:.3g}")
        axes.xaxis.set_minor_formatter(NullFormatter())


def _apart(places: Sequence[float]) -> list[float]:
    """The places whose labels do not overlap on a logarithmic axis."""
    apart: list[float] = []
    span = max(places) / min((place for place in places if place > 0), default=1)
    for place in places:
        if not apart or apart[-1] <= 0 or place / apart[-1] >= span**0.065:
            apart.append(place)
    return apart


def _draw_bars(axes: Axes, points: Sequence[_Point]) -> None:
    """A bar for each model and way of reading, from top to bottom; a colour for each way."""
    has_models = len({point.cell.model for point in points}) > 1
    ways = list(dict.fromkeys(point.cell.how for point in points))
    colours = colormaps["tab20"].colors
    for place, (cell, value, low, high) in enumerate(points):
        errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
        colour = colours[2 * ways.index(cell.how) % len(colours)] if has_models else colours[0]
        axes.barh(place, value, xerr=errors, capsize=3, color=colour)
        if cell.published is not None:
            axes.plot(cell.published, place, "kx")
    labels = [textwrap.fill(point.series if has_models else point.cell.how, _WRAPPED) for point in points]
    axes.set_yticks(range(len(labels)), labels, fontsize="small")
    axes.set_ylim(len(labels) - 0.5, -0.5)
