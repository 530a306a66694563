"""A sweep: the same text or the same questions evaluated with several values of one option.

Its folder has `sweep.csv` with a row per value, the plot `sweep.png`, `summary.json`, `manifest.json`, and the run with
each value as a folder.
"""

import logging
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
from pydantic import JsonValue

from ralm.errors import MissingExtraError, extra
from ralm.evaluation.intervals import Comparison, fields_of
from ralm.runs.run import write_summary
from ralm.storage import outputs

SWEEP_KIND: Final = outputs.FolderKind("sweep")
SWEEP_TABLE: Final = "sweep.csv"
SWEEP_PLOT: Final = "sweep.png"
_PANELS: Final = {
    "token perplexity": {"token_perplexity": "with passages", "none_token_perplexity": "no retrieval"},
    "change of token perplexity": {"change": "from no retrieval"},
    "share of the questions": {
        "exact_match": "exact match",
        "f1": "F1",
        "accuracy": "accuracy",
        "has_answer": "an answer in the passages",
    },
    "log-probability, nats": {"gold_log_prob": "right answer"},
}
"""What the plot shows: measures with their labels, by the label of the axis."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+|\.\.+")
_LONGEST_NAME: Final = 100
_INCHES: Final = (5.5, 3.6)
_DOTS_AN_INCH: Final = 150
_WRAPPED: Final = 32

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Sweep:
    """An evaluation of a text or of questions for each value of an option, with its configuration."""

    option: str
    evaluations: Mapping[str, Any]
    configs: Mapping[str, dict[str, JsonValue]]

    @cached_property
    def comparison(self) -> Comparison:
        """The figures of all values, and their changes from the first."""
        return Comparison([*self.evaluations], [evaluation.units for evaluation in self.evaluations.values()])

    def rows(self) -> list[dict[str, JsonValue]]:
        """Return a row per value: each figure, and each change from the first value, with the ends of its interval."""
        rows = []
        for place, value in enumerate(self.evaluations):
            row: dict[str, JsonValue] = {self.option: value}
            for name, figure in self.comparison.estimates(place).items():
                row |= figure.columns(name)
            rows.append(row)
        return rows

    def summary(self) -> dict[str, JsonValue]:
        """Return the summary and configuration of each value, with its figures beside those of the others."""
        points: list[JsonValue] = []
        for place, (value, evaluation) in enumerate(self.evaluations.items()):
            unshared = self.comparison.tables[place].columns.keys() - self.comparison.columns.keys()
            summary = evaluation.summary().items()
            figures = {key: figure for key, figure in summary if key.removesuffix("_interval") not in unshared}
            shared = fields_of(self.comparison.estimates(place))
            points.append({self.option: value, **figures, **shared, "config": self.configs[value]})
        return {"option": self.option, "points": points}

    def folder_names(self) -> dict[str, str]:
        """Return the name of the folder of each value's run, which any file system and a manifest can hold."""
        names: dict[str, str] = {}
        for place, value in enumerate(self.evaluations):
            name = _UNSAFE.sub("_", f"{self.option}-{value}")[:_LONGEST_NAME]
            while name in names.values():
                name = f"{name}-{place}"
            names[value] = name
        return names


def check_plot() -> None:
    """Raise MissingExtraError if matplotlib is missing; called before the work for a plot."""
    with extra("plots", "the plot needs", ("matplotlib",)):
        import matplotlib.figure  # noqa: F401


def write_sweep(
    out: Path | str,
    swept: Sweep,
    write: Callable[[Path, Any, dict[str, JsonValue]], None],
    *,
    force: bool = False,
) -> None:
    """Write the folder of a sweep atomically: a run with each value by `write`, the table, and the plot."""
    rows = swept.rows()
    names = dict.fromkeys(name for row in rows for name in row)
    rows = [{name: row.get(name) for name in names} for row in rows]
    with outputs.new_folder(Path(out), kind=SWEEP_KIND, force=force) as folder:
        for value, name in swept.folder_names().items():
            write(folder / name, swept.evaluations[value], swept.configs[value])
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), folder / SWEEP_TABLE)
        try:
            check_plot()
        except MissingExtraError as error:
            _logger.info("not drawn: %s", error)
        else:
            panels = {
                label: {measure: name for measure, name in measures.items() if measure in names}
                for label, measures in _PANELS.items()
                if any(measure in names for measure in measures)
            }
            draw_lines(swept.option, rows, panels, folder / SWEEP_PLOT)
        write_summary(folder, SWEEP_KIND, swept.summary(), {"option": swept.option}, {"points": len(rows)})


def draw_lines(
    over: str,
    rows: Sequence[dict[str, Any]],
    panels: Mapping[str, Mapping[str, str]],
    path: Path,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw columns with their ends over the column `over`: a panel for each label of an axis; needs `check_plot`."""
    from matplotlib.figure import Figure

    places: dict[str, Any] = {row[over]: row[over] for row in rows}
    try:
        places = {value: float(value) for value in places}
        rows, form = sorted(rows, key=lambda row: places[row[over]]), "o-"
    except ValueError:
        form = "o"
    figure = Figure(figsize=(max(1, len(panels)) * _INCHES[0], _INCHES[1]), dpi=_DOTS_AN_INCH, layout="constrained")
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
