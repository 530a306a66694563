"""The plot of a sweep: token perplexity at every value, with passages and without. Needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from pydantic import JsonValue

INCHES: Final = (5.5, 3.6)
DOTS_AN_INCH: Final = 150


def draw_sweep(option: str, rows: Sequence[dict[str, JsonValue]], path: Path) -> None:
    """Draw the rows of a sweep, in the order of their values where these are numbers; bars where they are names."""
    places = [_number(row[option]) for row in rows]
    figure = Figure(figsize=INCHES, dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    curves = {"with passages": "token_perplexity", "no retrieval": "none_token_perplexity"}
    if all(place is not None for place in places):
        order = sorted(range(len(rows)), key=lambda place: places[place] or 0.0)
        for (label, column), style in zip(curves.items(), ("o-", "--"), strict=True):
            axes.plot([places[i] for i in order], [rows[i][column] for i in order], style, label=label)
    else:
        names = [str(row[option]) for row in rows]
        axes.bar(names, [row["token_perplexity"] for row in rows], label="with passages", color="C0")
        axes.plot(names, [row["none_token_perplexity"] for row in rows], "--", label="no retrieval", color="C1")
    axes.set_xlabel(f"--{option}")
    axes.set_ylabel("token perplexity")
    axes.legend()
    figure.savefig(path)


def _number(value: JsonValue) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
