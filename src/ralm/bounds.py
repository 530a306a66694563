"""The bounds of options: a number that lies within them, or one sentence that names the option.

Option records call these for their own fields, so that a command, a script and a sweep are told the same.
"""

import math
from typing import Final

from ralm.errors import UsageError

MOST: Final = 2**31 - 1
"""The largest count that an option may be: lengths, passages and lists are numbered in 32 bits somewhere below."""
MOST_SEEDS: Final = 2**63 - 1


def check_count(option: str, value: int, *, least: int = 1, most: int = MOST) -> None:
    """Raise UsageError where a whole number is below `least` or above `most`."""
    if not least <= value <= most:
        bound = f"at least {least:,}" if value < least else f"at most {most:,}"
        raise UsageError(f"{option} must be {bound}, not {value}.")


def check_counts(options: dict[str, int | None]) -> None:
    """The same for several, by option; None is what was not given."""
    for option, value in options.items():
        if value is not None:
            check_count(option, value)


def check_seed(option: str, value: int) -> None:
    """Raise UsageError where a number cannot be the seed of a generator."""
    check_count(option, value, least=0, most=MOST_SEEDS)


def check_number(option: str, value: float, *, least: float, most: float, above: bool = False, note: str = "") -> None:
    """Raise UsageError where a number is not one, infinite, below `least` (or not above it) or above `most`."""
    enough = value > least if above else value >= least
    if not (math.isfinite(value) and enough and value <= most):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        raise UsageError(f"{option} must be {lower} and at most {most:g}{note}, not {value}.")
