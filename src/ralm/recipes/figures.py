"""Draws the figure of a recipe as the paper does: lines or bars, with intervals, and the paper's figures as crosses.

A last panel has the changes between the readings that the orders compare, with their paired intervals. Needs the extra
`plots`.
"""

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter

from ralm.recipes import recipe, results
from ralm.runs.plot import DOTS_AN_INCH, INCHES

_PANEL: Final = 5.5
_BAR: Final = 0.3
"""The width of a panel, and the height of a bar, in inches."""
_WRAPPED: Final = 46
_MARKERS: Final = "osv^D<>P*X"


class _Point(NamedTuple):
    """A cell with its figure, and the ends of its interval."""

    cell: recipe.Cell
    value: float
    low: float
    high: float


def draw(result: results.Result, path: Path) -> None:
    """Draw the measured cells, a panel for each column, below each other, then the changes of the orders."""
    drawn = result.recipe.figure
    assert drawn is not None, "called for recipes with a figure"
    panels = [
        (column, points)
        for column in dict.fromkeys(one.cell.column for one in result.cells)
        if (points := list(_points_of(result, column)))
    ]
    changes = [one for one in result.orders if one.change is not None]
    heights = [_height(drawn, points) for _, points in panels]
    if changes:
        heights.append(1 + _BAR * len(changes))
    heights = heights or [INCHES[1]]
    figure = Figure(figsize=(2 * _PANEL, sum(heights)), dpi=DOTS_AN_INCH, layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (column, points), axes in zip(panels, grid, strict=False):
        if drawn.kind == "lines":
            _draw_lines(axes, points, drawn)
            axes.set_ylabel(column, wrap=True)
        else:
            _draw_bars(axes, points)
            axes.set_xlabel(column)
    if changes:
        _draw_changes(grid[-1], changes)
    warning = "STAND-IN: not the paper's data and models" if result.folder.stand_in else "CHANGED: the table says how"
    if result.folder.stand_in or result.changes:
        figure.suptitle(warning, color="C3", fontsize="small")
    figure.savefig(path)


def _points_of(result: results.Result, column: str) -> Iterator[_Point]:
    for one in result.cells:
        if one.cell.column == column and one.value is not None:
            yield _Point(one.cell, one.value, *(one.interval or (one.value, one.value)))


def _height(drawn: recipe.Figure, points: Sequence[_Point]) -> float:
    return INCHES[1] if drawn.kind == "lines" else 1 + _BAR * len(points)


def _draw_lines(axes: Axes, points: Sequence[_Point], drawn: recipe.Figure) -> None:
    """A line for each model and way of reading, each with its own colour and marker; a level one for what has no place
    on the x axis. The legend is beside the panel."""
    series = dict.fromkeys((one.cell.line or one.cell.model, one.cell.how) for one in points)
    colours = colormaps["tab10" if len(series) <= 10 else "tab20"].colors
    styles = zip(itertools.cycle(colours), itertools.cycle(_MARKERS))
    for (model, how), (colour, marker) in zip(series, styles, strict=False):
        its = [one for one in points if (one.cell.line or one.cell.model, one.cell.how) == (model, how)]
        label = ", ".join(part for part in (model, how) if part)
        for one in its:
            if one.cell.at is None:
                axes.axhline(one.value, linestyle="--", color=colour, label=label)
        placed = sorted((one for one in its if one.cell.at is not None), key=lambda one: one.cell.at or 0)
        if not placed:
            continue
        cells, values, lows, highs = zip(*placed, strict=True)
        places = [cell.at for cell in cells]
        axes.plot(places, values, f"{marker}-", color=colour, label=label)
        axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
        published = [(cell.at, cell.published) for cell in cells if cell.published is not None]
        if published:
            axes.plot(*zip(*published, strict=True), "x", color=colour, label=f"{label} (paper)")
    axes.set_xlabel(drawn.over)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    at = sorted({one.cell.at for one in points if one.cell.at is not None})
    if drawn.logarithmic and at:
        if at[0] > 0:
            axes.set_xscale("log")
        else:  # 0 has no logarithm
            axes.set_xscale("symlog", linthresh=min(one for one in at if one > 0))
        axes.xaxis.set_major_locator(FixedLocator(_apart(at)))
        axes.xaxis.set_major_formatter("{x:.3g}")
        axes.xaxis.set_minor_formatter(NullFormatter())


def _apart(places: Sequence[float]) -> list[float]:
    """The places whose labels do not overlap on a logarithmic axis."""
    found: list[float] = []
    span = max(places) / min((one for one in places if one > 0), default=1)
    for one in places:
        if not found or found[-1] <= 0 or one / found[-1] >= span**0.065:
            found.append(one)
    return found


def _draw_bars(axes: Axes, points: Sequence[_Point]) -> None:
    """A bar for each model and way of reading, from top to bottom; a colour for each way."""
    several = len({one.cell.model for one in points}) > 1
    ways = list(dict.fromkeys(one.cell.how for one in points))
    colours = colormaps["tab20"].colors
    for place, (cell, value, low, high) in enumerate(points):
        errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
        colour = colours[2 * ways.index(cell.how) % len(colours)] if several else colours[0]
        axes.barh(place, value, xerr=errors, capsize=3, color=colour)
        if cell.published is not None:
            axes.plot(cell.published, place, "kx")
    labels = [f"{one.cell.model}, {one.cell.how}" if several else one.cell.how for one in points]
    _label(axes, labels)


def _draw_changes(axes: Axes, changes: Sequence[results.MeasuredOrder]) -> None:
    """The change of each order with its paired interval: in percent where smaller is better, else a difference."""
    for place, one in enumerate(changes):
        assert one.change is not None
        assert one.interval is not None
        factor = 100 if one.order.better.smaller_is_better else 1
        value, low, high = (factor * end for end in (one.change, *one.interval))
        colour = {"seen": "C2", "the other way": "C3"}.get(one.verdict, "0.4")
        axes.errorbar(value, place, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", color=colour)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("change with its paired 95% interval: perplexity in %, other figures as a difference")
    _label(axes, [one.order.text for one in changes])


def _label(axes: Axes, labels: Sequence[str]) -> None:
    """The labels of rows, the first on top."""
    axes.set_yticks(range(len(labels)), [textwrap.fill(one, _WRAPPED) for one in labels], fontsize="small")
    axes.set_ylim(len(labels) - 0.5, -0.5)
