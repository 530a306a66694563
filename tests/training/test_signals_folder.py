"""Folders of signals: read back, written by the command, killed processes, damage, other settings."""

import json
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.errors import DamagedFolderError, UsageError
from ralm.records import NO_PASSAGE, IntArray
from ralm.storage.manifest import write_manifest
from ralm.training import signals
from ralm.training.gains import signal_statistics
from ralm.training.options import TrainingOptions
from ralm.training.signals import (
    CANDIDATES,
    EXAMPLES,
    SIGNALS_KIND,
    Signals,
    open_signals,
    split_documents,
    split_with_choice,
    spread,
)
from tests.cli.program import Answer, ralm
from tests.training.made_signals import save_signals, save_zipf_corpus


def test_what_was_written_is_read(tmp_path: Path) -> None:
    signals = save_signals(
        tmp_path / "signals", "index", ["one", "two", "three"], [[7, 3], [], [5]], [[-1.0, -2.0], [], [-0.5]], tokens=3
    )
    assert len(signals) == 3
    np.testing.assert_array_equal(signals.passages_EK, [[7, 3], [NO_PASSAGE, NO_PASSAGE], [5, NO_PASSAGE]])
    infinite = float("-inf")
    np.testing.assert_allclose(signals.log_probs_EK, np.array([[-3, -6], [infinite, infinite], [-1.5, infinite]]))
    np.testing.assert_allclose(signals.baseline_E, -9.0)
    assert signals.texts("prefix").to_pylist() == ["one", "two", "three"]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_the_share_of_documents_is_held_out_whole(share: float) -> None:
    """So is about that share of the examples, though documents differ in size; every example is on one side."""
    drawn = np.random.default_rng(0).choice(40, 2_000, p=np.arange(1, 41) / 820)
    names = [f"document {number}" for number in drawn.tolist()]
    shares = []
    for seed in range(20):
        training, held_out = split_documents(names, share, seed)
        assert sorted([*training, *held_out]) == list(range(2_000))
        held_out_names = {names[example] for example in held_out}
        assert not held_out_names & {names[example] for example in training}
        assert len(held_out_names) == round(share * len({*names}))
        shares.append(len(held_out) / 2_000)
    assert max(abs(np.array(shares) - share)) < 0.05
    assert len(set(shares)) > 5, "the seed decides"


def test_a_few_documents_are_on_one_side_each() -> None:
    for count, sides in ((1, (1, 0)), (2, (1, 1)), (3, (1, 2)), (4, (2, 2))):
        training, held_out = split_documents([f"d{n % count}" for n in range(3 * count)], 0.5, 0)
        assert (len(training) // 3, len(held_out) // 3) == sides
    assert [len(side) for side in split_documents(["a", "b"], 0.0, 0)] == [2, 0]


@pytest.mark.parametrize(("documents", "said"), [(1, "of 1 document"), (2, "of 2 documents"), (9, "of 9 documents")])
def test_fewer_than_ten_documents_are_not_split(tmp_path: Path, documents: int, said: str) -> None:
    names = [f"document {n % documents}" for n in range(90)]
    signals = save_signals(tmp_path / "s", "i", ["x"] * 90, [[1, 2]] * 90, [[-1.0, -2.0]] * 90, documents=names)
    with pytest.raises(UsageError, match=rf"{said}, and holding some out needs at least 10: give more text"):
        split_with_choice(signals, TrainingOptions(held_out=0.3))
    assert [len(part) for part in split_with_choice(signals, TrainingOptions(held_out=0))] == [90, 0, 0]


def test_every_document_is_used_before_any_is_used_twice() -> None:
    names = ["long"] * 50 + [f"short {n}" for n in range(9)]
    used = spread(np.arange(59), names, 12)
    assert {names[example] for example in used} == {*names}
    assert used.tolist() == sorted({*used.tolist()})
    assert sum(names[example] == "long" for example in used) == 3
    assert spread(np.arange(59), names, 100).tolist() == list(range(59))
    assert spread(np.arange(0), names, 5).tolist() == []


@pytest.mark.parametrize("impossible", [float("nan"), 0.5])
def test_a_log_probability_that_cannot_be_is_one_sentence(tmp_path: Path, impossible: float) -> None:
    means = [[-1.0, impossible], [-1.0, -2.0]]
    with pytest.raises(DamagedFolderError, match="log-probability that is above 0 or not a number.*; measure the sig"):
        save_signals(tmp_path / "s", "i", ["x"] * 2, [[1, 2]] * 2, means)


def test_tables_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    save_signals(folder, "index", ["one", "two"], [[7], [1]], [[-1.0], [-1.0]])
    examples = pq.read_table(folder / EXAMPLES)
    pq.write_table(examples.slice(0, 1), folder / EXAMPLES)
    (folder / "manifest.json").unlink()
    write_manifest(folder, kind=SIGNALS_KIND, settings={}, counts={})
    with pytest.raises(DamagedFolderError, match="do not belong together"):
        open_signals(folder)
    (folder / EXAMPLES).write_bytes(b"nothing")
    with pytest.raises(DamagedFolderError, match="has 7 bytes"):
        open_signals(folder)


def test_impossible_continuations_are_not_trained_on(tmp_path: Path) -> None:
    infinite = float("-inf")
    signals = save_signals(
        tmp_path / "signals",
        "index",
        ["possible", "one candidate", "impossible behind one", "impossible without a passage"] * 3,
        [[1, 2], [1], [1, 2], [1, 2]] * 3,
        [[-1.0, -2.0], [-1.0], [-1.0, infinite], [-1.0, -2.0]] * 3,
        baselines=[-3.0, -3.0, -3.0, infinite] * 3,
    )
    training, *held_out = split_with_choice(signals, TrainingOptions(held_out=0))
    assert training.tolist() == [0, 4, 8]
    assert [len(half) for half in held_out] == [0, 0]


SMALL = ["--prefix-tokens", 12, "--sequence-tokens", 32, "--query-tokens", 12, "--document-tokens", 30]
SMALL += ["--candidates", 3, "--per-sequence", 2]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and an index of it."""
    folder = tmp_path_factory.mktemp("signals")
    save_zipf_corpus(folder / "corpus.jsonl")
    answer = ralm("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 12)
    assert answer.status == 0, answer.err
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_PART", 8)


@pytest.fixture
def asked(work: Path, tiny_folders: dict[str, Path]) -> list[object]:
    """Everything but the output."""
    lm = tiny_folders["gpt2"]
    return ["signals", work / "corpus.jsonl", "--index", work / "index", "--lm", lm, "--examples", 30, *SMALL]


def succeeded(answer: Answer) -> Answer:
    assert answer.status == 0, answer.err
    return answer


def same(some: Signals, others: Signals) -> None:
    """The same candidates and, but for rounding, the same figures."""
    np.testing.assert_array_equal(some.passages_EK, others.passages_EK)
    np.testing.assert_allclose(some.log_probs_EK, others.log_probs_EK, rtol=1e-5)
    np.testing.assert_allclose(some.baseline_E, others.baseline_E, rtol=1e-5)
    assert some.texts("prefix") == others.texts("prefix")


def test_the_command_says_what_signals_are_worth(work: Path, tmp_path: Path, asked: list[object]) -> None:
    out = tmp_path / "signals"
    answer = succeeded(ralm(*asked, "--out", out))
    assert f"{out}: 30 examples" in answer.out
    made = open_signals(out)
    assert len(made) == 30
    assert made.passages_EK.shape == (30, 3)
    assert len(list((out / CANDIDATES).iterdir())) == 4
    assert not (tmp_path / "signals.unfinished").exists()
    examples = pq.read_table(out / "examples.parquet").to_pylist()
    assert [row["example"] for row in examples] == list(range(30))
    for row in examples:
        assert row["prefix"].endswith(row["query"])
        assert len(row["continuation_tokens"]) == 4
    assert ralm("check", out).status == 0
    again = ralm(*asked, "--out", out)
    assert again.status != 0
    assert "already exists" in again.err
    as_json = json.loads(succeeded(ralm(*asked, "--out", out, "--force", "--json")).out)
    assert as_json == asdict(signal_statistics(made))
    same(made, open_signals(out))
    assert ralm("check", out).status == 0


def measuring_that_fails_at_the_third(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the disk be full once, when a third part is to be measured; returns where measured parts begin."""
    measured: list[int] = []
    failed: list[int] = []
    measure = signals._candidate_file

    def measuring(examples: Any, part_B: IntArray, retriever: Any) -> bytes:
        first = int(part_B[0])
        if len(measured) == 2 and not failed:
            failed.append(first)
            raise OSError(28, "No space left on device")
        measured.append(first)
        return measure(examples, part_B, retriever)

    monkeypatch.setattr(signals, "_candidate_file", measuring)
    return measured


@pytest.mark.parametrize("replaced", [[], ["--force"]])
def test_what_is_done_is_not_measured_again(
    tmp_path: Path, asked: list[object], monkeypatch: pytest.MonkeyPatch, replaced: list[object]
) -> None:
    """With --force, over signals of the same settings."""
    succeeded(ralm(*asked, "--out", tmp_path / "whole"))
    if replaced:
        shutil.copytree(tmp_path / "whole", tmp_path / "out")
    measured = measuring_that_fails_at_the_third(monkeypatch)
    answer = ralm(*asked, "--out", tmp_path / "out", *replaced)
    assert answer.status != 0
    assert "no space left" in answer.err
    assert measured == [0, 8]
    if replaced:
        same(open_signals(tmp_path / "whole"), open_signals(tmp_path / "out"))
    else:
        other = ralm(*asked, "--out", tmp_path / "out", "--seed", 1)
        assert other.status != 0
        assert "begun with other settings (examples.seed 0 there, 1 here)" in other.err
    with sqlite3.connect(tmp_path / "out.unfinished" / "parts.sqlite") as parts:
        parts.execute("UPDATE entries SET value = substr(value, 2) WHERE key = CAST('1' AS BLOB)")
    succeeded(ralm(*asked, "--out", tmp_path / "out", *replaced))
    assert sorted(measured) == [0, 8, 8, 16, 24], "a part that was damaged is measured again"
    same(open_signals(tmp_path / "whole"), open_signals(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--document-tokens", 1020], "do not fit together into"),
        (["--fields", "text=title,title=text"], "no document has 16 tokens"),
    ],
)
def test_bad_input(tmp_path: Path, asked: list[object], options: list[object], message: str) -> None:
    answer = ralm(*asked, *options, "--out", tmp_path / "out")
    assert answer.status != 0
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_worth_by_hand(tmp_path: Path) -> None:
    """Two examples with a choice, one with a single candidate, one that the model finds impossible."""
    signals = save_signals(
        tmp_path / "signals",
        "index",
        ["a", "b", "c", "d"],
        [[0, 1], [2, 3], [4], [5, 6]],
        [[-2.0, -1.0], [-2.0, -2.005], [-1.0], [-1.0, -np.inf]],
        baselines=[-3.0, -2.5, -9.0, -9.0],
    )
    worth = signal_statistics(signals)
    assert (worth.examples, worth.single, worth.impossible, worth.no_preference) == (2, 1, 1, 1)
    assert worth.first.value == pytest.approx((1 + 0.5) / 2, abs=1e-6)
    assert worth.random.value == pytest.approx((1.5 + 0.4975) / 2, abs=1e-6)
    assert worth.best.value == pytest.approx((2 + 0.5) / 2, abs=1e-6)
    assert worth.first.ends is None, "of two documents"
