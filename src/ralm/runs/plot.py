"""The plot of a sweep or a training. Needs the extra `plots`."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

INCHES: Final = (5.5, 3.6)
DOTS_AN_INCH: Final = 150
_WRAPPED: Final = 32


def draw_lines(
    over: str,
    rows: Sequence[dict[str, Any]],
    panels: Mapping[str, Mapping[str, str]],
    path: Path,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw columns with their ends over the column `over`: a panel for each label of an axis."""
    places: dict[str, Any] = {row[over]: row[over] for row in rows}
    try:
        places = {value: float(value) for value in places}
        rows, form = sorted(rows, key=lambda row: places[row[over]]), "o-"
    except ValueError:
        form = "o"
    figure = Figure(figsize=(max(1, len(panels)) * INCHES[0], INCHES[1]), dpi=DOTS_AN_INCH, layout="constrained")
    several = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for axes, (label, columns) in zip(several, panels.items(), strict=False):
        for column, name in columns.items():
            drawn = [row for row in rows if row.get(column) is not None]
            at = [places[row[over]] for row in drawn]
            [line] = axes.plot(at, [row[column] for row in drawn], form, label=name)
            if ended := [row for row in drawn if row.get(f"{column}_low") is not None]:
                at = [places[row[over]] for row in ended]
                low, high = ([row[f"{column}{end}"] for row in ended] for end in ("_low", "_high"))
                draw = axes.vlines if form == "o" else axes.fill_between
                draw(at, low, high, color=line.get_color(), alpha=0.3)
        if form == "o":
            axes.set_xticks([*places], [textwrap.fill(place, _WRAPPED) for place in places], rotation=90)
            axes.tick_params("x", labelsize="x-small")
        elif logarithmic and min(places.values(), default=0) > 0:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:.3g}")
        elif logarithmic and any(places.values()):
            axes.set_xscale("symlog", base=2, linthresh=min(place for place in places.values() if place > 0))
            axes.xaxis.set_major_formatter("{x:.3g}")
        axes.set_xlabel(over)
        axes.set_ylabel(label, wrap=True)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.savefig(path)
