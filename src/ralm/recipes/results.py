"""Measures a recipe and writes its result: a table with the paper's figures and ours, and a plot.

table.md        the table, the orders, and the commands
table.json      a row for each cell, with its command and folder, and for each order
figure.png      the figure, if the recipe has one
manifest.json   the name of the recipe, and a checksum of each file
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ralm.evaluation.intervals import LEVEL, STRETCH, Estimate, compare, holm
from ralm.recipes.measures import Sample, sample_of, targets_with_passage
from ralm.recipes.recipe import Cell, Measure, Order, Recipe
from ralm.storage import manifest, outputs
from ralm.terminal import to_json

RECIPE_KIND: Final = outputs.FolderKind("recipe")
MARKDOWN: Final = "table.md"
JSON: Final = "table.json"
FIGURE: Final = "figure.png"
_STAND_IN: Final = (
    "**STAND-IN: small local data and models took the place of the paper's.** These figures are not comparable with "
    "the paper's; they show that the recipe runs, and which of its orders hold here."
)
_CHANGED: Final = "Compare with the paper's figures only if the paper read the same."
_LITTLE: Final = 0.2
"""A smaller share of the targets that were read with a passage is told in the cell."""

Row: TypeAlias = dict[str, Any]


def measure_recipe(recipe: Recipe, changes: Sequence[str], *, stand_in: bool, is_partial: bool) -> Row:
    """Return the content of table.json; `changes` says how the run differs from the recipe, in words.

    With one stand-in for all models, its figures are those of every model: they stand in its cells alone, and each
    order once. The other cells keep the paper's figures.
    """
    samples = {measure: sample_of(measure) for measure in recipe.measures}
    first_models: dict[object, str] = {}
    first_columns: dict[str, tuple[str, str]] = {}
    cells = []
    for cell in recipe.cells:
        model = first_models.setdefault((cell.how, cell.column, cell.at, cell.measure or cell), cell.model)
        if model != cell.model:
            cell = replace(cell, measure=None, why_not=f"same stand-in as {model}")
        if cell.measure is not None:
            notes = dict.fromkeys(_notes(cell, cell.measure, first_columns))
            estimate = samples[cell.measure].estimate
            cells.append(_cell_row(cell, estimate, notes, is_comparable=not (stand_in or is_partial)))
        elif cell.published is not None:
            cells.append(_cell_row(cell))
    orders = {(order.better, order.worse): order for order in reversed(recipe.orders)}
    rows = order_rows([*orders.values()][::-1], samples)
    return {"recipe": recipe.name, "stand_in": stand_in, "changes": [*changes], "cells": cells, "orders": rows}


def _notes(cell: Cell, measure: Measure, first_columns: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield that another column has the same text, first seen in `first_columns`, or that few targets had a passage."""
    for resource, source in cell.reads:
        if resource.kind in ("text", "questions", "choices"):
            name, column = first_columns.setdefault(source, (resource.name, cell.column))
            if name != resource.name:
                yield f"same text as {column}"
    for step in measure.steps:
        if "--retrieved" in step.words:
            read, targets = targets_with_passage(step.path)
            if read < _LITTLE * targets:
                yield f"only {read:,} of {targets:,} tokens with a passage"


def _cell_row(
    cell: Cell, figure: Estimate | None = None, notes: Iterable[str] = (), *, is_comparable: bool = False
) -> Row:
    """Return a cell with our figure, minus the paper's if they are comparable, and the commands that it comes from."""
    value = None if figure is None or math.isnan(figure.value) else figure.value
    difference = None
    if is_comparable and value is not None and cell.published is not None:
        difference = value - cell.published
    steps = cell.measure.steps if cell.measure else ()
    return {
        "model": cell.model_read,
        "how": cell.how,
        "column": cell.column,
        "at": cell.at,
        "line": cell.line or cell.model_read,
        "published": cell.published,
        "value": value,
        "low": figure.low if figure else None,
        "high": figure.high if figure else None,
        "difference": difference,
        "notes": "; ".join(notes) if value is not None else cell.why_not or "nothing to measure",
        "folder": " ".join(f"steps/{step.path.name}" for step in steps),
        "command": "; ".join(step.command for step in steps),
    }


def order_rows(orders: Sequence[Order], samples: Mapping[Measure, Sample]) -> list[Row]:
    """Return the orders with figures and change, relative for a loss; verdicts are at 5% over all of them (Holm)."""
    pairs = [(samples[order.better], samples[order.worse]) for order in orders]
    changes = [_change_of(better, worse) for better, worse in pairs]
    p_values = holm([None if change is None else change.p_value for change in changes])
    return [
        {
            "order": order.text,
            "is_relative": better.is_loss,
            "better": better.estimate.value,
            "worse": worse.estimate.value,
            "change": None if change is None else change.value,
            "interval": None if change is None else change.ends,
            "verdict": _verdict(change, p_value, smaller_is_better=better.is_loss),
        }
        for order, (better, worse), change, p_value in zip(orders, pairs, changes, p_values, strict=True)
    ]


def _change_of(better: Sample, worse: Sample) -> Estimate | None:
    """Return the change from the worse to the better figure; None if they are not of the same units."""
    if not np.array_equal(better.units.counts_U, worse.units.counts_U):
        return None
    change = compare(better.units, worse.units, better.statistic)
    change = change if better.is_loss else change.times(better.factor)
    return None if math.isnan(change.value) else change


def _verdict(change: Estimate | None, p_value: float | None, *, smaller_is_better: bool) -> str:
    if change is None:
        return "not comparable"
    if p_value is None:
        return "no interval"
    if p_value > LEVEL:
        return "not clear"
    return "seen" if (change.value < 0) == smaller_is_better else "the other way"


def write_result(recipe: Recipe, result: Row, path: Path) -> None:
    """Write the folder of a recipe's result atomically, in place of an older one."""
    with outputs.new_folder(path, kind=RECIPE_KIND, force=True) as partial:
        (partial / JSON).write_text(to_json(result) + "\n", encoding="utf-8")
        commands = "\n".join(step.command for step in recipe.steps)
        sources = f"## Where the figures come from\n\n```sh\n{commands}\n```\n"
        (partial / MARKDOWN).write_text(f"{as_markdown(recipe, result)}\n\n{sources}", encoding="utf-8")
        if recipe.over:
            _draw(recipe, result, partial / FIGURE)
        settings = {key: result[key] for key in ("recipe", "stand_in", "changes")}
        manifest.write_manifest(partial, kind=RECIPE_KIND, settings=settings, counts={"cells": len(result["cells"])})


def as_markdown(recipe: Recipe, result: Row) -> str:
    """Return the table and the orders as Markdown."""
    orders = "Orders to expect" if recipe.name.startswith("analysis/") else "Orders that the paper reports"
    parts = [
        f"# {recipe.paper} ({recipe.name})",
        _STAND_IN if result["stand_in"] else "",
        f"**CHANGED: {'; '.join(result['changes'])}.** {_CHANGED}" if result["changes"] else "",
        recipe.about,
        _table(["Model", "Reading", "At", "Figure", "Paper", "Ours", "Difference", ""], result["cells"], _cell_line),
        f"Ours with the 95% interval over stretches of {STRETCH} tokens of the text, or over questions.",
        f"## {orders}" if result["orders"] else "",
        _table(["Order", "Better", "Worse", "Change (95%)", "Here"], result["orders"], _order_line),
        "## What differs from the paper" if recipe.differs else "",
        "\n".join(f"- {sentence}" for sentence in recipe.differs),
    ]
    return "\n\n".join(filter(None, parts))


def _table(heads: Sequence[str], rows: Sequence[Row], line_of: Callable[[Row], list[str]]) -> str:
    """Return a table without the columns that are empty in all lines; empty without rows."""
    lines = [line_of(row) for row in rows]
    kept = [place for place in range(len(heads)) if any(line[place] for line in lines)]
    parts = [heads, ["---"] * len(heads), *lines]
    shown = ([line[place].replace("|", "\\|") for place in kept] for line in parts)
    return "\n".join(f"| {' | '.join(line)} |" for line in shown) if rows else ""


def _cell_line(row: Row) -> list[str]:
    published, at = (f"{row[key]:g}" if row[key] is not None else "" for key in ("published", "at"))
    ours = "" if row["value"] is None else with_ends(row["value"], row["low"], row["high"], _form(row["value"]))
    difference = "" if row["difference"] is None else f"{row['difference']:+.2f}"
    return [row["model"], row["how"], at, row["column"], published, ours, difference, row["notes"]]


def _order_line(row: Row) -> list[str]:
    better, worse = (f"{row[side]:{_form(row[side])}}" for side in ("better", "worse"))
    form = "+.1%" if row["is_relative"] else "+.2f"
    low, high = row["interval"] or (None, None)
    change = "" if row["change"] is None else with_ends(row["change"], low, high, form)
    return [row["order"], better, worse, change, row["verdict"]]


def with_ends(value: float, low: float | None, high: float | None, form: str) -> str:
    """Return a figure with its interval, if it has one."""
    return f"{value:{form}}" if low is None else f"{value:{form}} ({low:{form}} to {high:{form}})"


def _form(value: float) -> str:
    """Return the format with as many digits as papers print."""
    return ".3f" if abs(value) < 10 else ".2f"


def _draw(recipe: Recipe, result: Row, path: Path) -> None:
    """Draw a panel for each column: lines over places on the x axis, or over the ways of reading."""
    from ralm.runs.sweep import draw_lines

    over = f"{recipe.over} (STAND-IN)" if result["stand_in"] else recipe.over
    shown = [row for row in result["cells"] if row["value"] is not None]
    places = list(dict.fromkeys(row["at"] for row in shown if row["at"] is not None))
    points: dict[Any, Row] = {}
    panels: dict[str, dict[str, str]] = {}
    for row in shown:
        series = f"{row['line']}, {row['how']}" if places else row["line"]
        key = f"{row['column']}, {series}"
        labels = panels.setdefault(row["column"], {})
        labels[key] = series
        if row["published"] is not None:
            labels[f"{key} (paper)"] = f"{series} (paper)"
        for place in [row["at"]] if row["at"] is not None else places or [row["how"]]:
            point = points.setdefault(place, {over: place})
            point |= {key: row["value"], f"{key}_low": row["low"], f"{key}_high": row["high"]}
            point[f"{key} (paper)"] = row["published"]
    draw_lines(over, [*points.values()], panels, path, logarithmic=recipe.logarithmic)
