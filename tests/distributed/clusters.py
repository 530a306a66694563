"""A Ray cluster of several nodes on this machine, commands that use it, and a corpus."""

import json
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from ralm.distributed.workers import own_signals

ROOT = Path(__file__).parents[2]
_STORE = 80 << 20


@contextmanager
def cluster() -> "Iterator[Cluster]":
    """A cluster of three nodes, which have a processor each. This process is connected to it."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="ray") as folder:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        for name, value in (("period_ms", 500), ("timeout_ms", 2000), ("failure_threshold", 3)):
            patch.setenv(f"RAY_health_check_{name}", str(value))  # Ray's own: a lost machine is known after 10 seconds
        nodes: Any = None
        try:
            with own_signals():
                nodes = Cluster(initialize_head=True, head_node_args={**node(), "include_dashboard": False})
                for _ in range(2):
                    nodes.add_node(**node())
                ray.init(nodes.address, log_to_driver=False, logging_level=logging.ERROR)
            yield nodes
        finally:
            ray.shutdown()
            if nodes is not None:
                nodes.shutdown()


def node() -> dict[str, int]:
    """What a node has."""
    return {"num_cpus": 1, "object_store_memory": _STORE}


def another_node(nodes: Any) -> Any:
    """A node that no driver is connected to."""
    own: Any = ray._private.worker.global_worker.node
    return next(one for one in nodes.worker_nodes if one.raylet_socket_name != own.raylet_socket_name)


def save_corpus(folder: Path) -> list[str]:
    """Write a file of JSON Lines and a folder of texts; returns both as sources."""
    rng = random.Random(7)
    words = [f"w{number}" for number in range(60)]
    folder.mkdir(exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as stream:
        for number in range(120):
            text = " ".join(rng.choices(words, k=rng.choice([4, 4, 9, 230])))
            metadata = {"year": number // 50} if number % 3 else {}
            stream.write(json.dumps({"id": f"d{number}", "title": f"t{number % 7}", "text": text, **metadata}) + "\n")
        stream.write("\n" + json.dumps({"id": "e", "text": " "}) + "\n")
        stream.write(json.dumps({"id": "d0", "text": "an id that another document has"}) + "\n")
    (folder / "texts").mkdir()
    for number in range(30):
        (folder / "texts" / f"{number:02}.txt").write_text(" ".join(rng.choices(words, k=150)))
    (folder / "texts" / "x.unknown").write_text("x")
    (folder / "texts" / "broken.txt").write_bytes(b"\xff\xfe\xff")
    return [str(folder / "corpus.jsonl"), str(folder / "texts")]
