"""The figures of several runs over the same units side by side, and their changes from the first run.

Works with tables of units alone: it knows neither texts nor questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.evaluation.intervals import Estimate, Statistic, Units, compare, estimate


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The units of a measure; of a measure that is a change, also the units of the `base` that it is a change from."""

    units: Units
    statistic: Statistic
    base: Units | None = None

    @property
    def figure(self) -> Estimate:
        """The figure of the run; that of a change has a p-value."""
        if self.base is None:
            return replace(estimate(self.units, self.statistic), p_value=None)
        return compare(self.units, self.base, self.statistic)

    def change_from(self, other: "Column") -> Estimate:
        """Return the change from another run over the same units."""
        return compare(self.units, other.units, self.statistic)

    def select(self, chosen_U: NDArray[np.bool_]) -> "Column":
        """Return the column of some units."""
        base = None if self.base is None else self.base.select(chosen_U)
        return replace(self, units=self.units.select(chosen_U), base=base)


@dataclass(frozen=True, slots=True, eq=False)
class UnitTable:
    """The measures of a run over its units, called `noun`; equal `identity` means equal targets or questions."""

    noun: str
    identity: str
    columns: Mapping[str, Column]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs by name, each with its table of units.

    Figures side by side are of the same units, those that count in all runs. Runs with other targets or questions than
    the first have their own units, and no changes from it. A measure may be missing in some runs.
    """

    names: Sequence[str]
    tables: Sequence[UnitTable]

    @property
    def noun(self) -> str:
        """What the units are: documents, stretches, questions or topics."""
        return self.tables[0].noun

    @property
    def units(self) -> int:
        """The number of units of the first run."""
        return max((len(column.units.counts_U) for column in self.tables[0].columns.values()), default=0)

    @cached_property
    def columns(self) -> Mapping[str, Mapping[int, Column]]:
        """The columns of the runs by measure and by the place of the run, without measures that count nothing."""
        names = dict.fromkeys(name for table in self.tables for name in table.columns)
        by_name = {name: self._shared(name) for name in names}
        return {name: columns for name, columns in by_name.items() if columns}

    def _shared(self, name: str) -> dict[int, Column]:
        tables = enumerate(self.tables)
        columns = {place: table.columns[name] for place, table in tables if name in table.columns}
        counting = {place: column for place, column in columns.items() if column.units.counts_U.any()}
        alike = [column.units.counts_U > 0 for place, column in counting.items() if self._is_alike(place)]
        shared_U = np.logical_and.reduce(alike) if alike else np.zeros(0, dtype=np.bool_)
        for place in filter(self._is_alike, counting):
            counting[place] = counting[place].select(shared_U)
        return {place: column for place, column in counting.items() if column.units.counts_U.any()}

    def _is_alike(self, place: int) -> bool:
        """Return whether a run is over the same targets or questions as the first."""
        return self.tables[place].identity == self.tables[0].identity

    @cached_property
    def figures(self) -> Mapping[str, Mapping[int, Estimate]]:
        """The figure of each run, by measure and by the place of the run."""
        return {name: {run: column.figure for run, column in of.items()} for name, of in self.columns.items()}

    @cached_property
    def changes(self) -> Mapping[str, Mapping[int, Estimate]]:
        """The changes of runs from the first, by measure and by the place of the run."""
        return {
            name: {
                place: column.change_from(columns[0])
                for place, column in columns.items()
                if place > 0 and column.base is None and 0 in columns and self._is_alike(place)
            }
            for name, columns in self.columns.items()
        }

    def estimates(self, place: int) -> dict[str, Estimate]:
        """Return the figures of a run by measure, and its changes from the first as `MEASURE_from_first`."""
        estimates: dict[str, Estimate] = {}
        for name, figures in self.figures.items():
            if place in figures:
                estimates[name] = figures[place]
            if place in self.changes[name]:
                estimates[f"{name}_from_first"] = self.changes[name][place]
        return estimates

    def as_json(self) -> dict[str, JsonValue]:
        """Return the number of units, and each run with its figures and changes."""
        runs = ({"run": name, **fields_of(self.estimates(place))} for place, name in enumerate(self.names))
        return {self.noun: self.units, "runs": [*runs]}


def fields_of(estimates: Mapping[str, Estimate]) -> dict[str, JsonValue]:
    """Return estimates as JSON: each value under its name, and the ends of its interval beside it."""
    return {key: value for name, estimate in estimates.items() for key, value in estimate.fields(name).items()}
