"""Figures and gains with their 95% intervals, from a table of units: documents, stretches of a text, questions, topics.

A unit has the sum and the count of a measure. A figure is a function of the ratio of both totals, and two runs over the
same units are compared unit by unit. The interval is Student's t for the linearised ratio (Cochran, Sampling
Techniques, 1977, section 6.3), with a degree of freedom less than there are units; that of a share is Wilson's (Journal
of the American Statistical Association 22, 1927). Values within a unit may depend on each other, units may not. Fewer
than ten units give no interval, nor do differences that are equal in all units. docs/method.md has the measured level.

A `Comparison` has the figures of several runs over the same units side by side, and their changes from the first run.
It knows neither texts nor questions.

Letters of shapes: T values, U units.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan, sqrt
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.special import ndtri, stdtr, stdtrit

from ralm.records import DoubleArray, FloatArray, IntArray

LEVEL: Final = 0.05
"""The probability that an interval leaves out the true figure."""
MIN_UNITS: Final = 10
_EQUAL: Final = 1e-6
"""Units that differ less, as a share of their level, are equal but for the rounding of log-probabilities."""
NO_INTERVAL: Final = f"no interval: fewer than {MIN_UNITS} of them, or none differs"
"""Why a figure may stand without its interval."""
STRETCH: Final = 512
"""Consecutive targets that are a unit where the documents of a text are not known."""

Statistic = Literal["mean", "fraction", "share", "ratio", "perplexity"]
"""What a figure is, and how two of them are compared:

mean        the sum over the count           their difference
fraction    the same, of values from 0 to 1  their difference
share       the same, of values 0 and 1      their difference
ratio       the sum over the count, above 0  the relative change
perplexity  exp of the sum over the count    the relative change
"""


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The sum and the count of a measure in each unit of a run."""

    sums_U: DoubleArray
    counts_U: DoubleArray | IntArray

    @classmethod
    def of(cls, values_T: DoubleArray | FloatArray, unit_T: IntArray) -> "Units":
        """Add up values by the number of the unit that each is from."""
        sums_U: DoubleArray = np.bincount(unit_T, values_T.astype(np.float64)).astype(np.float64)
        return cls(sums_U, np.bincount(unit_T))

    @classmethod
    def each(cls, values_U: DoubleArray) -> "Units":
        """Return units of one value each."""
        return cls(values_U, np.ones(len(values_U), dtype=np.int64))

    @property
    def mean(self) -> float:
        """The sum over the count; NaN if nothing is counted."""
        count = float(self.counts_U.sum())
        return float(self.sums_U.sum()) / count if count else float("nan")

    @property
    def deviations_U(self) -> DoubleArray:
        """What each unit adds to the deviation of the mean from the true one."""
        with np.errstate(invalid="ignore", divide="ignore"):  # of an impossible text, or of none
            return (self.sums_U - self.mean * self.counts_U) / self.counts_U.sum()

    def counted_as(self, total: float) -> "Units":
        """Return the units with counts that add up to another total, such as the words of a text instead of tokens."""
        counts_U: DoubleArray = self.counts_U * np.float64(total / max(1, self.counts_U.sum()))
        return Units(self.sums_U, counts_U)

    def select(self, chosen_U: NDArray[np.bool_]) -> "Units":
        """Return some of the units."""
        return Units(self.sums_U[chosen_U], self.counts_U[chosen_U])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure or a change over `units`, with its 95% interval and the `p_value` of its being 0; None if unknown."""

    value: float
    units: int
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @property
    def ends(self) -> list[float] | None:
        """The ends of the interval."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    def fields(self, name: str) -> dict[str, JsonValue]:
        """Return the figure under a name, beside it the ends, and its p-value if it has one; nothing without units."""
        if not self.units:
            return {}
        p_value: dict[str, JsonValue] = {} if self.p_value is None else {f"{name}_p_value": self.p_value}
        ends: JsonValue = None if self.ends is None else [*self.ends]
        return {name: self.value, f"{name}_interval": ends, **p_value}

    def columns(self, name: str) -> dict[str, JsonValue]:
        """Return the figure and the ends as columns of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> "Estimate":
        """Return the estimate of the figure times a factor."""
        if self.low is None or self.high is None:
            return replace(self, value=factor * self.value)
        low, high = sorted((factor * self.low, factor * self.high))
        return replace(self, value=factor * self.value, low=low, high=high)

    @property
    def is_above(self) -> bool:
        """Whether the interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def is_below(self) -> bool:
        """Whether the interval is below 0."""
        return self.high is not None and self.high < 0


def stretches(targets: int) -> IntArray:
    """Return the number of the stretch (int64, T) that each target of a text without documents is in."""
    return np.arange(targets) // STRETCH


def estimate(units: Units, statistic: Statistic) -> Estimate:
    """Return the figure of a run. Units that count nothing are left out."""
    units = units.select(units.counts_U > 0)
    if statistic == "share":
        return _share(units)
    figure = np.exp if statistic == "perplexity" else np.array
    interval = _student(units.mean, units.deviations_U, abs(units.mean), figure)
    if statistic == "fraction" and interval.low is not None and interval.high is not None:
        return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))
    return interval


def compare(units: Units, base: Units, statistic: Statistic) -> Estimate:
    """Return the change from a base, a difference or a relative change, over the units that both count."""
    both_U = (units.counts_U > 0) & (base.counts_U > 0)
    units, base = units.select(both_U), base.select(both_U)
    with np.errstate(invalid="ignore", divide="ignore"):  # of impossible texts
        if statistic == "ratio":
            means = np.array([units.mean, base.mean])
            change, before = np.log(means).tolist() if (means > 0).all() else (nan, nan)
            deviations_U = units.deviations_U / units.mean - base.deviations_U / base.mean
            return _student(change - before, deviations_U, 1.0, np.expm1)
        level = max(abs(units.mean), abs(base.mean))
        deviations_U = units.deviations_U - base.deviations_U
        figure = np.expm1 if statistic == "perplexity" else np.array
        return _student(units.mean - base.mean, deviations_U, level, figure)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values such that rejecting below 5% rejects any truth in at most 5% of all families (Holm, 1979)."""
    ranked = sorted((p_value, place) for place, p_value in enumerate(p_values) if p_value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p_value, place) in enumerate(ranked):
        highest = max(highest, min(1.0, (len(ranked) - rank) * p_value))
        adjusted[place] = highest
    return adjusted


def _student(centre: float, deviations_U: DoubleArray, level: float, figure: Callable[[Any], Any]) -> Estimate:
    """Return a figure of a mean, with Student's interval if the units differ by more than rounding at this level."""
    units = len(deviations_U)
    error = sqrt(float((deviations_U**2).sum()) * units / (units - 1)) if units >= MIN_UNITS else 0.0
    reach = float(stdtrit(units - 1, 1 - LEVEL / 2)) * error if units > 1 else 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity may be infinite
        value, low, high = map(float, figure(np.array([centre, centre - reach, centre + reach])))
    if not (_EQUAL * level / sqrt(max(units, 1)) < error < inf):
        return Estimate(value=value, units=units)
    p_value = 2 * float(stdtr(units - 1, -abs(centre) / error))
    return Estimate(value=value, units=units, low=low, high=high, p_value=p_value)


def _share(units: Units) -> Estimate:
    """Return a share with Wilson's interval, which has a width for 0 of 20, too."""
    count, share = len(units.counts_U), units.mean
    if count < MIN_UNITS:
        return Estimate(value=share, units=count)
    squared = float(ndtri(1 - LEVEL / 2)) ** 2
    middle = (share + squared / (2 * count)) / (1 + squared / count)
    reach = sqrt(squared * share * (1 - share) / count + (squared / (2 * count)) ** 2) / (1 + squared / count)
    return Estimate(value=share, units=count, low=max(0.0, middle - reach), high=min(1.0, middle + reach))


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
