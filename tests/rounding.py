"""Comparisons of results whose last digits depend on what was read before."""

from typing import Any

import pytest


def rounded(value: Any) -> Any:
    """Return a JSON value that equals those whose numbers differ by rounding."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value
