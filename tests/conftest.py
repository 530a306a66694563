"""Fixtures that several parts share."""

from pathlib import Path

import pytest

from tests.tiny_models import FAMILIES, save_tiny_model


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a tiny random model of each family, by family."""
    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny_model(family, root / family) for family in FAMILIES}
