"""On a cluster of three nodes: the same results as on one machine, whoever is killed and whatever is poisoned."""

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.distributed import indexing
from ralm.distributed.indexing import CorpusPlan, build_index_on
from ralm.distributed.search import open_shards
from ralm.errors import CorpusError
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.index import check_index, open_index
from ralm.storage.work import UNFINISHED_INDEX
from tests.campaign import campaign, sampled
from tests.cli.program import ralm
from tests.distributed.clusters import POISON, another_node, driver, node, queries, save_corpus

pytestmark = [pytest.mark.ray, pytest.mark.slow]
KILLS = int(os.environ.get("RALM_KILLS", "1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and the index of it that one machine builds, `plain`."""
    folder = tmp_path_factory.mktemp("cluster")
    sources = save_corpus(folder)
    (folder / "titles.txt").write_text("t3\n")
    (folder / "held-out.txt").write_text((folder / "texts" / "07.txt").read_text())
    answer = ralm("index", *sources, *leaving_out(folder), "--out", folder / "plain")
    assert answer.status == 0, answer.err
    assert "warning: several documents share an id, such as d0" in answer.err
    assert "left out for forbidden title" in answer.out
    assert "left out for overlap with an evaluation text" in answer.out
    return folder


def leaving_out(folder: Path) -> list[str]:
    return ["--forbidden-titles", str(folder / "titles.txt"), "--decontaminate", str(folder / "held-out.txt")]


def corpus(folder: Path) -> list[str]:
    """The arguments that say what is indexed."""
    return [str(folder / "corpus.jsonl"), str(folder / "texts"), *leaving_out(folder)]


def building(folder: Path, out: Path, address: str) -> list[str]:
    """The command that builds an index on the cluster."""
    return ["index", *corpus(folder), "--out", str(out), "--ray", address]


def in_store(folder: Path) -> list[str]:
    """The option that keeps parts in an object store, for which a folder stands here."""
    (folder / "store").mkdir(exist_ok=True)
    return ["--parts", f"file://{folder}/store"]


def same_index(built: Path, folder: Path) -> bool:
    """Whether an index of one shard is the plain one, byte for byte."""
    manifests = [json.loads((index / "manifest.json").read_text()) for index in (built, folder / "plain")]
    return all(manifests[0][name] == manifests[1][name] for name in ("files", "counts", "settings"))


def same_hits(found: Any, folder: Path) -> None:
    plain, asked = open_index(folder / "plain").bm25, queries()
    forbidden = Forbidden.none(len(asked)).with_always([0, 5, 300])
    for k, never in ((1, None), (16, None), (400, forbidden)):
        expected, hits = plain.retrieve(asked, k, never), found.retrieve(asked, k, never)
        np.testing.assert_array_equal(hits.numbers_QK, expected.numbers_QK)
        np.testing.assert_array_equal(hits.scores_QK, expected.scores_QK)
        assert hits.scores_QK.dtype == np.float32
    assert found.config["k1"] == plain.config["k1"]
    assert found.stable == plain.stable


@pytest.mark.parametrize("shards", sampled([1, 2, 7], 2))
def test_an_index_is_that_of_one_machine(
    nodes: Any, folder: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_MAX_JOINED", 3)
    out = folder / f"shards-{shards}"
    parts = [] if shards == 2 else in_store(folder)
    answer = ralm(*building(folder, out, nodes.address), "--shards", shards, *parts)
    assert answer.status == 0, answer.err
    assert "left out: files of an unknown kind: 1" in answer.out
    assert "warning: several documents share an id, such as d0" in answer.err
    assert check_index(out) == []
    index = open_index(out)
    assert len(index.segments) == shards
    assert [*index.passages] == [*open_index(folder / "plain").passages]
    assert shards > 1 or same_index(out, folder)
    assert not UNFINISHED_INDEX.folder_of(out).exists()
    assert not any((folder / "store").glob("*"))
    same_hits(index.bm25, folder)
    by_command = [ralm("search", one, "w1 w2", "--json").out for one in (out, folder / "plain")]
    assert by_command[0] == by_command[1]
    with open_shards(nodes.address, out) as several:
        same_hits(several, folder)
        assert several.passages[3] == index.passages[3]


@pytest.mark.usefixtures("deadly_poison")
def test_a_poisoned_line_is_named_or_left_out_and_what_was_done_is_kept(nodes: Any, folder: Path) -> None:
    lines = (folder / "corpus.jsonl").read_text().splitlines()[:15]  # with the poison two for each of eight spans
    poisoned, sound = folder / "poisoned.jsonl", folder / "sound.jsonl"
    poisoned.write_text("\n".join([*lines[:9], json.dumps({"text": POISON}), *lines[9:]]) + "\n")
    sound.write_text("\n".join(lines) + "\n")
    assert ralm("index", sound, "--out", folder / "sound").status == 0
    out = folder / "poisoned"
    with pytest.raises(CorpusError, match=r"poisoned\.jsonl, line 10 ends the process that reads it"):
        build_index_on(nodes.address, CorpusPlan(sources=[str(poisoned)]), out)
    records = sorted((UNFINISHED_INDEX.folder_of(out) / "parts").glob("*/record.json"))
    assert len(records) >= 4, "what is beside the poison, too"
    for record in records:  # if it were made again, it would not say so
        record.write_text(json.dumps(json.loads(record.read_text()) | {"warnings": [f"kept {record.parent.name}"]}))

    answer = ralm("index", poisoned, "--out", out, "--ray", nodes.address, "--words", "50")
    assert answer.status == 2
    assert "is an index begun with other settings (splitting.words 100 there, 50 here)" in answer.err

    answer = ralm("index", poisoned, "--out", out, "--ray", nodes.address, "--skip-bad")
    assert answer.status == 0, answer.err
    assert answer.err.count("warning: kept ") == len(records)
    said = r"left out: lines or files that end the process that reads them: 1, such as \S+poisoned\.jsonl, line 10\n"
    assert re.search(said, answer.out)
    expected = open_index(folder / "sound").manifest.files
    assert open_index(out).manifest.files == {
        name: one for name, one in expected.items() if not name.startswith("files/")
    }


@pytest.mark.campaign
def test_a_node_that_is_killed_costs_nothing_but_time(nodes: Any, folder: Path) -> None:
    rng = random.Random(KILLS)
    for kill in range(KILLS):
        out = folder / f"node-{kill}"
        with driver(*building(folder, out, nodes.address)) as running:
            time.sleep(rng.uniform(1, 6))
            nodes.remove_node(another_node(nodes), allow_graceful=False)
            time.sleep(rng.uniform(0, 2))
            nodes.add_node(**node())
            _, said = running.communicate(timeout=120)
        assert running.returncode == 0, said
        assert same_index(out, folder)


@pytest.mark.campaign
def test_a_driver_that_is_killed_is_run_again(nodes: Any, folder: Path) -> None:
    rng = random.Random(KILLS)
    for kill in range(KILLS):
        out = folder / f"driver-{kill}"
        parts = [] if kill % 2 else in_store(folder)
        with driver(*building(folder, out, nodes.address), *parts) as running:
            time.sleep(rng.uniform(2, 8))
            running.kill()
            running.wait(60)
        assert not out.exists() or same_index(out, folder)
        answer = ralm(*building(folder, out, nodes.address), *parts, "--force")
        assert answer.status == 0, answer.err
        assert same_index(out, folder)
        assert not UNFINISHED_INDEX.folder_of(out).exists()
        assert not any((folder / "store").glob("*"))


@pytest.mark.parametrize("end", [campaign(signal.SIGTERM), signal.SIGINT])
def test_a_driver_that_is_told_to_end_says_nothing(nodes: Any, folder: Path, end: signal.Signals) -> None:
    out = folder / f"ended-{end}"
    with driver(*building(folder, out, nodes.address)) as running:
        while not (UNFINISHED_INDEX.folder_of(out) / "parts").exists():  # the machines begin
            time.sleep(0.05)
            assert running.poll() is None
        running.send_signal(end)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (128 + end, "")
    assert not out.exists()
