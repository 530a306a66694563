"""What is said of a cluster that is not there, or of a machine of it that cannot do the job."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ralm.corpus.splitting import Splitting
from ralm.distributed import indexing
from ralm.distributed.artifact_store import job_folder, open_store, remote_folder
from ralm.distributed.cluster import Requirements, connected
from ralm.distributed.indexing import CorpusPlan
from ralm.distributed.workers import worker_resources
from ralm.errors import ClusterError, RalmWarning, StorageError, UsageError
from ralm.storage.remote import RemoteFolder
from tests.cli.program import ralm
from tests.tiny_models import save_tiny_model


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.jsonl").write_text('{"text": "whales sing"}\n')
    return tmp_path / "corpus.jsonl"


def test_no_cluster_at_an_address(corpus: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = ralm("index", corpus, "--out", corpus.with_name("index"), "--ray", f"127.0.0.1:{port}")
    assert answer.status == 1
    assert answer.err.startswith(f"ralm: there is no Ray cluster at 127.0.0.1:{port} (")
    assert "Start one with `ray start --head`" in answer.err
    assert answer.err.count("\n") == 1
    assert [path.name for path in corpus.parent.iterdir()] == ["corpus.jsonl"]


@pytest.mark.usefixtures("no_cluster")
def test_no_cluster_on_this_machine(corpus: Path) -> None:
    answer = ralm("index", corpus, "--out", corpus.with_name("index"), "--ray", "auto")
    assert answer.status == 1
    assert answer.err.startswith("ralm: there is no Ray cluster on this machine. Start one with `ray start --head`")


@pytest.mark.parametrize("address", ["here", "host:", ":6379", "host:port", "ray://host:10001x"])
def test_what_is_no_address(address: str) -> None:
    with (
        pytest.raises(ClusterError, match="is not the address of a cluster: give HOST:PORT, or auto"),
        connected(address),
    ):
        pass


def test_machines_that_have_all_and_that_lack_something(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Requirements.writing(tmp_path, [tmp_path]) as here:
        here.check()
        changes: list[tuple[dict[str, Any], str]] = [
            ({"versions": ((name, "0.0.1"),)}, rf"of the cluster has {name} \S+ where this one has 0\.0\.1: install")
            for name, _ in here.versions
        ]
        changes += [
            ({"shared": tmp_path / "other"}, r"does not see .*other as this one does: use a folder on a disk"),
            ({"read": (tmp_path / "corpus",)}, r"cannot read .*corpus: put it on a disk that all share"),
        ]
        for changed, message in changes:
            with pytest.raises(ClusterError, match=message):
                replace(here, **changed).check()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_what_decides_the_parts_of_an_index_is_in_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of an interrupted build are used again only if tokenizer and stemmer are the same."""
    folder = save_tiny_model("gpt2", tmp_path / "lm")
    plan = CorpusPlan(sources=["x"], lm=str(folder), splitting=Splitting(tokens=9), analyser="german")
    before = plan.settled().settings()
    assert before == plan.settled().settings()
    save_tiny_model("opt", folder)
    after = plan.settled()
    assert {name for name, value in after.settings().items() if before[name] != value} == {"tokenizer"}
    with pytest.raises(ClusterError, match=r"the tokenizer of .*lm on the machine \S+ of the cluster is another one"):
        indexing._tokenizer(str(folder), str(before["tokenizer"]))
    assert after.lm is not None
    assert len(indexing._tokenizer(after.lm, after.tokenizer).encode("sheep"))
    monkeypatch.setattr("ralm.retrieval.analysis.analysers.stemming_library", lambda: "PyStemmer 0.1")
    assert {name for name, value in after.settings().items() if before[name] != value} == {"tokenizer", "stemmer"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shards", "2"], "--shards has no effect without --ray."),
        (
            ["--ray", "auto", "--retriever", "dense", "--encoder", "e"],
            "--ray has no effect without --retriever bm25",
        ),
    ],
)
def test_options_that_do_not_go_together(corpus: Path, options: list[str], said: str) -> None:
    answer = ralm("index", corpus, "--out", corpus.with_name("index"), *options)
    assert answer.status == 2
    assert answer.err.startswith(f"ralm: {said}")


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


def test_a_store_of_another_job_is_removed_and_one_that_stays_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CorpusPlan(sources=["corpus.jsonl"])
    other = replace(plan, splitting=Splitting(words=50))

    def stopped(plan: CorpusPlan, parts: str | None, *, force: bool = False) -> RemoteFolder | None:
        """A job that ends with an error, after it has kept something."""
        store = remote_folder(parts, plan.settings(), plan.sources)
        with (
            suppress(KeyboardInterrupt),
            job_folder(tmp_path / "out", plan.settings(), store, force=force) as work,
            open_store(work, plan.sources, store),
        ):
            raise KeyboardInterrupt
        return store

    first = stopped(plan, "memory://jobs/")
    assert first is not None
    assert first.has("begun")
    assert stopped(plan, "memory://jobs") == first, "it goes on there"
    with pytest.raises(UsageError, match=r"begun with other settings \(splitting\.words 100 there, 50 here\)"):
        stopped(other, "memory://jobs")
    second = stopped(other, "memory://jobs", force=True)
    assert second is not None
    assert (first.has("begun"), second.has("begun")) == (False, True)
    stopped(other, None)
    assert not second.has("begun")
    assert remote_folder("memory://jobs", plan.settings(), ["more.jsonl"]) != first
    with pytest.raises(UsageError, match="`parts` is here, but it must be the URL of a folder in an object store"):
        remote_folder("here", plan.settings(), plan.sources)

    def denied(folder: RemoteFolder) -> None:
        raise StorageError(f"{folder.url} cannot be used: denied.")

    monkeypatch.setattr(RemoteFolder, "remove", denied)
    with (
        pytest.warns(RalmWarning, match=r"cannot be used: denied\. Remove memory://jobs/\w+ yourself"),
        job_folder(tmp_path / "new", plan.settings(), first, force=False) as work,
        open_store(work, plan.sources, first),
    ):
        pass
