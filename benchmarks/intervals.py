"""How often an interval leaves out a mean of 0: the table of docs/method.md.

    python -m benchmarks.intervals

Each row is a distribution of the values of units, each column a number of units; `words` are values of ten tokens that
share a part of their unit, in units of unequal size. The bootstrap that earlier versions used stands beside it.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ralm.evaluation.intervals import Units, estimate

UNITS: Final = (10, 20, 60)
TRIALS: Final = 20_000
DRAWS: Final = 1_000
"""Draws of the bootstrap."""


def normal(random: np.random.Generator, units: int) -> Units:
    return Units.each(random.normal(size=units))


def exponential(random: np.random.Generator, units: int) -> Units:
    return Units.each(random.exponential(size=units) - 1)


def words(random: np.random.Generator, units: int) -> Units:
    counts_U = random.integers(5, 200, units)
    return Units(counts_U * random.normal(size=units) + np.sqrt(counts_U) * random.normal(size=units), counts_U)


def student(units: Units, _random: np.random.Generator) -> bool:
    low, high = estimate(units, "mean").ends or (0.0, 0.0)
    return not low < 0 < high


def bootstrap(units: Units, random: np.random.Generator) -> bool:
    """Whether the percentile bootstrap leaves out 0."""
    drawn_DU = random.multinomial(
        len(units.sums_U), np.full(len(units.sums_U), 1 / len(units.sums_U)), size=DRAWS
    ).astype(float)
    low, high = np.quantile((drawn_DU @ units.sums_U) / (drawn_DU @ units.counts_U), [0.025, 0.975])
    return not low < 0 < high


def rates(
    sample: Callable[[np.random.Generator, int], Units],
    leaves_out: Callable[[Units, np.random.Generator], bool],
    trials: int,
) -> Iterator[float]:
    for units in UNITS:
        random = np.random.default_rng(units)
        yield sum(leaves_out(sample(random, units), random) for _ in range(trials)) / trials


def main() -> None:
    """Print the table."""
    print(f"| units | {' | '.join(map(str, UNITS))} |\n|---|" + "---|" * len(UNITS))
    for method, trials in ((student, TRIALS), (bootstrap, TRIALS // 10)):
        for sample in (normal, exponential, words):
            cells = (f"{rate:.1%}" for rate in rates(sample, method, trials))
            print(f"| {method.__name__}, {sample.__name__} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
