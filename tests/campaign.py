"""The split of tests between `make test` and `make test-all`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *sample: Any) -> list[Any]:
    """All cases of a parameter; only those of the sample run in `make test`, all in `make test-all`."""
    return [case if case in sample else pytest.param(case, marks=pytest.mark.campaign) for case in cases]


def campaign(*case: Any) -> Any:
    """A case that only `make test-all` runs."""
    return pytest.param(*case, marks=pytest.mark.campaign)


def examples(count: int) -> int:
    """The number of examples of a property: a third in `make test`, `count` in `make test-all`."""
    return count if "RALM_FUZZ" in os.environ else max(count // 3, 5)
