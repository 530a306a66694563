"""Measures a recipe and writes its result: the paper's table with our figures beside it, and a plot.

table.md, table.html   the table as in the paper, the orders, and the source of every cell
cells.csv, .parquet    a row for each cell, with its command and folder
figure.png             the figure, if the recipe has one
manifest.json          the name of the recipe, and a checksum of each file
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.measures import Folders, Measure, Sample
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.runner import command_text
from ralm.recipes.steps import in_order
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import new_folder

Verdict = Literal["seen", "not clear", "the other way", "not comparable"]
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """A cell with our figure and its 95% interval; None where there is nothing to measure, or one unit."""

    cell: Cell
    value: float | None
    interval: _Interval | None

    @property
    def difference(self) -> float | None:
        """Our figure minus the paper's."""
        if self.value is None or self.cell.published is None:
            return None
        return self.value - self.cell.published


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOrder:
    """An order, by how much the better figure is better, with its 95% interval from a paired bootstrap.

    `change` is a fraction of the worse figure where smaller is better, such as perplexity, otherwise a difference. An
    order is seen if the interval leaves out 0.
    """

    order: Order
    better: float
    worse: float
    change: float | None
    interval: _Interval | None

    @property
    def is_relative(self) -> bool:
        """Whether the change is a fraction."""
        return self.order.better.smaller_is_better

    @property
    def verdict(self) -> Verdict:
        """Whether the order is seen."""
        if self.interval is None or self.change is None:
            return "not comparable"
        sign = -1 if self.order.better.smaller_is_better else 1
        low, high = sorted(sign * end for end in self.interval)
        return "seen" if low > 0 else "the other way" if high < 0 else "not clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A recipe with everything measured. `changes`: how the run differs from the recipe; `is_partial`: whether it read
    a part of the text, so that its figures are not compared with the paper's."""

    recipe: Recipe
    cells: Sequence[MeasuredCell]
    orders: Sequence[MeasuredOrder]
    changes: Sequence[str] = ()
    is_partial: bool = False


def measure_recipe(
    recipe: Recipe, folders: Folders, changes: Sequence[str] = (), *, is_partial: bool = False
) -> Result:
    """Measure every cell and order from the folders of its steps; `Result` says what `changes` are.

    Raises DamagedFolderError if one cannot be read.
    """
    samples = {measure: measure.sample(folders) for measure in recipe.measures}
    return Result(
        recipe=recipe,
        cells=[_measured(cell, samples.get(cell.measure) if cell.measure else None) for cell in recipe.cells],
        orders=[_ordered(order, samples) for order in recipe.orders],
        changes=changes,
        is_partial=is_partial,
    )


def _measured(cell: Cell, sample: Sample | None) -> MeasuredCell:
    if sample is None or math.isnan(sample.value):
        return MeasuredCell(cell=cell, value=None, interval=None)
    return MeasuredCell(cell=cell, value=sample.value, interval=sample.interval)


def _ordered(order: Order, samples: dict[Measure, Sample]) -> MeasuredOrder:
    better, worse = samples[order.better], samples[order.worse]
    change = ends = None
    judged = better.counts_U.sum() > 0
    if judged and len(better.counts_U) > 1 and np.array_equal(better.counts_U, worse.counts_U):
        sums_UR = np.stack([better.sums_U, worse.sums_U], axis=1)
        drawn_DR = bootstrap_means(sums_UR, better.counts_U)
        drawn = better.figure(drawn_DR[:, 0]), worse.figure(drawn_DR[:, 1])
        if order.better.smaller_is_better:
            change, ends = better.value / worse.value - 1, interval(drawn[0] / drawn[1] - 1)
        else:
            change, ends = better.value - worse.value, interval(drawn[0] - drawn[1])
    return MeasuredOrder(order=order, better=better.value, worse=worse.value, change=change, interval=ends)


RECIPE_KIND: Final = "recipe"
RECIPE_VERSION: Final = 1
MARKDOWN: Final = "table.md"
PAGE: Final = "table.html"
CSV: Final = "cells.csv"
CELLS: Final = "cells.parquet"
FIGURE: Final = "figure.png"
_STAND_IN: Final = (
    "STAND-IN: small local data and models took the place of the paper's. These figures are not comparable with the "
    "paper's; they show that the recipe runs, and which of its orders hold here."
)
_NOTHING: Final = "-"
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #8886;padding:.3rem .6rem;text-align:left}"
    "code{font-size:.85em;overflow-wrap:anywhere}.stand-in{border:2px solid #c60;padding:.5rem 1rem}"
    ":root{color-scheme:light dark}"
)


def folder_name(recipe: str, only: str | None = None) -> str:
    """The name of the folder of a recipe's table, or of its part about one model."""
    part = "" if only is None else "-only-" + "-".join(only.lower().split())
    return recipe.replace("/", "-") + part


def write_result(result: Result, place: RecipeFolder, only: str | None = None) -> Path:
    """Write the folder of a recipe's result, or of its part about one model, atomically, in place of an older one;
    returns it."""
    folder = place.folder / "tables" / folder_name(result.recipe.name, only)
    with new_folder(folder, kind=RECIPE_KIND, force=True) as partial:
        cells = _cells(result, place)
        pq.write_table(cells, partial / CELLS, compression="zstd")
        pyarrow.csv.write_csv(cells, partial / CSV)
        (partial / MARKDOWN).write_text(markdown(result, place), encoding="utf-8")
        if result.recipe.figure is not None:
            from ralm.recipes.figures import draw

            draw(result, partial / FIGURE, stands_in=place.stands_in)
        (partial / PAGE).write_text(_page(result, place), encoding="utf-8")
        settings: dict[str, JsonValue] = {
            "recipe": result.recipe.name,
            "stand_in": place.stands_in,
            "changes": [*result.changes],
        }
        write_manifest(
            partial,
            kind=RECIPE_KIND,
            format_version=RECIPE_VERSION,
            settings=settings,
            counts={"cells": len(result.cells)},
        )
    return folder


def markdown(result: Result, place: RecipeFolder) -> str:
    """The table, the orders and the provenance as Markdown."""
    recipe = result.recipe
    parts = [f"# {recipe.paper}: {recipe.name}", *(f"**{said}**" for said in _warnings(result, place)), recipe.about]
    parts += [_as_markdown(*table(result, compared=_compared(result, place))), _NOTES]
    if recipe.figure is not None:
        parts.append(f"![{recipe.name}]({FIGURE})")
    if result.orders:
        parts += ["## Orders that the paper reports", _as_markdown(*orders(result))]
    if recipe.differs:
        parts += ["## What differs from the paper", "\n".join(f"- {one}" for one in recipe.differs)]
    parts += ["## Where the figures come from", _as_markdown(*provenance(result, place), code=2)]
    return "\n\n".join(parts) + "\n"


_NOTES: Final = (
    "Ours with the 95% interval of a bootstrap over stretches of the text, or over questions; in brackets the "
    "difference from the paper."
)


def _compared(result: Result, place: RecipeFolder) -> bool:
    """Whether the figures can be compared with the paper's."""
    return not (place.stands_in or result.is_partial)


def _warnings(result: Result, place: RecipeFolder) -> list[str]:
    """What a reader must know before the figures."""
    said = [_STAND_IN] if place.stands_in else []
    changed = f"CHANGED: {'; '.join(result.changes)}. Compare with the paper's figures only if the paper read the same."
    return [*said, changed] if result.changes else said


def table(result: Result, *, compared: bool) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the table as in the paper: a row for each way of reading, and beside each column of the
    paper one with our figures; ours alone if the paper has none."""
    columns = list(dict.fromkeys(one.cell.column for one in result.cells))
    places = any(one.cell.at is not None for one in result.cells)
    over = result.recipe.figure.over if result.recipe.figure else "at"
    heads = ["Model", "Reading", *([over] if places else [])]
    published = {one.cell.column for one in result.cells if one.cell.published is not None}
    heads += [head for column in columns for head in _heads(column, published=column in published)]
    cells = {(one.cell.model, one.cell.how, one.cell.at, one.cell.column): one for one in result.cells}
    rows = []
    for model, how, at in dict.fromkeys(key[:3] for key in cells):
        row = [model, how, *([_NOTHING if at is None else f"{at:g}"] if places else [])]
        for column in columns:
            pair = _pair(cells.get((model, how, at, column)), compared=compared)
            row += pair if column in published else pair[1:]
        rows.append(row)
    return heads, rows


def _heads(column: str, *, published: bool) -> list[str]:
    return [f"{column}: paper", "ours"] if published else [column]


def _pair(one: MeasuredCell | None, *, compared: bool) -> list[str]:
    """The paper's figure and ours, with the difference if they are `compared`."""
    if one is None:
        return [_NOTHING, _NOTHING]
    published = _NOTHING if one.cell.published is None else f"{one.cell.published:g}"
    if one.value is None:
        return [published, one.cell.why_not or _NOTHING]
    between = "" if one.interval is None else f" ({number(one.interval[0])} to {number(one.interval[1])})"
    difference = "" if not compared or one.difference is None else f" [{one.difference:+.2f}]"
    return [published, f"{number(one.value)}{between}{difference}"]


def orders(result: Result) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the orders."""
    heads = ["Order", "Better", "Worse", "Change (95%)", "Here"]
    return heads, [
        [one.order.said, number(one.better), number(one.worse), _change(one), one.verdict] for one in result.orders
    ]


def _change(one: MeasuredOrder) -> str:
    if one.change is None or one.interval is None:
        return _NOTHING
    write: Callable[[float], str] = "{:+.1%}".format if one.is_relative else "{:+.2f}".format
    return f"{write(one.change)} ({write(one.interval[0])} to {write(one.interval[1])})"


def provenance(result: Result, place: RecipeFolder) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of where cells come from: for each step, which cells are read off it, its folder and its
    command. Steps that only others read come before them."""
    rows: dict[str, list[str]] = {}
    for one in result.cells:
        measured = one.cell.measure.steps if one.cell.measure else ()
        for step in in_order(measured):
            folder = place.folder_of(step)
            name = f"{one.cell.model}, {one.cell.how}" if step in measured else ""
            row = rows.setdefault(folder.name, ["", f"steps/{folder.name}", command_text(place.command_line(step))])
            row[0] = row[0] or name
    return ["Figure", "Folder", "Command"], [*rows.values()]


def number(value: float) -> str:
    """A figure with as many digits as papers print."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def _cells(result: Result, place: RecipeFolder) -> pa.Table:
    rows = [_row(one, result, place) for one in result.cells]
    kinds = {name: pa.string() for name in _TEXTS} | {name: pa.float64() for name in _NUMBERS}
    schema = pa.schema([*kinds.items(), ("stand_in", pa.bool_())])
    return pa.Table.from_pylist(rows, schema=schema)


_TEXTS: Final = ("model", "how", "column", "measure", "folder", "command", "why_not", "changes")
_NUMBERS: Final = ("at", "published", "value", "low", "high", "difference")


def _row(one: MeasuredCell, result: Result, place: RecipeFolder) -> Mapping[str, object]:
    steps = one.cell.measure.steps if one.cell.measure else ()
    low, high = one.interval or (None, None)
    return {
        "model": one.cell.model,
        "how": one.cell.how,
        "column": one.cell.column,
        "measure": one.cell.measure.said if one.cell.measure else "",
        "at": one.cell.at,
        "published": one.cell.published,
        "value": one.value,
        "low": low,
        "high": high,
        "difference": one.difference if _compared(result, place) else None,
        "folder": " ".join(f"steps/{place.folder_of(step).name}" for step in steps),
        "command": "; ".join(command_text(place.command_line(step)) for step in steps),
        "why_not": one.cell.why_not,
        "stand_in": place.stands_in,
        "changes": "; ".join(result.changes),
    }


def result_as_json(result: Result, place: RecipeFolder, folder: Path) -> JsonValue:
    """The cells and orders by name."""
    cells: list[JsonValue] = [{**_row(one, result, place)} for one in result.cells]  # type: ignore[dict-item]
    found: list[JsonValue] = [
        {
            "order": one.order.said,
            "better": one.better,
            "worse": one.worse,
            "change": one.change,
            "interval": None if one.interval is None else [*one.interval],
            "verdict": one.verdict,
        }
        for one in result.orders
    ]
    name = result.recipe.name
    return {"recipe": name, "stand_in": place.stands_in, "folder": str(folder), "cells": cells, "orders": found}


def _as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], code: int | None = None) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    written = [[f"`{cell}`" if place == code else cell for place, cell in enumerate(row)] for row in rows]
    return "\n".join([line(heads), "|" + "---|" * len(heads), *map(line, written)])


def _as_html(heads: Sequence[str], rows: Iterable[Sequence[str]], code: int | None = None) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        written = (html.escape(cell) for cell in cells)
        inner = (
            f"<code>{cell}</code>" if place == code and tag == "td" else cell for place, cell in enumerate(written)
        )
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in inner) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(heads, 'th')}</thead><tbody>{body}</tbody></table>"


def _page(result: Result, place: RecipeFolder) -> str:
    recipe = result.recipe
    title = html.escape(f"{recipe.paper}: {recipe.name}")
    parts = [f"<h1>{title}</h1>"]
    parts += [f'<p class="stand-in"><strong>{html.escape(said)}</strong></p>' for said in _warnings(result, place)]
    parts += [
        f"<p>{html.escape(recipe.about)}</p>",
        _as_html(*table(result, compared=_compared(result, place))),
        f"<p>{html.escape(_NOTES)}</p>",
    ]
    if recipe.figure is not None:
        parts.append(f'<p><img src="{FIGURE}" alt="{title}" style="max-width:100%"></p>')
    if result.orders:
        parts += ["<h2>Orders that the paper reports</h2>", _as_html(*orders(result))]
    if recipe.differs:
        items = "".join(f"<li>{html.escape(one)}</li>" for one in recipe.differs)
        parts += ["<h2>What differs from the paper</h2>", f"<ul>{items}</ul>"]
    parts += ["<h2>Where the figures come from</h2>", _as_html(*provenance(result, place), code=2)]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
