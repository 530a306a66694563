"""Machines and commands that are killed while a cluster scores: what is run again ends the same."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.retrieval.index import open_index
from tests.cli.program import ralm
from tests.distributed.clusters import another_node, driver, node, save_corpus
from tests.tiny_encoders import save_tiny_bert

pytestmark = [pytest.mark.ray, pytest.mark.campaign]
KILLS = int(os.environ.get("RALM_KILLS", "1"))
SECONDS = (3, 10) if KILLS > 1 else (3, 6)
"""When processes are killed: while models are loaded, and while they score."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    sources = save_corpus(folder)
    assert ralm("index", *sources, "--out", folder / "index").status == 0
    (folder / "text.txt").write_text((folder / "texts" / "07.txt").read_text() * 4)
    return folder


JOBS = ["eval", "signals", "encode"] if KILLS > 1 else ["eval"]
TABLES = {"eval": "tokens.parquet", "signals": "candidates/00000.parquet"}


def job(folder: Path, command: str, out: Path) -> list[str]:
    """A command that writes `out`, or that adds vectors to the index `out`."""
    if command == "encode":
        if not out.exists():
            shutil.copytree(folder / "index", out)
        return [command, str(out), "--encoder", str(folder / "bert"), "--vectors", "killed"]
    read = [command, str(folder / "text.txt"), "--lm", "ralm-tiny", "--index", str(folder / "index"), "--out", str(out)]
    plan = ["--stride", "1", "--limit-tokens", "600", "--document-tokens", "100"]
    return [*read, *(plan if command == "eval" else ["--examples", "40"])]


def result(command: str, out: Path) -> Any:
    """What is the same however often a command was killed; None if it has not ended."""
    if command == "encode":
        opened = open_index(out)
        if "killed" not in opened.vector_sets.sets:
            return None
        return opened.passage_vectors("killed").of(np.arange(len(opened.passages))).tolist()
    return pq.read_table(out / TABLES[command]) if (out / "manifest.json").exists() else None


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """The results of the jobs on one machine."""
    save_tiny_bert(folder / "bert")
    for name in JOBS:
        answer = ralm(*job(folder, name, folder / f"plain-{name}"))
        assert answer.status == 0, answer.err
    return {name: result(name, folder / f"plain-{name}") for name in JOBS}


@pytest.mark.parametrize("name", JOBS)
def test_a_killed_command_is_run_again_and_a_killed_machine_costs_nothing_but_time(
    nodes: Any, folder: Path, expected: dict[str, Any], name: str
) -> None:
    rng = random.Random(KILLS)
    for kill in range(KILLS):
        out = folder / f"{name}-{kill}"
        ray = ["--ray", nodes.address] if name == "encode" else ["--lm-args", f"ray={nodes.address}"]
        command = [*job(folder, name, out), *ray]
        with driver(*command) as running:
            time.sleep(rng.uniform(*SECONDS))
            running.kill()
            running.wait(60)
        ended = result(name, out)
        assert ended is None or ended == expected[name]
        if ended is not None:
            command.append("--force")
        with driver(*command) as running:
            time.sleep(rng.uniform(*SECONDS))
            nodes.remove_node(another_node(nodes), allow_graceful=False)
            nodes.add_node(**node())
            _, said = running.communicate(timeout=300)
        assert running.returncode == 0, said
        assert result(name, out) == expected[name]
