"""What all trainings share: exact resume, early stopping, whole checkpoints, one training a folder."""

import errno
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch

from ralm.errors import FolderExistsError, ModelError, RalmWarning, StorageError, UsageError
from ralm.records import IntArray
from ralm.runs.resume import unfinished_run
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import FolderKind
from ralm.training.checkpoints import Checkpoint, Checkpoints
from ralm.training.loop import LOSSES, PLOT, TrainableModel, batch_of_step, learning_rate, own_randomness, train
from ralm.training.options import Trained, TrainingOptions

KIND = FolderKind("line")
EXAMPLES = np.arange(40)
TRAINING_E, HELD_OUT_E = EXAMPLES[:30], EXAMPLES[30:]
OPTIONS = TrainingOptions(steps=30, batch=6, learning_rate=0.1, evaluate_every=5, checkpoint_every=4, patience=30)


class Line(TrainableModel):
    """Learns y = 3 x - 1 with dropout; `stop` ends it before a step as a signal would."""

    at_once = 4

    def __init__(self, stop: int | None = None, nan: int | None = None, dropout: float = 0.2) -> None:
        self.module = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))
        self.documents_E = [f"d{example}" for example in EXAMPLES]
        self.stop, self.nan, self.begun = stop, nan, 0

    def losses(self, examples_B: IntArray, draws: np.random.Generator | None) -> torch.Tensor:
        x = torch.tensor(examples_B / 40, dtype=torch.float32)
        noise = 0 if draws is None else torch.tensor(draws.normal(0, 0.01, len(x)), dtype=torch.float32)
        losses = (self.module(x[:, None])[:, 0] - (3 * x - 1 + noise)) ** 2
        return torch.where(torch.tensor(examples_B == self.nan), torch.nan, losses)

    def save(self, folder: Path) -> None:
        (folder / "weights.json").write_text(json.dumps(self.weights()))

    def weights(self) -> list[Any]:
        return [one.tolist() for one in self.module.state_dict().values()]

    def vector(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self.module.parameters()).detach()

    def begin_step(self, step: int) -> None:
        if step == self.stop:
            raise KeyboardInterrupt
        self.begun += 1

    def state(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def restore(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"]


def trained(out: Path, options: TrainingOptions = OPTIONS, force: bool = False, **line: Any) -> tuple[Line, Trained]:
    with own_randomness(options.seed):
        student = Line(**line)
        return student, train(
            student, out, KIND, {"steps": options.steps}, TRAINING_E, HELD_OUT_E, options, force=force
        )


def held_out_loss(result: Trained, step: int) -> float:
    return next(float(row["held_out_loss"]) for row in result.losses if row["step"] == step)


def same_weights_as_undisturbed(folder: Path) -> None:
    """Run the training of `folder / "out"` again, and compare it with one that was never stopped."""
    resumed, result = trained(folder / "out")
    whole, expected = trained(folder / "whole")
    assert resumed.weights() == whole.weights()
    assert replace(result, out=expected.out) == expected
    assert resumed.begun == whole.begun == 30
    assert (folder / "out" / LOSSES).read_bytes() == (folder / "whole" / LOSSES).read_bytes()


def test_a_folder_with_the_model_its_losses_and_a_plot(tmp_path: Path) -> None:
    _, result = trained(tmp_path / "out")
    table = pyarrow.csv.read_csv(tmp_path / "out" / LOSSES)
    assert table["step"].to_pylist() == [0, 5, 10, 15, 20, 25, 30]
    assert table["training_loss"].to_pylist()[0] is None
    held_out = table["held_out_loss"].to_pylist()
    assert min(held_out) == held_out_loss(result, result.best_step) < held_out[0] / 4
    assert (tmp_path / "out" / PLOT).read_bytes().startswith(b"\x89PNG")
    manifest = read_manifest(tmp_path / "out", kind=KIND)
    assert manifest.counts == {"steps": 30, "best_step": result.best_step}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("stops", [(1,), (3,), (4,), (11, 12), (5, 17, 29)])
def test_a_training_that_was_stopped_ends_bit_for_bit_as_an_undisturbed_one(
    stops: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ralm")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "out", stop=stop)
        assert (tmp_path / "out.unfinished").exists() == (stop > 3), "without a checkpoint nothing is left"
    same_weights_as_undisturbed(tmp_path)
    assert ("resuming a training that was stopped: " in caplog.text) == (stops[-1] > 3)


def test_random_numbers_of_the_caller_stay_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained(tmp_path / "out")
    assert torch.equal(torch.rand(3), expected)


def test_parts_of_a_batch_do_not_change_the_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for at_once in (1, 4, 100):
        monkeypatch.setattr(Line, "at_once", at_once)
        student, _ = trained(tmp_path / str(at_once), replace(OPTIONS, steps=1), dropout=0.0)
        weights.append(student.vector())
    torch.testing.assert_close(weights[1], weights[0])
    torch.testing.assert_close(weights[2], weights[0])


def test_a_lower_precision_trains_too(tmp_path: Path) -> None:
    exact, _ = trained(tmp_path / "exact", replace(OPTIONS, steps=5))
    student, result = trained(tmp_path / "lower", replace(OPTIONS, steps=5, precision="bfloat16"))
    assert result.losses[-1]["held_out_loss"] is not None
    assert {one.dtype for one in student.module.parameters()} == {torch.float32}
    assert not torch.equal(student.vector(), exact.vector())
    torch.testing.assert_close(student.vector(), exact.vector(), rtol=0.1, atol=0.1)


def test_a_training_without_dropout_is_one_of_a_model_that_has_none(tmp_path: Path) -> None:
    weights = {}
    for name, dropout, made_for in (("with", True, 0.2), ("without", False, 0.2), ("has none", True, 0.0)):
        student, _ = trained(tmp_path / name, replace(OPTIONS, dropout=dropout), dropout=made_for)
        weights[name] = student.weights()
    assert weights["without"] == weights["has none"] != weights["with"]


def test_it_stops_early_and_keeps_the_best_weights(tmp_path: Path) -> None:
    options = TrainingOptions(steps=500, batch=6, learning_rate=0.5, evaluate_every=1, patience=3, warmup=0)
    student, result = trained(tmp_path / "out", options)
    best = held_out_loss(result, result.best_step)
    assert result.steps == result.best_step + 3 < 500
    assert best == min(row["held_out_loss"] for row in result.losses)
    with torch.no_grad():
        assert float(student.losses(HELD_OUT_E, None).mean()) == pytest.approx(best)


def test_a_budget_plans_fewer_steps_that_a_killed_training_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step and an evaluation take a second each, and every fifth step is evaluated: ten fit into 12 seconds."""
    options = replace(OPTIONS, budget=0.2, checkpoint_every=2)
    seconds = itertools.count()
    monkeypatch.setattr("ralm.training.loop.time.perf_counter", lambda: float(next(seconds)))
    with caplog.at_level("INFO"):
        _, result = trained(tmp_path / "whole", options)
    assert result.steps == 10
    assert result.losses[-1]["learning_rate"] == learning_rate(9, options, 10) < 0.02
    assert "10 instead of 30 steps fit into 0.2 minutes, at 1.2 seconds each" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", options, stop=7)
    monkeypatch.setattr("ralm.training.loop.time.perf_counter", lambda: 0.0)
    _, again = trained(tmp_path / "killed", options)
    assert again.losses == result.losses
    _, unbounded = trained(tmp_path / "unbounded", replace(options, budget=0))
    assert unbounded.steps == 30


def test_a_budget_that_has_no_room_for_one_step_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(step=90.0)
    monkeypatch.setattr("ralm.training.loop.time.perf_counter", lambda: next(seconds))
    with pytest.raises(
        UsageError, match=r"`budget` 1 minutes has no room for one step, which takes 1\d\d\.\d seconds: give at least"
    ):
        trained(tmp_path / "out", replace(OPTIONS, budget=1.0))
    assert not list(tmp_path.iterdir())


def test_a_training_that_does_not_help_is_reported(tmp_path: Path) -> None:
    options = TrainingOptions(steps=4, batch=2, learning_rate=30.0, evaluate_every=1, warmup=0)
    with pytest.warns(RalmWarning, match="did not lower the loss of the held-out examples"):
        student, result = trained(tmp_path / "out", options)
    assert result.best_step == 0
    with own_randomness(options.seed):
        assert student.weights() == Line().weights()


def test_a_loss_that_is_not_a_number_names_the_example_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    steps = [batch_of_step(TRAINING_E, step, OPTIONS).tolist() for step in range(30)]
    example = next(one for one in range(30) if not any(one in batch for batch in steps[:4]))
    first = next(place for place, batch in enumerate(steps, 1) if example in batch)
    named = rf"the loss of example {example} \(document 'd{example}'\) is nan in step {first}"
    with pytest.raises(ModelError, match=rf"{named}; the checkpoint of step 4 is kept"):
        trained(tmp_path / "out", nan=example)
    same_weights_as_undisturbed(tmp_path)
    with pytest.raises(ModelError, match=r"is nan in step 1; there is no checkpoint yet"):
        trained(tmp_path / "again", nan=steps[0][0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_one_training_per_folder_and_with_the_same_settings(tmp_path: Path) -> None:
    with (
        unfinished_run(tmp_path / "out", {}, force=False),
        pytest.raises(FolderExistsError, match="another process is writing .*out; wait for it"),
    ):
        trained(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "out", stop=9)
    other = TrainingOptions(steps=31, batch=6)
    with pytest.raises(UsageError, match=r"begun with other settings \(steps 30 there, 31 here\)"):
        trained(tmp_path / "out", other)
    trained(tmp_path / "out", other, force=True)
    with pytest.raises(FolderExistsError, match="already exists"):
        trained(tmp_path / "out")


def test_a_full_disk_at_a_checkpoint_is_one_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept: list[int] = []
    write = Checkpoints.save

    def save(self: Checkpoints, checkpoint: Checkpoint) -> None:
        if checkpoint.step == 12:
            monkeypatch.setattr("ralm.storage.atomic.os.fsync", full)
        kept.append(checkpoint.step)
        write(self, checkpoint)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", save)
        with pytest.raises(StorageError, match="no space left on the disk while writing .*checkpoint-12"):
            trained(tmp_path / "out")
    monkeypatch.undo()
    assert kept == [4, 8, 12]
    assert not list((tmp_path / "out.unfinished").glob("*.partial"))
    same_weights_as_undisturbed(tmp_path)


def test_checkpoints_are_whole_or_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        kept.save(Checkpoint(step, {"w": torch.full((2,), float(step))}, {"step": step}))
    assert len(list(tmp_path.iterdir())) == 2
    last = next(tmp_path.glob("checkpoint-3-*"))
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    (tmp_path / (last.name + ".partial")).write_bytes(b"half")
    found = Checkpoints(tmp_path).latest()
    assert found is not None
    assert (found.step, found.facts) == (2, {"step": 2})
    assert found.tensors["w"].tolist() == [2.0, 2.0]
    assert caplog.messages == [f"{last} is damaged: an earlier checkpoint is used, or the training begins again."]
    assert not list(tmp_path.glob("*.partial"))
    next(tmp_path.glob("checkpoint-2-*")).unlink()
    assert Checkpoints(tmp_path).latest() is None


def test_every_example_is_read_once_a_round_in_another_order() -> None:
    batches = [batch_of_step(TRAINING_E, step, OPTIONS) for step in range(10)]
    rounds = np.concatenate(batches).reshape(2, 30)
    for one in rounds:
        assert sorted(one.tolist()) == list(range(30))
    assert rounds[0].tolist() != rounds[1].tolist()


def test_the_learning_rate_rises_and_falls() -> None:
    options = TrainingOptions(steps=10, warmup=0.2, learning_rate=1.0)
    rates = [learning_rate(step, options, 10) for step in range(10)]
    np.testing.assert_allclose(rates, [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
