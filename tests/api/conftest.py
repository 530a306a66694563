"""Every test has a file of answers of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the answers that servers gave in this test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RALM_CACHE", str(folder))
    return folder
