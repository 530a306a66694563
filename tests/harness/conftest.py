"""Tasks of lm-evaluation-harness on this disk."""

from pathlib import Path

import pytest

from tests.harness.local_tasks import save_tasks
from tests.serving.served import DOCUMENTS, save_index


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_index(tmp_path_factory.mktemp("index") / "index", DOCUMENTS[:4])
