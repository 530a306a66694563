"""The plot of a sweep: token perplexity at every value, with passages and without. Needs the `plots` extra."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from pydantic import JsonValue

INCHES: Final = (5.5, 3.6)
DOTS_AN_INCH: Final = 150


def draw_sweep(option: str, rows: Sequence[dict[str, JsonValue]], path: Path) -> None:
    """Draw the rows of a sweep: a line, sorted by value, if the values are numbers, else bars."""
    values = [str(row[option]) for row in rows]
    figure = Figure(figsize=INCHES, dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    if all(map(_is_number, values)):
        order = sorted(rows, key=lambda row: _number(row, option))
        places = [_number(row, option) for row in order]
        axes.plot(places, [_number(row, "token_perplexity") for row in order], "o-", label="with passages")
        axes.plot(places, [_number(row, "none_token_perplexity") for row in order], "--", label="no retrieval")
    else:
        axes.bar(values, [_number(row, "token_perplexity") for row in rows], label="with passages", color="C0")
        without = [_number(row, "none_token_perplexity") for row in rows]
        axes.plot(values, without, "--", label="no retrieval", color="C1")
    axes.set_xlabel(f"--{option}")
    axes.set_ylabel("token perplexity")
    axes.legend()
    figure.savefig(path)


def _number(row: dict[str, JsonValue], column: str) -> float:
    return float(str(row[column]))


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
