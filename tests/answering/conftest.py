"""The model that answers in most of these tests."""

import pytest

from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import WritingModel


@pytest.fixture(scope="package")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))
