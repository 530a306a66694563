"""Runs a training in its work folder, and writes what came of it: the model, its losses as a table, a manifest.

A killed training resumes at its last checkpoint that is whole. On a CPU, with as many threads, its final weights are
bit for bit those of an undisturbed training. Letters of shapes: E all examples, B those of a batch, S steps.
"""

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from datasets import Dataset
from pydantic import JsonValue
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import SequentialSampler
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainerState

from ralm.errors import FolderError, ModelError, RalmWarning, UsageError
from ralm.lm.local.loading import quiet_loading
from ralm.records import IntArray
from ralm.runs import resume
from ralm.runs.run import environment
from ralm.storage.manifest import Manifest, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import progress_bar, to_json
from ralm.training.options import Trained, TrainingOptions
from ralm.training.trainer import ExampleLoss, NotFiniteError, Steps, checkpoint_folder, latest_state

LOSSES: Final = "losses.csv"
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
_KEPT: Final = 3
"""Checkpoints on disk: the last two, and the best."""
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
    """Train a model on examples and write its folder atomically: the model, its losses as a table, a manifest.

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
        state, planned = _Training(loss, work, training_E, held_out_E, options).run()
        settings: dict[str, JsonValue] = {
            "config": config,
            "results": {"planned_steps": planned, **results()},
            "environment": environment(),
        }
        with new_folder(out, kind=kind, force=force) as folder:
            loss.save(folder)
            pyarrow.csv.write_csv(_losses(state.log_history), folder / LOSSES)
            counts = {"steps": state.global_step, "best_step": state.best_global_step}
            manifest = write_manifest(folder, kind=kind, settings=settings, counts=counts)
    return _outcome(out, manifest)


def read_trained(out: Path, kind: FolderKind, config: dict[str, JsonValue]) -> Trained | None:
    """The outcome of a training with this `config` that wrote this folder; None if it is missing, damaged or other."""
    with suppress(FolderError):
        manifest = read_manifest(out, kind=kind)
        if to_json(manifest.settings["config"]) == to_json(config):
            return _outcome(out, manifest)
    return None


def _outcome(out: Path, manifest: Manifest) -> Trained:
    results: Any = manifest.settings["results"]
    options = pyarrow.csv.ConvertOptions(column_types=_LOSSES_SCHEMA)
    return Trained(
        out=out,
        **manifest.counts,
        planned_steps=results["planned_steps"],
        losses=pyarrow.csv.read_csv(out / LOSSES, convert_options=options).to_pylist(),
        held_out=results.get("held_out"),
    )


def _losses(log: Sequence[dict[str, Any]]) -> pa.Table:
    """The table `LOSSES` from the log of a trainer."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log:
        if entry.keys() & _COLUMNS:
            row = rows.setdefault(entry["step"], {"step": entry["step"]})
            row |= {_COLUMNS[name]: entry[name] for name in _COLUMNS if name in entry}
    return pa.Table.from_pylist([*rows.values()], _LOSSES_SCHEMA)


@dataclass(frozen=True, eq=False)
class _Training:
    """A training of a loss, in its work folder."""

    loss: ExampleLoss
    work: Path
    training_E: IntArray
    held_out_E: IntArray
    options: TrainingOptions

    def run(self) -> tuple[TrainerState, int]:
        """Train, and load the best weights; returns the state of the trainer, and how many steps were planned."""
        model, stopped = self.loss.model, latest_state(self.work)
        first = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        begun = stopped.global_step
        self.loss.begin(self.work, self.held_out_E, begun)
        if begun:
            planned = stopped.max_steps
            _logger.info("resuming a training that was stopped: %s steps were done before", f"{begun:,}")
        else:
            planned = self._plan() if self.options.budget else self.options.steps
            model.load_state_dict(first)
        is_over = begun and stopped.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
        state: TrainerState = self._do_steps(begun if is_over else planned, begun).state
        model.eval()
        if not len(self.held_out_E):
            state.best_global_step = state.global_step
        elif not state.best_global_step:
            state.best_global_step = 0
            model.load_state_dict(first)
            warnings.warn(
                "training did not lower the loss of the held-out examples; the weights that it began with are kept.",
                RalmWarning,
                stacklevel=3,
            )
        return state, planned

    def _plan(self) -> int:
        """Return how many steps the budget has room for, after a trial that changes the weights. Raises UsageError if
        there is no room for one step."""
        options, began = self.options, time.perf_counter()
        steps = min(_TIMED, options.steps)
        trainer = self._do_steps(steps, is_trial=True)
        trained = time.perf_counter()
        if len(self.held_out_E):
            with quiet_loading():
                trainer.evaluate()
        ended = time.perf_counter()
        evaluation = ended - trained if len(self.held_out_E) else 0.0
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
        loss, options = self.loss, self.options
        batches_SB = reading_order(self.training_E, steps * options.batch, options.seed).reshape(steps, -1)
        with quiet_loading(), progress_bar("Trying" if is_trial else "Training", steps) as advance:
            advance(begun)
            trainer = self._trainer(batches_SB, [Steps(loss, batches_SB, advance)], begun, is_trial=is_trial)
            try:
                trainer.train(str(checkpoint_folder(self.work, begun)) if begun else None)
            except NotFiniteError as error:
                kept = latest_state(self.work).global_step
                stays = f"the checkpoint of step {kept:,} is kept" if kept else "there is no checkpoint yet"
                raise ModelError(
                    f"{error} in step {trainer.state.global_step + 1:,}; {stays}. Train with a lower `learning_rate` "
                    'or in `precision="float32"`.'
                ) from None
        return trainer

    def _trainer(
        self, batches_SB: IntArray, callbacks: Sequence[TrainerCallback], begun: int, *, is_trial: bool
    ) -> Any:
        """Return the trainer of these batches. A trial neither evaluates nor saves by itself."""
        loss, options, held_out_E = self.loss, self.options, self.held_out_E
        steps, batch = batches_SB.shape
        part = max(size for size in range(1, loss.at_once + 1) if batch % size == 0)
        evaluates = len(held_out_E) > 0 and not is_trial
        arguments = loss.trainer.training_args_class(
            output_dir=str(self.work),
            max_steps=steps,
            per_device_train_batch_size=part,
            gradient_accumulation_steps=batch // part,
            per_device_eval_batch_size=loss.at_once,
            batch_sampler=_in_order,
            learning_rate=options.learning_rate,
            warmup_steps=round(options.warmup * steps),
            eval_strategy="steps" if evaluates else "no",
            eval_on_start=evaluates and not begun,
            eval_steps=options.evaluate_every,
            logging_steps=options.evaluate_every,
            save_strategy="no" if is_trial else "steps",
            save_steps=options.evaluate_every,
            save_total_limit=_KEPT,
            load_best_model_at_end=evaluates,
            metric_for_best_model="eval_loss" if evaluates else None,
            greater_is_better=False,
            restore_callback_states_from_checkpoint=True,
            seed=options.seed,
            use_cpu=loss.model.device.type == "cpu",
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to="none",
        )
        arguments._n_gpu = min(1, arguments.n_gpu)
        stopping = [EarlyStoppingCallback(options.patience)] if evaluates else []
        refreshing = () if is_trial else loss.callbacks
        trainer: Any = loss.trainer(
            model=loss.model,
            args=arguments,
            train_dataset=Dataset(pa.table({"label": batches_SB.ravel()})),
            eval_dataset=Dataset(pa.table({"label": held_out_E})) if len(held_out_E) else None,
            loss=loss,
            data_collator=loss.trainer.data_collator_class(None),
            callbacks=[*stopping, *refreshing, *callbacks],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.options = options
        return trainer


def _in_order(dataset: Dataset, batch_size: int, drop_last: bool, **_: Any) -> DefaultBatchSampler:
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)


def reading_order(examples_E: IntArray, count: int, seed: int) -> IntArray:
    """The examples of all steps, so many: all in random order, then all again in another order."""
    rounds = range(-(-count // len(examples_E)))
    orders = [np.random.default_rng([seed, 1, number]).permutation(examples_E) for number in rounds]
    return np.concatenate(orders)[:count]
