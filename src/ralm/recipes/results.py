"""Measures a recipe and writes its result: the paper's table with our figures beside it, and a plot.

table.md, table.html   the table as in the paper, the orders, and the source of every cell
cells.csv, .parquet    a row for each cell, with its command and folder
figure.png             the figure, if the recipe has one
manifest.json          the name of the recipe, and a checksum of each file
"""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.recipes import measures, runner
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.steps import in_order
from ralm.storage import manifest, outputs

RECIPE_KIND: Final = outputs.FolderKind("recipe")
MARKDOWN: Final = "table.md"
PAGE: Final = "table.html"
CSV: Final = "cells.csv"
CELLS: Final = "cells.parquet"
FIGURE: Final = "figure.png"
_STAND_IN: Final = (
    "STAND-IN: small local data and models took the place of the paper's. These figures are not comparable with the "
    "paper's; they show that the recipe runs, and which of its orders hold here."
)
_INTERVALS: Final = "Ours with the 95% interval of a bootstrap over stretches of the text, or over questions"
_NOTHING: Final = "-"
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #8886;padding:.3rem .6rem;text-align:left}"
    "code{font-size:.85em;overflow-wrap:anywhere}.stand-in{border:2px solid #c60;padding:.5rem 1rem}"
    ":root{color-scheme:light dark}"
)
_TEXTS: Final = ("model", "how", "column", "measure", "folder", "command", "why_not", "changes")
_NUMBERS: Final = ("at", "published", "value", "low", "high", "difference")

Verdict = Literal["seen", "not clear", "the other way", "not comparable"]
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell with our figure and its 95% interval; None if nothing can be measured, or of one unit."""

    cell: Cell
    value: float | None = None
    interval: _Interval | None = None

    @property
    def difference(self) -> float | None:
        """Our figure minus the paper's."""
        if self.value is None or self.cell.published is None:
            return None
        return self.value - self.cell.published


@dataclass(frozen=True, slots=True)
class MeasuredOrder:
    """An order, by how much the better figure is better, with its 95% interval from a paired bootstrap.

    `change` is a fraction of the worse figure where smaller is better, such as perplexity, otherwise a difference. An
    order is seen if the interval leaves out 0.
    """

    order: Order
    better: float
    worse: float
    change: float | None = None
    interval: _Interval | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the order is seen."""
        if self.interval is None:
            return "not comparable"
        sign = -1 if self.order.better.smaller_is_better else 1
        low, high = sorted(sign * end for end in self.interval)
        return "seen" if low > 0 else "the other way" if high < 0 else "not clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A recipe with everything measured in its folder.

    `changes` lists how the run differs from the recipe. `is_partial` means that it read a part of the text.
    """

    recipe: Recipe
    folder: RecipeFolder
    cells: Sequence[MeasuredCell]
    orders: Sequence[MeasuredOrder]
    changes: Sequence[str]
    is_partial: bool

    @property
    def is_comparable(self) -> bool:
        """Whether the figures can be compared with the paper's."""
        return not (self.folder.stand_in or self.is_partial)

    @property
    def warnings(self) -> list[str]:
        """The warnings that stand before the figures."""
        warnings = [_STAND_IN] if self.folder.stand_in else []
        if self.changes:
            changes = "; ".join(self.changes)
            warnings.append(f"CHANGED: {changes}. Compare with the paper's figures only if the paper read the same.")
        return warnings


def measure_recipe(
    recipe: Recipe, folder: RecipeFolder, changes: Sequence[str] = (), *, is_partial: bool = False
) -> Result:
    """Measure every cell and order from the results of its steps.

    Raises DamagedFolderError if one cannot be read.
    """
    paths = {step: folder.path_of(step) for step in recipe.steps}
    samples = {measure: measure.sample(paths) for measure in recipe.measures}
    return Result(
        recipe=recipe,
        folder=folder,
        cells=[_measured_cell(cell, samples) for cell in recipe.cells],
        orders=[_measured_order(order, samples) for order in recipe.orders],
        changes=changes,
        is_partial=is_partial,
    )


def _measured_cell(cell: Cell, samples: Mapping[measures.Measure, measures.Sample]) -> MeasuredCell:
    sample = None if cell.measure is None else samples[cell.measure]
    if sample is None or math.isnan(sample.value):
        return MeasuredCell(cell)
    return MeasuredCell(cell, sample.value, sample.interval)


def _measured_order(order: Order, samples: Mapping[measures.Measure, measures.Sample]) -> MeasuredOrder:
    better, worse = samples[order.better], samples[order.worse]
    several = len(better.counts_U) > 1 and better.counts_U.sum() > 0
    if not (several and np.array_equal(better.counts_U, worse.counts_U)):
        return MeasuredOrder(order, better.value, worse.value)
    # Both figures are of the same units, so each draw takes the same units for both: a paired bootstrap.
    drawn_DR = bootstrap_means(np.stack([better.sums_U, worse.sums_U], axis=1), better.counts_U)
    drawn, other = better.figure(drawn_DR[:, 0]), worse.figure(drawn_DR[:, 1])
    if order.better.smaller_is_better:
        change, ends = better.value / worse.value - 1, interval(drawn / other - 1)
    else:
        change, ends = better.value - worse.value, interval(drawn - other)
    return MeasuredOrder(order, better.value, worse.value, change, ends)


def folder_name(recipe: str, only: str | None = None) -> str:
    """The name of the folder of a recipe's table, or of its part about one model."""
    part = "" if only is None else "-only-" + "-".join(only.lower().split())
    return recipe.replace("/", "-") + part


def write_result(result: Result, only: str | None = None) -> Path:
    """Write the folder of a recipe's result, or of its part about one model, atomically, in place of an older one;
    returns it."""
    recipe = result.recipe
    path = result.folder.folder / "tables" / folder_name(recipe.name, only)
    kinds = {name: pa.string() for name in _TEXTS} | {name: pa.float64() for name in _NUMBERS}
    schema = pa.schema([*kinds.items(), ("stand_in", pa.bool_())])
    cells = pa.Table.from_pylist([_row(one, result) for one in result.cells], schema=schema)
    with outputs.new_folder(path, kind=RECIPE_KIND, force=True) as partial:
        pq.write_table(cells, partial / CELLS, compression="zstd")
        pyarrow.csv.write_csv(cells, partial / CSV)
        (partial / MARKDOWN).write_text(as_markdown(result), encoding="utf-8")
        (partial / PAGE).write_text(_as_html(result), encoding="utf-8")
        if recipe.figure is not None:
            from ralm.recipes.figures import draw

            draw(result, partial / FIGURE)
        manifest.write_manifest(
            partial,
            kind=RECIPE_KIND,
            settings={"recipe": recipe.name, "stand_in": result.folder.stand_in, "changes": [*result.changes]},
            counts={"cells": len(result.cells)},
        )
    return path


def result_as_json(result: Result, path: Path) -> JsonValue:
    """The cells and orders by name; `path` is that of the written result."""
    orders: list[JsonValue] = [
        {
            "order": one.order.text,
            "better": one.better,
            "worse": one.worse,
            "change": one.change,
            "interval": None if one.interval is None else [*one.interval],
            "verdict": one.verdict,
        }
        for one in result.orders
    ]
    return {
        "recipe": result.recipe.name,
        "stand_in": result.folder.stand_in,
        "folder": str(path),
        "cells": [_row(one, result) for one in result.cells],
        "orders": orders,
    }


def _row(one: MeasuredCell, result: Result) -> dict[str, JsonValue]:
    cell, folder = one.cell, result.folder
    steps = cell.measure.steps if cell.measure else ()
    low, high = one.interval or (None, None)
    return {
        "model": cell.model,
        "how": cell.how,
        "column": cell.column,
        "measure": cell.measure.label if cell.measure else "",
        "at": cell.at,
        "published": cell.published,
        "value": one.value,
        "low": low,
        "high": high,
        "difference": one.difference if result.is_comparable else None,
        "folder": " ".join(f"steps/{folder.path_of(step).name}" for step in steps),
        "command": "; ".join(runner.command_text(folder.command_line(step)) for step in steps),
        "why_not": cell.why_not,
        "stand_in": folder.stand_in,
        "changes": "; ".join(result.changes),
    }


class _Table(NamedTuple):
    """The heads and rows of a table, and the number of a column of code."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    code: int | None = None


def _paper_table(result: Result) -> _Table:
    """The table as in the paper: a row for each way of reading, and beside each column of the paper one with our
    figures; ours alone if the paper has none."""
    columns = list(dict.fromkeys(one.cell.column for one in result.cells))
    at_places = any(one.cell.at is not None for one in result.cells)
    over = result.recipe.figure.over if result.recipe.figure else "at"
    published = {one.cell.column for one in result.cells if one.cell.published is not None}
    heads = ["Model", "Reading", *([over] if at_places else [])]
    for column in columns:
        heads += [f"{column}: paper", "ours"] if column in published else [column]
    cells = {(one.cell.model, one.cell.how, one.cell.at, one.cell.column): one for one in result.cells}
    rows = []
    for model, how, at in dict.fromkeys(key[:3] for key in cells):
        row = [model, how, *([_NOTHING if at is None else f"{at:g}"] if at_places else [])]
        for column in columns:
            pair = _pair(cells.get((model, how, at, column)), compared=result.is_comparable)
            row += pair if column in published else pair[1:]
        rows.append(row)
    return _Table(heads, rows)


def _pair(one: MeasuredCell | None, *, compared: bool) -> list[str]:
    """The paper's figure and ours, with the difference if they are `compared`."""
    if one is None:
        return [_NOTHING, _NOTHING]
    published = _NOTHING if one.cell.published is None else f"{one.cell.published:g}"
    if one.value is None:
        return [published, one.cell.why_not or _NOTHING]
    between = "" if one.interval is None else f" ({_number(one.interval[0])} to {_number(one.interval[1])})"
    difference = "" if not compared or one.difference is None else f" [{one.difference:+.2f}]"
    return [published, f"{_number(one.value)}{between}{difference}"]


def _order_table(result: Result) -> _Table:
    rows = [
        [one.order.text, _number(one.better), _number(one.worse), _change(one), one.verdict] for one in result.orders
    ]
    return _Table(["Order", "Better", "Worse", "Change (95%)", "Here"], rows)


def _change(one: MeasuredOrder) -> str:
    if one.change is None or one.interval is None:
        return _NOTHING
    form = "+.1%" if one.order.better.smaller_is_better else "+.2f"
    change, low, high = (format(value, form) for value in (one.change, *one.interval))
    return f"{change} ({low} to {high})"


def _source_table(result: Result) -> _Table:
    """The folder and the command of each step, with the first cell that is measured from it. Steps that only others
    read come before them."""
    rows: dict[str, list[str]] = {}
    for one in result.cells:
        measured = one.cell.measure.steps if one.cell.measure else ()
        for step in in_order(measured):
            path, command = result.folder.path_of(step), runner.command_text(result.folder.command_line(step))
            row = rows.setdefault(path.name, ["", f"steps/{path.name}", command])
            if step in measured:
                row[0] = row[0] or f"{one.cell.model}, {one.cell.how}"
    return _Table(["Figure", "Folder", "Command"], [*rows.values()], code=2)


def _number(value: float) -> str:
    """A figure with as many digits as papers print."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def _blocks(result: Result) -> Iterator[tuple[str, Any]]:
    """The parts of the page, each with its kind."""
    recipe = result.recipe
    yield "title", f"{recipe.paper} ({recipe.name})"
    yield from (("warning", one) for one in result.warnings)
    yield "text", recipe.about
    yield "table", _paper_table(result)
    compared = result.is_comparable and any(one.difference is not None for one in result.cells)
    yield "text", f"{_INTERVALS}{'; in brackets the difference from the paper' if compared else ''}."
    if recipe.figure is not None:
        yield "figure", recipe
    if result.orders:
        yield "heading", "Orders to expect" if recipe.is_analysis else "Orders that the paper reports"
        yield "table", _order_table(result)
    if recipe.differs:
        yield "heading", "What differs from the paper"
        yield "list", recipe.differs
    yield "heading", "Where the figures come from"
    yield "table", _source_table(result)


def as_markdown(result: Result) -> str:
    """The table, the orders and the sources as Markdown."""
    writers: dict[str, Callable[[Any], str]] = {
        "title": "# {}".format,
        "heading": "## {}".format,
        "warning": "**{}**".format,
        "text": str,
        "table": _markdown_table,
        "figure": lambda recipe: f"![{recipe.name}]({FIGURE})",
        "list": lambda items: "\n".join(f"- {item}" for item in items),
    }
    return "\n\n".join(writers[kind](content) for kind, content in _blocks(result)) + "\n"


def _markdown_table(table: _Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [[f"`{cell}`" if place == table.code else cell for place, cell in enumerate(row)] for row in table.rows]
    return "\n".join([line(table.heads), "|" + "---|" * len(table.heads), *map(line, rows)])


def _as_html(result: Result) -> str:
    title = html.escape(f"{result.recipe.paper} ({result.recipe.name})")
    image = f'<p><img src="{FIGURE}" alt="{title}" style="max-width:100%"></p>'
    writers: dict[str, Callable[[Any], str]] = {
        "title": lambda text: f"<h1>{html.escape(text)}</h1>",
        "heading": lambda text: f"<h2>{html.escape(text)}</h2>",
        "warning": lambda text: f'<p class="stand-in"><strong>{html.escape(text)}</strong></p>',
        "text": lambda text: f"<p>{html.escape(text)}</p>",
        "table": _html_table,
        "figure": lambda _: image,
        "list": lambda items: "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>",
    }
    body = "".join(writers[kind](content) for kind, content in _blocks(result))
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _html_table(table: _Table) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        inner = (
            f"<code>{html.escape(cell)}</code>" if place == table.code and tag == "td" else html.escape(cell)
            for place, cell in enumerate(cells)
        )
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in inner) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    return f"<table><thead>{line(table.heads, 'th')}</thead><tbody>{body}</tbody></table>"
