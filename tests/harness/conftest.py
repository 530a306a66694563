"""Tasks of lm-evaluation-harness on this disk."""

from pathlib import Path

import pytest

from tests.harness.local_tasks import save_tasks


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tasks(tmp_path_factory.mktemp("tasks"))
