"""What all trainings share: exact resume, early stopping, checkpoints, one training a folder."""

import errno
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
from ralm.training import trainer
from ralm.training.options import Trained, TrainingOptions
from ralm.training.trainer import LOSSES, EncoderTrainer, ExampleLoss, own_randomness, reading_order, train

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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, Trained]:
    """A training that was never stopped."""
    return trained(tmp_path_factory.mktemp("whole") / "out")


def same_weights_as_undisturbed(out: Path, whole: tuple[Line, Trained]) -> None:
    """Run the training of a folder again, and compare it with one that was never stopped."""
    (resumed, result), (line, expected) = trained(out), whole
    assert resumed.weights() == line.weights()
    assert replace(result, out=expected.out) == expected
    assert resumed.begun == line.begun == 30
    assert (out / LOSSES).read_bytes() == (expected.out / LOSSES).read_bytes()


def test_a_folder_with_the_model_and_its_losses(whole: tuple[Line, Trained]) -> None:
    _, result = whole
    table = pyarrow.csv.read_csv(result.out / LOSSES)
    assert table["step"].to_pylist() == [0, 4, 8, 12, 16, 20, 24, 28, 30]
    assert table["training_loss"].to_pylist()[0] is None
    held_out = table["held_out_loss"].to_pylist()
    assert min(held_out) == held_out_loss(result, result.best_step) < held_out[0] / 4
    manifest = read_manifest(result.out, kind=KIND)
    assert manifest.counts == {"steps": 30, "best_step": result.best_step}
    assert [path.name for path in result.out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("stops", [(3,), (4,), (5, 17, 29)])
def test_a_training_that_was_stopped_ends_bit_for_bit_as_an_undisturbed_one(
    stops: tuple[int, ...], whole: tuple[Line, Trained], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ralm")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "out", stop=stop)
        assert (tmp_path / "out.unfinished").exists() == (stop > 3), "without a checkpoint nothing is left"
    same_weights_as_undisturbed(tmp_path / "out", whole)
    assert ("resuming a training that was stopped: " in caplog.text) == (stops[-1] > 3)


def test_parts_of_a_batch_do_not_change_the_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for at_once in (1, 100):
        monkeypatch.setattr(Line, "at_once", at_once)
        student, _ = trained(tmp_path / str(at_once), replace(OPTIONS, steps=1), dropout=0.0)
        weights.append(student.vector())
    torch.testing.assert_close(weights[1], weights[0])


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


def test_a_training_that_does_not_help_is_reported(tmp_path: Path) -> None:
    options = TrainingOptions(steps=4, batch=2, learning_rate=30.0, evaluate_every=1, warmup=0)
    with pytest.warns(RalmWarning, match="did not lower the loss of the held-out examples"):
        student, result = trained(tmp_path / "out", options)
    assert result.best_step == 0
    with own_randomness(options.seed):
        assert student.weights() == Line().weights()


def test_a_loss_that_is_not_a_number_names_the_example_and_leaves_the_checkpoint(
    whole: tuple[Line, Trained], tmp_path: Path
) -> None:
    steps = batches()
    example = next(one for one in range(30) if not any(one in batch for batch in steps[:4]))
    first = next(place for place, batch in enumerate(steps, 1) if example in batch)
    named = rf"the loss of example {example} \(document 'd{example}'\) is nan in step {first}"
    with pytest.raises(ModelError, match=rf"{named}; the checkpoint of step 4 is kept"):
        trained(tmp_path / "out", nan=example)
    same_weights_as_undisturbed(tmp_path / "out", whole)
    with pytest.raises(ModelError, match=r"is nan in step 1; there is no checkpoint yet"):
        trained(tmp_path / "again", nan=steps[0][0])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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
    whole: tuple[Line, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    same_weights_as_undisturbed(tmp_path / "out", whole)


def test_a_checkpoint_that_was_not_ended_is_not_used(
    whole: tuple[Line, Trained], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = tmp_path / "out.unfinished"
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "out", stop=14)
    kept = sorted(folder.name for folder in work.glob("checkpoint-*"))
    assert kept == ["checkpoint-12", "checkpoint-4", "checkpoint-8"]
    (work / "checkpoint-12" / "trainer_state.json").unlink()
    caplog.set_level(logging.INFO, logger="ralm")
    same_weights_as_undisturbed(tmp_path / "out", whole)
    assert "resuming a training that was stopped: 8 steps were done before" in caplog.messages


def test_a_training_that_was_moved_or_had_stopped_early_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TrainingOptions(steps=500, batch=6, learning_rate=0.5, evaluate_every=1, patience=3, warmup=0)
    _, expected = trained(tmp_path / "whole", options)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "write_manifest", interrupt)
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
