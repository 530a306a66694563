"""A Ray cluster of several nodes on this machine, a corpus, and what its workers are told to do wrong."""

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

from ralm.distributed.cluster import own_signals

ROOT = Path(__file__).parents[2]
POISON = "zzpoison"
"""A word that ends every worker that reads it, in these clusters."""
_STORE = 80 << 20


@contextmanager
def cluster(nodes: int = 3) -> "Iterator[Cluster]":
    """A cluster whose nodes have a processor each. This process is connected to it, and its workers die when they read
    a line with `POISON`."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="ray") as folder:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        started: Any = None
        try:
            with own_signals():
                started = Cluster(initialize_head=True, head_node_args={**node(), "include_dashboard": False})
                for _ in range(nodes - 1):
                    started.add_node(**node())
                hook = {"worker_process_setup_hook": "tests.distributed.clusters.die_of_poison"}
                ray.init(started.address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=hook)
            yield started
        finally:
            ray.shutdown()
            if started is not None:
                started.shutdown()


def node() -> dict[str, int]:
    """What a node has."""
    return {"num_cpus": 1, "object_store_memory": _STORE}


def another_node(nodes: Any) -> Any:
    """A node that no driver is connected to."""
    own: Any = ray._private.worker.global_worker.node
    return next(one for one in nodes.worker_nodes if one.raylet_socket_name != own.raylet_socket_name)


def die_of_poison() -> None:
    """Make this process end when it reads a line with `POISON`."""
    from ralm.corpus.formats import json_records

    read = json_records.record_of_line

    def reading(line: bytes, *others: Any) -> Any:
        if POISON.encode() in line:
            os._exit(1)
        return read(line, *others)

    setattr(json_records, "record_of_line", reading)  # noqa: B010


def save_corpus(folder: Path, documents: int = 400) -> list[str]:
    """Write a file of JSON Lines and a folder of texts; returns both as sources. Scores have many ties."""
    rng = random.Random(7)
    words = [f"w{number}" for number in range(60)]
    folder.mkdir(exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as stream:
        for number in range(documents):
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


def queries(count: int = 100, words: int = 8) -> list[str]:
    """Queries of strides: each shares most words with the one before."""
    rng = random.Random(3)
    text = [f"w{rng.randrange(70)}" for _ in range(2 * count + words)]
    return [" ".join(text[2 * i : 2 * i + words]) for i in range(count)]
