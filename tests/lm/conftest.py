"""Fixtures of tests of language models."""

from pathlib import Path

import pytest

from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from tests.tiny_models import FAMILIES


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    """A tiny model of every family, without sampling."""
    return load_transformers_model(str(tiny_folders[request.param]))
