"""A recipe that is killed at any moment goes on, and its table is that of an undisturbed run."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ralm.recipes.results import folder_name
from tests.killed import Killed

MOMENTS = int(os.environ.get("RALM_KILLS", "2"))
NAME = "in-context-ralm/table-1" if MOMENTS > 2 else "in-context-ralm/table-2"
"""At more moments, one with rerankers, a training, and readings that share what is scored."""
RUN = ["recipe", NAME, "--stand-in", "--limit-tokens", "448"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc").exists(), reason="processes are counted in /proc"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    program = Killed(tmp_path_factory.mktemp("killed"), [[*RUN, "--out", "warm"]])
    yield program
    program.programs.close()


@pytest.mark.campaign
def test_whenever_a_recipe_is_killed(program: Killed) -> None:
    command = [*RUN, "--out", "out"]
    assert program.answer(command).status == 0, program.errors
    tables = content(program.folder / "out")
    begin_again(program.folder / "out")
    whole = program.answer(command)
    assert whole.status == 0, program.errors
    for moment in range(MOMENTS):
        begin_again(program.folder / "out")
        at: dict[str, Any] = {"seconds": program.random.uniform(0, whole.seconds)}
        if moment % 2:
            at = {"event": program.random.randint(1, whole.events)}
        killed = program.answer(command, **at)
        assert killed.status in (-9, 0), (at, program.errors)
        assert program.answer(command).status == 0, (at, program.errors)
        assert content(program.folder / "out") == tables, at
        left = [path.name for path in (program.folder / "out" / "steps").iterdir() if path.name.startswith(".")]
        assert not left, at


def begin_again(out: Path) -> None:
    """Remove what steps made, and, at more moments, what stands in for data: making it takes longer than the rest."""
    for made in (out,) if MOMENTS > 2 else (out / "steps", out / "tables"):
        shutil.rmtree(made)


def content(out: Path) -> dict[str, bytes]:
    """The table, the figure and the cells."""
    folder = out / "tables" / folder_name(NAME)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
