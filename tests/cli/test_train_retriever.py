"""`ralm train retriever` and what its result is used for, end to end, with encoders of the tests' own."""

import json
import re
from pathlib import Path

import pytest

from ralm.retrieval.index import open_index
from tests.cli.program import MODEL_LENGTH, STORIES, TEXT, done, failed, printed, ralm
from tests.test_kills import save_taught_index
from tests.tiny_encoders import save_tiny_bert
from tests.training.made_signals import save_signals

TRAIN = "--steps 6 --batch 4 --evaluate-every 3 --learning-rate 1e-3".split()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    save_tiny_bert(folder / "bert")
    save_tiny_bert(folder / "other", seed=1)
    save_taught_index(folder)
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_the_result_is_read_with_the_same_index(work: Path, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    train = ["train", "retriever", work / "signals", "--index", work / "taught", "--out", out, *TRAIN]
    answer = done("--quiet", *train, "--init", work / "bert")
    assert "gain per token of held-out examples: " in answer.out
    assert re.search(r"loss of the held-out examples: \d+\.\d{4} before, \d+\.\d{4} after", answer.out)
    assert f"search the same index with --retriever dense --query-encoder {out}" in answer.out
    assert "Writing model shards" not in answer.err
    done("check", out)
    before = ralm("search", work / "taught", "sea", "--retriever", "dense", "--json")
    after = done("search", work / "taught", "sea", "--retriever", "dense", "--query-encoder", out, "--json")
    assert len(json.loads(after.out)["hits"]) == len(STORIES)
    assert json.loads(after.out)["hits"] != json.loads(before.out)["hits"]
    read = [
        "eval",
        work / "text.txt",
        "--lm",
        tiny_folders["gpt2"],
        "--index",
        work / "taught",
        *MODEL_LENGTH,
        "--json",
    ]
    read += ["--retriever", "dense", "--limit-tokens", "60"]
    evaluated = done(*read, "--query-encoder", out)
    fingerprints = [
        json.loads(one.out)["config"]["passages"]["query_encoder"]["fingerprint"] for one in (evaluated, ralm(*read))
    ]
    assert len(set(fingerprints)) == 2
    failed(ralm(*train), 1, f"{out} already exists")
    again = printed(*train, "--force")
    assert (again["retriever"], again["steps"]) == (str(out), 6)
    assert [row["step"] for row in again["losses"]] == [0, 3, 6]


def test_folders_of_signals_are_learned_from_together(work: Path, tmp_path: Path) -> None:
    """They may come from one round and the next; their index is the same."""
    index = open_index(work / "taught")
    save_signals(work / "more", index.fingerprint, ["moon", "sea"] * 8, [[0, 1, 2]] * 16, [[-1.0, -2.0, -3.0]] * 16)
    losses = []
    for folders in ([work / "signals"], [work / "signals", work / "more"]):
        train = ["train", "retriever", *folders, "--index", work / "taught", "--out", tmp_path / "out", "--force"]
        answer = done(*train, *TRAIN, "--device", "cpu", "--seed", 1)
        losses += re.findall(r"loss of the held-out examples: .*", answer.out)
    assert len(set(losses)) == 2
    mixed = ["train", "retriever", work / "signals", work / "text.txt", "--out", tmp_path / "new"]
    failed(ralm(*mixed), 2, "signals is a folder of signals, and ")


def test_bad_input_is_one_sentence(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"

    def refused(status: int, said: str, *changed: object) -> None:
        train = ["train", "retriever", work / "signals", "--index", work / "taught", "--out", out, *TRAIN]
        failed(ralm(*train, *changed), status, said)
        assert not list(tmp_path.iterdir())

    refused(1, "was built with another encoder", "--init", work / "other")
    refused(2, "has no vectors 'fine'", "--vectors", "fine")
    refused(2, "--gamma must be above 0", "--gamma", "0")
    refused(1, "is not a ralm index", "--index", work / "bert")
    refused(2, "--patience has no effect", "--held-out", "0", "--patience", "3")
    failed(
        ralm("train", "retriever", work / "taught", "--index", work / "taught", "--out", out), 1, "not a ralm signals"
    )
