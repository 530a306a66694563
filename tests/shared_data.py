"""Real data beside the checkout; tests that use it skip where it is absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


def shared(*parts: str) -> Path:
    """A path below the shared data; skips the test where it is not there."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
