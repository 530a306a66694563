"""What all trainings share: exact resume, early stopping, checkpoints, one training a folder."""

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
from transformers import TrainerState

from ralm.errors import FolderExistsError, ModelError, RalmWarning, StorageError, UsageError
from ralm.records import IntArray
from ralm.runs.resume import unfinished_run
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import FolderKind
from ralm.training import run
from ralm.training.options import Trained, TrainingOptions
from ralm.training.run import LOSSES, own_randomness, reading_order, train
from ralm.training.trainer import EncoderTrainer, ExampleLoss

KIND = FolderKind("line")
EXAMPLES = np.arange(40)
TRAINING_E, HELD_OUT_E = EXAMPLES[:30], EXAMPLES[30:]
OPTIONS = TrainingOptions(steps=30, batch=6, learning_rate=0.1, evaluate_every=4, patience=30)


class Layers(torch.nn.Sequential):
    """Layers that know where they are, as the models of sentence-transformers do."""

    device = torch.device("cpu")


class Line(ExampleLoss):
    """Learns y = 3 x - 1 with dropout; `stop` ends it before a step as a signal would."""

    trainer = EncoderTrainer
    at_once = 4

    def __init__(self, stop: int | None = None, nan: int | None = None, dropout: float = 0.2) -> None:
        super().__init__()
        self.model = Layers(torch.nn.Linear(1, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1))
        self.documents_E = [f"d{example}" for example in EXAMPLES]
        self.stop, self.nan, self.begun = stop, nan, 0

    def losses(self, examples_B: IntArray) -> torch.Tensor:
        x = torch.tensor(examples_B / 40, dtype=torch.float32)
        noise = torch.rand(len(x)) / 100 if torch.is_grad_enabled() else 0
        losses = (self.model(x[:, None])[:, 0] - (3 * x - 1 + noise)) ** 2
        return torch.where(torch.tensor(examples_B == self.nan), torch.nan, losses)

    def save(self, folder: Path) -> None:
        (folder / "weights.json").write_text(json.dumps(self.weights()))

    def weights(self) -> list[Any]:
        return [one.tolist() for one in self.model.state_dict().values()]

    def vector(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def begin(self, work: Path, held_out_E: IntArray, step: int) -> None:
        self.begun = step

    def begin_step(self, examples_B: IntArray) -> None:
        if self.begun == self.stop:
            raise KeyboardInterrupt
        self.begun += 1


def trained(
    out: Path, options: TrainingOptions = OPTIONS, force: bool = False, held_out_E: IntArray = HELD_OUT_E, **line: Any
) -> tuple[Line, Trained]:
    with own_randomness(options.seed):
        student = Line(**line)
        return student, train(
            student, out, KIND, {"steps": options.steps}, TRAINING_E, held_out_E, options, force=force
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


def test_a_folder_with_the_model_and_its_losses(tmp_path: Path) -> None:
    _, result = trained(tmp_path / "out")
    table = pyarrow.csv.read_csv(tmp_path / "out" / LOSSES)
    assert table["step"].to_pylist() == [0, 4, 8, 12, 16, 20, 24, 28, 30]
    assert table["training_loss"].to_pylist()[0] is None
    held_out = table["held_out_loss"].to_pylist()
    assert min(held_out) == held_out_loss(result, result.best_step) < held_out[0] / 4
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
    assert {one.dtype for one in student.model.parameters()} == {torch.float32}
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
        assert float(student.losses(HELD_OUT_E).mean()) == pytest.approx(best)


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_budget_ends_a_training_whose_schedule_stays(
    evaluates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a second: ten and a half end it after step 11, without or between evaluations."""
    held_out_E = HELD_OUT_E if evaluates else HELD_OUT_E[:0]
    monkeypatch.setattr("ralm.training.trainer.monotonic", itertools.count().__next__)
    sentence = (
        r"the budget of 0\.175 minutes ended the training at step 11 of 30, where the learning rate was 74% of its "
        "peak, not 0: give `steps` 11 to plan for it"
    )
    with pytest.warns(RalmWarning, match=sentence):
        _, result = trained(tmp_path / "out", replace(OPTIONS, budget=10.5 / 60), held_out_E=held_out_E)
    assert result.steps == 11
    assert result.losses[-1]["step"] == 11
    _, unbounded = trained(tmp_path / "unbounded", held_out_E=held_out_E)
    assert result.losses[:-1] == unbounded.losses[: len(result.losses) - 1]
    if evaluates:
        assert held_out_loss(result, result.best_step) == min(row["held_out_loss"] for row in result.losses)
    else:
        assert result.best_step == 11


def test_the_time_of_a_budget_counts_from_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for 20 steps: 16 before it was stopped, and the 14 others after it."""
    options = replace(OPTIONS, budget=20.5 / 60)
    monkeypatch.setattr("ralm.training.trainer.monotonic", itertools.count().__next__)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "out", options, stop=17)
    resumed, result = trained(tmp_path / "out", options)
    whole, _ = trained(tmp_path / "whole")
    assert result.steps == 30
    assert resumed.weights() == whole.weights()


def test_a_training_that_does_not_help_is_reported(tmp_path: Path) -> None:
    options = TrainingOptions(steps=4, batch=2, learning_rate=30.0, evaluate_every=1, warmup=0)
    with pytest.warns(RalmWarning, match="did not lower the loss of the held-out examples"):
        student, result = trained(tmp_path / "out", options)
    assert result.best_step == 0
    with own_randomness(options.seed):
        assert student.weights() == Line().weights()


def test_a_loss_that_is_not_a_number_names_the_example_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    steps = batches()
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


def test_another_gpu_than_the_first_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layers, "device", torch.device("cuda:2"))
    with pytest.raises(
        UsageError, match="the first GPU that they see, not cuda:2: set CUDA_VISIBLE_DEVICES=2, and give"
    ):
        trained(tmp_path / "out")


def test_a_full_disk_at_a_checkpoint_is_one_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TrainerState.save_to_json

    def full(state: TrainerState, file: str) -> None:
        if state.global_step == 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file)

    with monkeypatch.context() as patched:
        patched.setattr(TrainerState, "save_to_json", full)
        with pytest.raises(StorageError, match="no space left on the disk while writing .*out.unfinished"):
            trained(tmp_path / "out")
    same_weights_as_undisturbed(tmp_path)


def test_a_disk_that_is_full_while_torch_writes_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    with monkeypatch.context() as patched:
        patched.setattr("torch.save", fail)
        with pytest.raises(
            StorageError, match=r"a checkpoint in .* cannot be written \(PytorchStreamWriter failed .*\): free"
        ):
            trained(tmp_path / "out")
    same_weights_as_undisturbed(tmp_path)


def test_a_checkpoint_that_was_not_ended_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work = tmp_path / "out.unfinished"
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "out", stop=14)
    kept = sorted(folder.name for folder in work.glob("checkpoint-*"))
    assert kept == ["checkpoint-12", "checkpoint-4", "checkpoint-8"]
    (work / "checkpoint-12" / "trainer_state.json").unlink()
    caplog.set_level(logging.INFO, logger="ralm")
    same_weights_as_undisturbed(tmp_path)
    assert "resuming a training that was stopped: 8 steps were done before" in caplog.messages


def test_a_training_that_was_moved_or_had_stopped_early_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TrainingOptions(steps=500, batch=6, learning_rate=0.5, evaluate_every=1, patience=3, warmup=0)
    _, expected = trained(tmp_path / "whole", options)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "out", options)
    (tmp_path / "moved").mkdir()
    (tmp_path / "out.unfinished").rename(tmp_path / "moved" / "out.unfinished")
    line, result = trained(tmp_path / "moved" / "out", options)
    assert replace(result, out=expected.out) == expected
    assert line.weights() == json.loads((tmp_path / "whole" / "weights.json").read_text())


def batches() -> list[list[int]]:
    order: list[list[int]] = reading_order(TRAINING_E, 180, OPTIONS.seed).reshape(30, 6).tolist()
    return order


def test_every_example_is_read_once_a_round_in_another_order() -> None:
    rounds = np.concatenate(batches()).reshape(6, 30)
    for one in rounds:
        assert sorted(one.tolist()) == list(range(30))
    assert rounds[0].tolist() != rounds[1].tolist()


def test_the_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=10, warmup=0.2, learning_rate=1.0, evaluate_every=1)
    _, result = trained(tmp_path / "out", options)
    before, *rates = (row["learning_rate"] for row in result.losses)
    assert before is None
    np.testing.assert_allclose(rates, [0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
