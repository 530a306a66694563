"""Bounds checks for arguments: an error is one sentence that names the argument.

Option records declare their bounds instead (`options.Option`).
"""

import math
from typing import Final

from ralm.errors import UsageError

MOST: Final = 2**31 - 1
"""The largest count that an option accepts: lower layers number lengths, passages and lists in 32 bits."""
MOST_SEEDS: Final = 2**63 - 1


def check_count(name: str, value: int, *, least: int = 1, most: int = MOST) -> None:
    """Raise UsageError if a whole number is below `least` or above `most`."""
    if not least <= value <= most:
        bound = f"at least {least:,}" if value < least else f"at most {most:,}"
        raise UsageError(f"`{name}` must be {bound}, not {value}.")


def check_seed(name: str, value: int) -> None:
    """Raise UsageError if a number cannot seed a random generator."""
    check_count(name, value, least=0, most=MOST_SEEDS)


def check_number(name: str, value: float, *, least: float, most: float, above: bool = False) -> None:
    """Raise UsageError if a number is NaN, infinite, above `most`, or below `least` (with `above`: not above it)."""
    enough = value > least if above else value >= least
    if not (math.isfinite(value) and enough and value <= most):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        raise UsageError(f"`{name}` must be {lower} and at most {most:g}, not {value}.")
