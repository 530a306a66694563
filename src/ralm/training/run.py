"""Runs a training in its work folder, and writes what came of it: the model, its losses as a table, a manifest.

A killed training resumes at its last checkpoint. On a CPU, with as many threads, its final weights are
bit for bit those of an undisturbed training. Letters of shapes: E all examples, B those of a batch, S steps.
"""

import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerState

from ralm.environment import environment
from ralm.errors import FolderError, ModelError, RalmWarning, UsageError
from ralm.lm.local.loading import quiet_loading
from ralm.records import IntArray
from ralm.runs import resume
from ralm.storage.manifest import Manifest, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import progress_bar, to_json
from ralm.training.options import Trained, TrainingOptions
from ralm.training.trainer import ExampleLoss, NotFiniteError, Steps, checkpoint_folder, latest_state

LOSSES: Final = "losses.csv"
_COLUMNS: Final = {"learning_rate": "learning_rate", "loss": "training_loss", "eval_loss": "held_out_loss"}
"""The columns of `LOSSES`, but for the step, by the names in the log of a trainer."""
_LOSSES_SCHEMA: Final = pa.schema({"step": pa.int64(), **dict.fromkeys(_COLUMNS.values(), pa.float64())})
_KEPT: Final = 3
"""Checkpoints on disk: the last two, and the best."""

_logger = logging.getLogger(__name__)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, for new weights and dropout; afterwards all of the caller's are as before."""
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
    `results` returns what the manifest says of them. Call this within `own_randomness`. Raises UsageError if a training
    with another `config` was begun there, or the model is not on the first GPU; ModelError if a loss is not finite.
    """
    out = Path(out)
    check_output(out, kind=kind, force=force)
    if loss.model.device.index:
        raise UsageError(
            f"the trainers use the first GPU that they see, not {loss.model.device}: set CUDA_VISIBLE_DEVICES="
            f"{loss.model.device.index}, and give `device` cuda."
        )
    with resume.unfinished_run(out, config, force=force) as work:
        state = _run(loss, work, training_E, held_out_E, options)
        settings: dict[str, JsonValue] = {"config": config, "results": results(), "environment": environment()}
        with new_folder(out, kind=kind, force=force) as folder:
            loss.save(folder)
            pyarrow.csv.write_csv(_losses(state.log_history), folder / LOSSES)
            counts = {"steps": state.global_step, "best_step": state.best_global_step}
            manifest = write_manifest(folder, kind=kind, settings=settings, counts=counts)
    return _outcome(out, manifest)


def read_trained(out: Path, kind: FolderKind, config: dict[str, JsonValue]) -> Trained | None:
    """Return the outcome of a training with this `config` in a folder; None if it is missing, damaged or other."""
    with suppress(FolderError):
        manifest = read_manifest(out, kind=kind)
        if to_json(manifest.settings["config"]) == to_json(config):
            return _outcome(out, manifest)
    return None


def _outcome(out: Path, manifest: Manifest) -> Trained:
    results: Any = manifest.settings["results"]
    options = pyarrow.csv.ConvertOptions(column_types=_LOSSES_SCHEMA)
    losses = pyarrow.csv.read_csv(out / LOSSES, convert_options=options).to_pylist()
    return Trained(out=out, **manifest.counts, losses=losses, held_out=results.get("held_out"))


def _losses(log: Sequence[dict[str, Any]]) -> pa.Table:
    """Return the table `LOSSES` from the log of a trainer."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log:
        if entry.keys() & _COLUMNS:
            row = rows.setdefault(entry["step"], {"step": entry["step"]})
            row |= {_COLUMNS[name]: entry[name] for name in _COLUMNS if name in entry}
    return pa.Table.from_pylist([*rows.values()], _LOSSES_SCHEMA)


def _run(
    loss: ExampleLoss, work: Path, training_E: IntArray, held_out_E: IntArray, options: TrainingOptions
) -> TrainerState:
    """Train in a work folder, and load the best weights; return the state. ModelError if a loss is not finite."""
    model, stopped = loss.model, latest_state(work)
    first = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    begun = stopped.global_step
    loss.begin(work, held_out_E, begun)
    if begun:
        _logger.info("resuming a training that was stopped: %s steps were done before", f"{begun:,}")
    is_over = begun and stopped.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    steps = begun if is_over else options.steps
    batches_SB = reading_order(training_E, steps * options.batch, options.seed).reshape(steps, -1)
    with quiet_loading(), progress_bar("Training", steps) as advance:
        advance(begun)
        following = Steps(loss, batches_SB, advance, options.budget)
        trainer = _trainer(following, work, held_out_E, options, begun)
        try:
            trainer.train(str(checkpoint_folder(work, begun)) if begun else None)
        except NotFiniteError as error:
            kept = latest_state(work).global_step
            stays = f"the checkpoint of step {kept:,} is kept" if kept else "there is no checkpoint yet"
            raise ModelError(
                f"{error} in step {trainer.state.global_step + 1:,}; {stays}. Train with a lower `learning_rate` "
                'or in `precision="float32"`.'
            ) from None
    model.eval()
    state: TrainerState = trainer.state
    if following.is_out_of_time:
        rate = next(entry["learning_rate"] for entry in reversed(state.log_history) if "learning_rate" in entry)
        warnings.warn(
            f"the budget of {options.budget:g} minutes ended the training at step {state.global_step:,} of "
            f"{steps:,}, where the learning rate was {rate / options.learning_rate:.0%} of its peak, not 0: give "
            f"`steps` {state.global_step} to plan for it.",
            RalmWarning,
            stacklevel=3,
        )
    if not len(held_out_E):
        state.best_global_step = state.global_step
    elif not state.best_global_step:
        state.best_global_step = 0
        model.load_state_dict(first)
        warnings.warn(
            "training did not lower the loss of the held-out examples; the weights that it began with are kept.",
            RalmWarning,
            stacklevel=3,
        )
    return state


def _trainer(following: Steps, work: Path, held_out_E: IntArray, options: TrainingOptions, begun: int) -> Any:
    """Return the trainer of a loss and batches."""
    loss, batches_SB = following.loss, following.batches_SB
    steps, batch = batches_SB.shape
    part = max(size for size in range(1, loss.at_once + 1) if batch % size == 0)
    evaluates = len(held_out_E) > 0
    arguments = loss.trainer.training_args_class(
        output_dir=str(work),
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
        save_strategy="steps",
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
    trainer: Any = loss.trainer(
        model=loss.model,
        args=arguments,
        train_dataset=Dataset(pa.table({"label": batches_SB.ravel()})),
        eval_dataset=Dataset(pa.table({"label": held_out_E})) if evaluates else None,
        loss=loss,
        data_collator=loss.trainer.data_collator_class(None),
        callbacks=[*stopping, *loss.callbacks, following],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.options = options
    return trainer


def _in_order(dataset: Dataset, batch_size: int, drop_last: bool, **_: Any) -> DefaultBatchSampler:
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)


def reading_order(examples_E: IntArray, count: int, seed: int) -> IntArray:
    """Return the examples of all steps, so many: all in random order, then all again in another order."""
    rounds = range(-(-count // len(examples_E)))
    orders = [np.random.default_rng([seed, 1, number]).permutation(examples_E) for number in rounds]
    return np.concatenate(orders)[:count]
