"""Commands whose dry run would say nothing, or change an index."""

import pytest

from tests.cli.program import ralm
from tests.cli.test_cli import failed


@pytest.mark.parametrize(
    "command",
    [("probe", "http://localhost:1#m"), ("train", "retriever", "text", "--out", "out")],
    ids=["probe", "train retriever"],
)
def test_commands_without_one(command: tuple[str, ...]) -> None:
    failed(ralm(*command, "--dry-run"), 2, "No such option")
