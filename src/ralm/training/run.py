"""Runs a training in its work folder, and writes what came of it: the model, its losses as table and plot, a manifest.

A killed training resumes at its last checkpoint that is whole. On a CPU, with as many threads, its final weights are
bit for bit those of an undisturbed training. Letters of shapes: E all examples, B those of a batch, S steps.
"""

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from pydantic import JsonValue

from ralm.errors import FolderError, ModelError, RalmWarning, UsageError
from ralm.lm.local.loading import quiet_loading
from ralm.records import IntArray
from ralm.runs import resume
from ralm.runs.plot import draw_lines
from ralm.runs.run import environment
from ralm.storage.manifest import Manifest, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import progress_bar, to_json
from ralm.training.options import Trained, TrainingOptions
from ralm.training.trainer import (
    ExampleLoss,
    NotFiniteError,
    Steps,
    checkpoint_folder,
    latest_checkpoint,
    make_trainer,
)

LOSSES: Final = "losses.csv"
PLOT: Final = "losses.png"
_LOSSES_SCHEMA: Final = pa.schema(
    {
        "step": pa.int64(),
        "learning_rate": pa.float64(),
        "training_loss": pa.float64(),
        "held_out_loss": pa.float64(),
    }
)
_COLUMNS: Final = {"learning_rate": "learning_rate", "loss": "training_loss", "eval_loss": "held_out_loss"}
"""The columns of `LOSSES` by the names in the log of a trainer."""
_PANELS: Final = {"loss": {"training_loss": "trained on", "held_out_loss": "held out"}}
_TIMED: Final = 3
"""Steps that are tried to know the time of one."""

_logger = logging.getLogger(__name__)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, for new weights and dropout; the caller's own, of all kinds, are as before
    afterwards."""
    numbers, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 (which the trainers seed)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)  # noqa: NPY002


def train(
    loss: ExampleLoss,
    out: Path | str,
    kind: FolderKind,
    config: dict[str, JsonValue],
    training_E: IntArray,
    held_out_E: IntArray,
    options: TrainingOptions,
    *,
    results: Callable[[], dict[str, JsonValue]] = dict,
    force: bool = False,
) -> Trained:
    """Train a model on examples and write its folder atomically: the model, its losses as table and plot, a manifest.

    The model ends with the weights of the lowest held-out loss, or of the last step if nothing is held out; then
    `results` returns what the manifest says of them. A training with this `config` that was killed resumes at its last
    checkpoint. Call this within `own_randomness`. Raises UsageError if a training with another `config` was begun
    there, the budget has no room for a step, or the model is on a GPU that is not the first one; ModelError if a loss
    is not finite. The last checkpoint stays.
    """
    out = Path(out)
    check_output(out, kind=kind, force=force)
    if loss.model.device.index:
        raise UsageError(
            f"the trainers use the first GPU that they see, not {loss.model.device}: set CUDA_VISIBLE_DEVICES="
            f"{loss.model.device.index}, and give `device` cuda."
        )
    with resume.unfinished_run(out, config, force=force) as work:
        training = _Training(loss, work, training_E, held_out_E, options)
        state = training.run()
        rows, best_step = _rows(state.log_history), state.best_global_step
        settings: dict[str, JsonValue] = {
            "config": config,
            "results": {"planned_steps": training.planned, **results()},
            "environment": environment(),
        }
        with new_folder(out, kind=kind, force=force) as folder:
            loss.save(folder)
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows, _LOSSES_SCHEMA), folder / LOSSES)
            draw_lines("step", rows, _PANELS, folder / PLOT)
            counts = {"steps": state.global_step, "best_step": best_step}
            manifest = write_manifest(folder, kind=kind, settings=settings, counts=counts)
    return _outcome(out, manifest, rows)


def read_trained(out: Path | str, kind: FolderKind, config: dict[str, JsonValue]) -> Trained | None:
    """The outcome of a training with this `config` that wrote this folder; None if it is missing, damaged or other."""
    out = Path(out)
    try:
        manifest = read_manifest(out, kind=kind)
    except FolderError:
        return None
    if to_json(manifest.settings["config"]) != to_json(config):
        return None
    options = pyarrow.csv.ConvertOptions(column_types=_LOSSES_SCHEMA)
    return _outcome(out, manifest, pyarrow.csv.read_csv(out / LOSSES, convert_options=options).to_pylist())


def _outcome(out: Path, manifest: Manifest, rows: Sequence[dict[str, Any]]) -> Trained:
    results: Any = manifest.settings["results"]
    return Trained(
        out=out,
        **manifest.counts,
        planned_steps=results["planned_steps"],
        losses=rows,
        held_out=results.get("held_out"),
    )


def _rows(log: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `LOSSES` from the log of a trainer."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log:
        if entry.keys() & _COLUMNS:
            row = rows.setdefault(entry["step"], dict.fromkeys(_LOSSES_SCHEMA.names) | {"step": entry["step"]})
            row |= {_COLUMNS[name]: entry[name] for name in _COLUMNS if name in entry}
    return [*rows.values()]


class _Training:
    """A training of a loss, in its work folder."""

    def __init__(
        self, loss: ExampleLoss, work: Path, training_E: IntArray, held_out_E: IntArray, options: TrainingOptions
    ) -> None:
        self.planned = options.steps
        self._loss = loss
        self._work = work
        self._training_E = training_E
        self._held_out_E = held_out_E
        self._options = options
        self._first = {name: tensor.detach().cpu().clone() for name, tensor in loss.model.state_dict().items()}
        """The weights that the training began with."""

    def run(self) -> Any:
        """Train, and load the best weights; returns the state of the trainer."""
        loss, checkpoint = self._loss, latest_checkpoint(self._work)
        begun = 0 if checkpoint is None else checkpoint.counts["step"]
        loss.begin(self._work, self._held_out_E, begun)
        steps = self.planned = self._options.steps
        if checkpoint is not None:
            settings: dict[str, Any] = checkpoint.settings
            loss.restore(settings["loss"])
            self.planned = settings["planned"]
            steps = begun if settings["is_over"] else self.planned
            _logger.info("resuming a training that was stopped: %s steps were done before", f"{begun:,}")
        elif self._options.budget:
            steps = self.planned = self._plan()
        state = self._do_steps(steps, begun).state
        loss.model.eval()
        if not len(self._held_out_E):
            state.best_global_step = state.global_step
        elif not state.best_global_step:
            state.best_global_step = 0
            loss.model.load_state_dict(self._first)
            warnings.warn(
                "training did not lower the loss of the held-out examples; the weights that it began with are kept.",
                RalmWarning,
                stacklevel=3,
            )
        return state

    def _plan(self) -> int:
        """Return how many steps the budget has room for, after a trial that leaves the weights as they are. Raises
        UsageError if there is no room for one step."""
        options, began = self._options, time.perf_counter()
        steps = min(_TIMED, options.steps)
        trainer = self._do_steps(steps, is_trial=True)
        trained = time.perf_counter()
        if len(self._held_out_E):
            with quiet_loading():
                trainer.evaluate()
        self._loss.model.load_state_dict(self._first)
        ended = time.perf_counter()
        evaluation = ended - trained if len(self._held_out_E) else 0.0
        seconds = (trained - began) / steps + evaluation / options.evaluate_every
        steps = int((60 * options.budget - (ended - began) - evaluation) / seconds)  # one is before the first step
        if steps < 1:
            raise UsageError(
                f"`budget` {options.budget:g} minutes has no room for one step, which takes {seconds:,.1f} seconds, "
                f"after the {_TIMED} that measure it: give at least {(_TIMED + 1) * seconds / 60:.2g}, a smaller "
                "`batch`, or 0 for no limit."
            )
        return min(options.steps, steps)

    def _do_steps(self, steps: int, begun: int = 0, *, is_trial: bool = False) -> Any:
        """Do steps after those that were begun, or only try them; returns the trainer. Raises ModelError if a loss or a
        gradient is not finite."""
        loss, options = self._loss, self._options
        batches_SB = reading_order(self._training_E, steps * options.batch, options.seed).reshape(steps, -1)
        with quiet_loading(), progress_bar("Trying" if is_trial else "Training", steps) as advance:
            advance(begun)
            callbacks = [*(() if is_trial else loss.callbacks), Steps(loss, batches_SB, advance)]
            trainer: Any = make_trainer(
                *(loss, self._work, batches_SB, self._held_out_E, options, callbacks),
                planned=self.planned,
                resumes=begun > 0,
                is_trial=is_trial,
            )
            try:
                trainer.train(str(checkpoint_folder(self._work, begun)) if begun else None)
            except NotFiniteError as error:
                kept = latest_checkpoint(self._work)
                stays = (
                    f"the checkpoint of step {kept.counts['step']:,} is kept" if kept else "there is no checkpoint yet"
                )
                raise ModelError(
                    f"{error} in step {trainer.state.global_step + 1:,}; {stays}. Train with a lower `learning_rate` "
                    'or in `precision="float32"`.'
                ) from None
        return trainer


def reading_order(examples_E: IntArray, count: int, seed: int) -> IntArray:
    """The examples of all steps, so many: all in random order, then all again in another order."""
    rounds = range(-(-count // len(examples_E)))
    orders = [np.random.default_rng([seed, 1, number]).permutation(examples_E) for number in rounds]
    return np.concatenate(orders)[:count]
