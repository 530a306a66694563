"""Machines and commands that are killed while a cluster scores, answers or encodes: what is run again ends the same."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.program import ralm
from tests.distributed.clusters import another_node, cluster, node, save_corpus

pytestmark = [pytest.mark.ray, pytest.mark.slow]
KILLS = int(os.environ.get("RALM_KILLS", "1"))
SECONDS = (6, 14)
"""When processes are killed: while models are loaded, and while they score."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    sources = save_corpus(folder, documents=120)
    assert ralm("index", *sources, "--out", folder / "index").status == 0
    (folder / "text.txt").write_text((folder / "texts" / "07.txt").read_text() * 4)
    return folder


def job(folder: Path, command: str) -> list[str]:
    """A command, and which of its tables tells its result."""
    how = [str(folder / "text.txt"), "--lm", "ralm-tiny", "--index", str(folder / "index")]
    if command == "eval":
        return [command, *how, "--stride", "1", "--limit-tokens", "600", "--document-tokens", "100"]
    return [command, *how, "--examples", "40"]


TABLES = {"eval": "tokens.parquet", "signals": "candidates/00000.parquet"}
JOBS = ["eval", "signals"] if KILLS > 1 else ["eval"]


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """The tables of the jobs on one machine."""
    tables = {}
    for name in JOBS:
        answer = ralm(*job(folder, name), "--out", folder / f"plain-{name}")
        assert answer.status == 0, answer.err
        tables[name] = pq.read_table(folder / f"plain-{name}" / TABLES[name])
    return tables


@pytest.mark.parametrize("name", JOBS)
def test_a_killed_command_is_run_again_and_a_killed_machine_costs_nothing_but_time(
    nodes: Any, folder: Path, expected: dict[str, Any], name: str
) -> None:
    rng = random.Random(KILLS)
    for kill in range(KILLS):
        out = folder / f"{name}-{kill}"
        command = [*job(folder, name), "--out", str(out), "--ray", nodes.address]
        with driver(command) as running:
            time.sleep(rng.uniform(*SECONDS))
            running.kill()
            running.wait(60)
        assert not (out / "manifest.json").exists() or pq.read_table(out / TABLES[name]).equals(expected[name])
        if out.exists():  # it had ended
            command.append("--force")
        with driver(command) as running:
            time.sleep(rng.uniform(*SECONDS))
            nodes.remove_node(another_node(nodes), allow_graceful=False)
            nodes.add_node(**node())
            _, said = running.communicate(timeout=300)
        assert running.returncode == 0, said
        assert pq.read_table(out / TABLES[name]).equals(expected[name])


@contextmanager
def driver(command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """The command in a process of its own."""
    own = [sys.executable, "-m", "ralm", *command]
    with subprocess.Popen(own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()
