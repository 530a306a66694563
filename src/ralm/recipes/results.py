"""Measures a recipe and writes its result: the paper's table with our figures beside it, and a plot.

table.md        the table as in the paper, the orders, and the source of every cell
table.json      what `ralm recipe --json` prints: a row for each cell, with its command and folder, and for each order
figure.png      the figure, if the recipe has one
manifest.json   the name of the recipe, and a checksum of each file
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ralm.evaluation.intervals import LEVEL, STRETCH, Estimate, compare, holm
from ralm.recipes.folder import STEPS, RecipeFolder
from ralm.recipes.measures import Measure, Sample
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.runner import command_text
from ralm.storage import manifest, outputs
from ralm.terminal import to_json

RECIPE_KIND: Final = outputs.FolderKind("recipe")
MARKDOWN: Final = "table.md"
JSON: Final = "table.json"
FIGURE: Final = "figure.png"
SOURCES: Final = "## Where the figures come from"
_STAND_IN: Final = (
    "STAND-IN: small local data and models took the place of the paper's. These figures are not comparable with the "
    "paper's; they show that the recipe runs, and which of its orders hold here."
)
_INTERVALS: Final = f"Ours with the 95% interval over stretches of {STRETCH} tokens of the text, or over questions"
_NOTHING: Final = "-"

_Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A recipe with a row for each cell and order, as JSON has them: our figure and its 95% interval, None if there is
    none. `changes` lists how the run differs from the recipe, `commands` those of its steps."""

    recipe: Recipe
    cells: Sequence[_Row]
    orders: Sequence[_Row]
    changes: Sequence[str]
    commands: Sequence[str]
    stand_in: bool

    @property
    def warnings(self) -> list[str]:
        """The warnings that stand before the figures."""
        warnings = [_STAND_IN] if self.stand_in else []
        if self.changes:
            changes = "; ".join(self.changes)
            warnings.append(f"CHANGED: {changes}. Compare with the paper's figures only if the paper read the same.")
        return warnings


def measure_recipe(
    recipe: Recipe, folder: RecipeFolder, changes: Sequence[str] = (), *, is_partial: bool = False
) -> Result:
    """Measure every cell and order from the results of its steps; with `is_partial`, they read a part of the text."""
    paths = {step: folder.path_of(step) for step in recipe.steps}
    samples = {measure: measure.sample(paths) for measure in recipe.measures}
    is_comparable = not (folder.stand_in or is_partial)
    cells = []
    for cell in recipe.cells:
        row = _cell_row(cell, samples[cell.measure] if cell.measure else None, folder, is_comparable)
        cells.append({**row, "stand_in": folder.stand_in, "changes": "; ".join(changes)})
    return Result(
        recipe=recipe,
        cells=cells,
        orders=order_rows(recipe.orders, samples),
        changes=changes,
        commands=[command_text(folder.command_line(step)) for step in folder.distinct_steps(recipe.steps)],
        stand_in=folder.stand_in,
    )


def _cell_row(cell: Cell, sample: Sample | None, folder: RecipeFolder, is_comparable: bool) -> _Row:
    """A cell with our figure, minus the paper's if they are comparable, and the commands that it comes from."""
    figure = None if sample is None or math.isnan(sample.estimate.value) else sample.estimate
    value = None if figure is None else figure.value
    difference = None
    if is_comparable and value is not None and cell.published is not None:
        difference = value - cell.published
    steps = cell.measure.steps if cell.measure else ()
    return {
        "model": cell.model,
        "how": cell.how,
        "column": cell.column,
        "measure": cell.measure.label if cell.measure else "",
        "at": cell.at,
        "published": cell.published,
        "value": value,
        "low": None if figure is None else figure.low,
        "high": None if figure is None else figure.high,
        "difference": difference,
        "folder": " ".join(f"{STEPS}/{folder.path_of(step).name}" for step in steps),
        "command": "; ".join(command_text(folder.command_line(step)) for step in steps),
        "why_not": cell.why_not,
    }


def order_rows(orders: Sequence[Order], samples: Mapping[Measure, Sample]) -> list[_Row]:
    """Return the orders with both figures and the change from the worse to the better one: relative where smaller is
    better, else the difference. An order is seen, or the other way, at a level of 5% over all of the recipe (Holm)."""
    pairs = [(samples[order.better], samples[order.worse]) for order in orders]
    changes = [_change_of(better, worse) for better, worse in pairs]
    p_values = holm([None if change is None else change.p_value for change in changes])
    return [
        {
            "order": order.text,
            "better": better.estimate.value,
            "worse": worse.estimate.value,
            "change": None if change is None else change.value,
            "interval": None if change is None else change.ends,
            "verdict": _verdict(change, p_value, smaller_is_better=order.better.smaller_is_better),
        }
        for order, (better, worse), change, p_value in zip(orders, pairs, changes, p_values, strict=True)
    ]


def _change_of(better: Sample, worse: Sample) -> Estimate | None:
    """The change from the worse to the better figure; None if they are not of the same units."""
    if not np.array_equal(better.units.counts_U, worse.units.counts_U):
        return None
    change = compare(better.units, worse.units, better.statistic)
    is_relative = better.statistic in ("ratio", "perplexity") and better.base is None
    change = change if is_relative else change.times(better.factor)
    return None if math.isnan(change.value) else change


def _verdict(change: Estimate | None, p_value: float | None, *, smaller_is_better: bool) -> str:
    if change is None:
        return "not comparable"
    if p_value is None:
        return "no interval"
    if p_value > LEVEL:
        return "not clear"
    return "seen" if (change.value < 0) == smaller_is_better else "the other way"


def folder_name(recipe: str, only: str | None = None) -> str:
    """Return the name of the folder of a recipe's table, or of its part about one model."""
    part = "" if only is None else "-only-" + "-".join(only.lower().split())
    return recipe.replace("/", "-") + part


def write_result(result: Result, path: Path) -> None:
    """Write the folder of a recipe's result atomically, in place of an older one."""
    with outputs.new_folder(path, kind=RECIPE_KIND, force=True) as partial:
        (partial / JSON).write_text(to_json(result_as_json(result, path)) + "\n", encoding="utf-8")
        (partial / MARKDOWN).write_text(as_markdown(result), encoding="utf-8")
        if result.recipe.figure is not None:
            from ralm.recipes.figures import draw

            draw(result, partial / FIGURE)
        manifest.write_manifest(
            partial,
            kind=RECIPE_KIND,
            settings={"recipe": result.recipe.name, "stand_in": result.stand_in, "changes": [*result.changes]},
            counts={"cells": len(result.cells)},
        )


def result_as_json(result: Result, path: Path) -> _Row:
    """Return the cells and orders by name; `path` is that of the written result."""
    return {
        "recipe": result.recipe.name,
        "stand_in": result.stand_in,
        "folder": str(path),
        "cells": [*result.cells],
        "orders": [*result.orders],
    }


def as_markdown(result: Result) -> str:
    """Return the table, the orders and the sources as Markdown."""
    return "\n\n".join(_paragraphs(result)) + "\n"


def _paragraphs(result: Result) -> Iterator[str]:
    recipe = result.recipe
    yield f"# {recipe.paper} ({recipe.name})"
    yield from (f"**{warning}**" for warning in result.warnings)
    yield recipe.about
    yield _paper_table(result)
    is_compared = any(row["difference"] is not None for row in result.cells)
    yield f"{_INTERVALS}{'; in brackets the difference from the paper' if is_compared else ''}."
    if recipe.figure is not None:
        yield f"![{recipe.name}]({FIGURE})"
    if result.orders:
        yield "## Orders to expect" if recipe.is_analysis else "## Orders that the paper reports"
        rows = (
            [row["order"], _number(row["better"]), _number(row["worse"]), _change(order, row), row["verdict"]]
            for order, row in zip(recipe.orders, result.orders, strict=True)
        )
        yield _table(["Order", "Better", "Worse", "Change (95%)", "Here"], rows)
    if recipe.differs:
        yield "## What differs from the paper"
        yield "\n".join(f"- {sentence}" for sentence in recipe.differs)
    yield SOURCES
    yield "\n".join(["```sh", *result.commands, "```"])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), "|" + "---|" * len(heads), *map(line, rows)])


def _paper_table(result: Result) -> str:
    """The table as in the paper: a row for each way of reading, and our figures beside each column of the paper."""
    columns = list(dict.fromkeys(row["column"] for row in result.cells))
    has_places = any(row["at"] is not None for row in result.cells)
    over = result.recipe.figure.over if result.recipe.figure else "at"
    published = {row["column"] for row in result.cells if row["published"] is not None}
    heads = ["Model", "Reading", *([over] if has_places else [])]
    for column in columns:
        heads += [f"{column}: paper", "ours"] if column in published else [column]
    cells = {(row["model"], row["how"], row["at"], row["column"]): row for row in result.cells}
    lines = []
    for model, how, at in dict.fromkeys(key[:3] for key in cells):
        line = [model, how, *([_NOTHING if at is None else f"{at:g}"] if has_places else [])]
        for column in columns:
            pair = _pair(cells.get((model, how, at, column)))
            line += pair if column in published else pair[1:]
        lines.append(line)
    return _table(heads, lines)


def _pair(row: _Row | None) -> list[str]:
    """The paper's figure and ours, with the difference if they are comparable."""
    if row is None:
        return [_NOTHING, _NOTHING]
    published = _NOTHING if row["published"] is None else f"{row['published']:g}"
    if row["value"] is None:
        return [published, row["why_not"] or _NOTHING]
    ends = "" if row["low"] is None else f" ({_number(row['low'])} to {_number(row['high'])})"
    difference = "" if row["difference"] is None else f" [{row['difference']:+.2f}]"
    return [published, f"{_number(row['value'])}{ends}{difference}"]


def _change(order: Order, row: _Row) -> str:
    if row["change"] is None:
        return _NOTHING
    form = "+.1%" if order.better.smaller_is_better else "+.2f"
    change, *ends = (format(number, form) for number in (row["change"], *(row["interval"] or ())))
    return f"{change} ({' to '.join(ends)})" if ends else change


def _number(value: float) -> str:
    """A figure with as many digits as papers print."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"
