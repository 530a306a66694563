"""A folder of signals, read back."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.errors import DamagedFolderError, UsageError
from ralm.records import NO_PASSAGE
from ralm.storage.manifest import write_manifest
from ralm.training.options import TrainingOptions
from ralm.training.signals import (
    CANDIDATES,
    EXAMPLES,
    SIGNALS_KIND,
    open_signals,
    split_documents,
    split_with_choice,
    spread,
)
from tests.training.made_signals import save_signals


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


def test_of_ten_documents_one_is_there_to_choose_by_and_one_to_test_on(tmp_path: Path) -> None:
    names = [f"document {n}" for n in range(10)]
    signals = save_signals(tmp_path / "s", "i", ["x"] * 10, [[1, 2]] * 10, [[-1.0, -2.0]] * 10, documents=names)
    assert [len(part) for part in split_with_choice(signals, TrainingOptions(held_out=0.1))] == [8, 1, 1]


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


def test_candidates_of_earlier_versions_are_read_without_their_other_columns(tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    made = save_signals(folder, "index", ["one"], [[7]], [[-1.0]])
    [file] = (folder / CANDIDATES).iterdir()
    table = pq.read_table(file)
    table = table.add_column(3, "overlap", [[None, 2]]).add_column(4, "before", [[[-3.0], [-2.0]]])
    pq.write_table(table, file)
    (folder / "manifest.json").unlink()
    write_manifest(folder, kind=SIGNALS_KIND, settings={}, counts={})
    found = open_signals(folder)
    assert (found.passages_EK.tolist(), found.log_probs_EK.tolist()) == ([[7]], made.log_probs_EK.tolist())


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


def test_figures_that_are_changed_are_other_signals(tmp_path: Path) -> None:
    """Else a training on permuted preferences would go on with the checkpoints of the real ones."""
    signals = save_signals(tmp_path / "signals", "i", ["one"], [[7, 3]], [[-1.0, -2.0]])
    shutil.copytree(tmp_path / "signals", tmp_path / "copy")
    assert open_signals(tmp_path / "copy").fingerprint == signals.fingerprint
    permuted = replace(signals, log_probs_EK=signals.log_probs_EK[:, ::-1])
    elsewhere = replace(signals, documents_E=["other"])
    assert len({signals.fingerprint, permuted.fingerprint, elsewhere.fingerprint}) == 3
