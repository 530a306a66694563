"""What is said of a cluster that is not there, or of a machine of it that cannot do the job."""

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ralm.distributed import workers
from ralm.distributed.workers import Requirements, WorkerPool, connected, worker_resources
from ralm.errors import ClusterError, RalmWarning
from tests.cli.program import ralm


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("whales sing")
    return tmp_path / "text.txt"


def test_no_cluster_at_an_address(text: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = text.with_name("run")
    answer = ralm("eval", text, "--lm", "ralm-tiny", "--out", out, "--lm-args", f"ray=127.0.0.1:{port}")
    assert answer.status == 1
    assert answer.err.startswith(f"ralm: there is no Ray cluster at 127.0.0.1:{port} (")
    assert "Start one with `ray start --head`" in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in text.parent.iterdir()] == ["text.txt"]


@pytest.mark.usefixtures("no_cluster")
def test_no_cluster_on_this_machine(text: Path) -> None:
    answer = ralm("eval", text, "--lm", "ralm-tiny", "--lm-args", "ray=auto")
    assert answer.status == 1
    assert answer.err.startswith("ralm: this machine cannot join the Ray cluster at auto: Could not find any running")


@pytest.mark.parametrize("address", ["here", "host:", ":6379", "host:port", "ray://host:10001x"])
def test_what_is_no_address(address: str) -> None:
    with (
        pytest.raises(ClusterError, match="is not the address of a cluster: give HOST:PORT, or auto"),
        connected(address),
    ):
        pass


def test_machines_that_have_all_and_that_lack_something(tmp_path: Path) -> None:
    here = Requirements.of([tmp_path], ["torch"])
    here.check()
    for name, _ in here.versions:
        with pytest.raises(ClusterError, match=rf"of the cluster has {name} \S+ where this one has 0\.0\.1: install"):
            replace(here, versions=((name, "0.0.1"),)).check()
    with pytest.raises(ClusterError, match=r"cannot read .*corpus: put it on a disk that all share"):
        replace(here, read=(tmp_path / "corpus",)).check()


def test_a_single_task_that_no_machine_begins_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("cpu")
    once: Any = iter([([], [])])
    actor = SimpleNamespace(do=SimpleNamespace(remote=lambda *_: object()))
    pool._workers = [workers._Worker(actor, ("machine", 0))]
    monkeypatch.setattr(pool.__class__, "_start_workers", lambda _: None)
    monkeypatch.setattr(workers, "_WARNING_SECONDS", -1)
    monkeypatch.setattr("ralm.distributed.workers.ray.wait", lambda *_, **_more: next(once))
    loader: Any = type("Loader", (), {"label": "a model"})()
    with (
        pytest.warns(RalmWarning, match="no machine of the cluster has finished a task with a model"),
        pytest.raises(RuntimeError),
    ):
        list(pool.run(loader, print, [None], describe=str))


@pytest.mark.parametrize(
    ("has", "how", "shares"),
    [
        ({"CPU": 16.0, "GPU": 4.0}, {"use_gpus": True}, [(4, 1)] * 4),
        ({"CPU": 16.0, "GPU": 4.0}, {"use_gpus": True, "together": True}, [(16, 4)]),
        ({"CPU": 16.0}, {"use_gpus": True}, []),
        ({"CPU": 16.0}, {"use_gpus": True, "together": True}, []),
        ({"CPU": 16.0, "GPU": 4.0}, {"use_gpus": False}, [(16, 0)]),
        ({"CPU": 2.0}, {"use_gpus": False}, [(2, 0)]),
        ({"memory": 1e9}, {"use_gpus": False}, []),
    ],
)
def test_what_actors_of_a_machine_take(
    has: dict[str, float], how: dict[str, bool], shares: list[tuple[int, int]]
) -> None:
    assert [(one["num_cpus"], one["num_gpus"]) for one in worker_resources(has, **how)] == shares
