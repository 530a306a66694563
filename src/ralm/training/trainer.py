"""A training in its work folder, by the trainers of sentence-transformers: encoders and cross-encoders.

The trainers' data are numbers of examples; a loss (`ExampleLoss`) reads texts and candidates, which may depend on the
weights. What comes of a training is written as a folder: the model, its losses as a table, a manifest. A killed
training resumes at its last checkpoint. On a CPU, with as many threads, its final weights are bit for bit those of an
undisturbed training. Letters of shapes: E all examples, B those of a batch, S steps.
"""

import logging
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from datasets import Dataset
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load, save
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import SequentialSampler
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy

from ralm.errors import DamagedFolderError, FolderError, ModelError, RalmWarning, short_message
from ralm.lm.local.loading import quiet_loading
from ralm.records import IntArray
from ralm.runs import resume
from ralm.storage.manifest import Manifest, environment, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import Advance, progress_bar, to_json
from ralm.training.options import Trained, TrainingOptions

_WEIGHTS: Final = "model.safetensors"


class NotFiniteError(Exception):
    """A loss or a gradient is not finite."""


class ExampleLoss(torch.nn.Module, ABC):
    """A loss of numbered examples, which are from the documents with the ids `documents_E`, as the trainers call it.

    `model` has all weights that training changes. A step accumulates the gradient of a batch over parts of at most
    `at_once` examples. The trainer calls `callbacks` too.
    """

    trainer: "ClassVar[type[EncoderTrainer] | type[RerankerTrainer]]"
    model: Any
    documents_E: Sequence[str]
    at_once: int = 1
    callbacks: Sequence[TrainerCallback] = ()

    @abstractmethod
    def losses(self, examples_B: IntArray) -> torch.Tensor:
        """Return the loss (float32, B) of each example; only in a step may it depend on torch's random numbers."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the trained model into a new folder."""

    def begin(self, work: Path, held_out_E: IntArray, step: int) -> None:
        """Prepare a training that begins, or resumes after this step, in the folder `work`, before weights change."""

    def begin_step(self, examples_B: IntArray) -> None:
        """Prepare a step on a whole batch."""

    def forward(self, _features: object, examples_B: torch.Tensor, **_unused: object) -> torch.Tensor:
        """Return the mean loss of examples; NotFiniteError with the first one whose loss is not finite."""
        losses_B = self.losses(examples_B.cpu().numpy()).float()
        finite = losses_B.detach().isfinite().tolist()
        if not all(finite):
            place = finite.index(False)
            raise NotFiniteError(f"the loss of {self.describe(int(examples_B[place]))} is {losses_B[place].item()}")
        return losses_B.mean()

    def describe(self, example: int) -> str:
        """Return the name of an example in messages."""
        return f"example {example} (document {self.documents_E[example]!r})"


class _ExampleTrainer:
    """What both trainers do in another way: a checkpoint has the bare weights."""

    loss: ExampleLoss
    options: TrainingOptions
    model: Any
    args: Any
    state: Any

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Describe nothing for the hub."""

    def compute_loss(self, model: Any, *arguments: Any, **more: Any) -> Any:
        """Leave out dropout if the options say so."""
        model.train(model.training and self.options.dropout)
        return super().compute_loss(model, *arguments, **more)  # type: ignore[misc]

    def compute_loss_context_manager(self) -> ExitStack:
        """Compute large products in the precision of the options; torch's fused attention is slower on CPUs then."""
        stack: ExitStack = super().compute_loss_context_manager()  # type: ignore[misc]
        if self.options.precision == "bfloat16":
            device = self.args.device.type
            stack.enter_context(torch.autocast(device, torch.bfloat16))
            if device == "cpu":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        return stack

    # Private: methods of sentence-transformers' trainers; trainings resumed bit for bit.
    def _save(self, output_dir: str, **_: object) -> None:
        weights = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.model.state_dict().items()}
        Path(output_dir).mkdir(exist_ok=True)
        (Path(output_dir) / _WEIGHTS).write_bytes(save(weights))

    def _load_from_checkpoint(self, resume_from_checkpoint: str) -> None:
        try:
            weights = load((Path(resume_from_checkpoint) / _WEIGHTS).read_bytes())
        except (OSError, SafetensorError) as error:
            fault = f"{resume_from_checkpoint} is damaged ({short_message(error)})"
            raise DamagedFolderError(f"{fault}: remove it to go on from the checkpoint before.") from error
        self.model.load_state_dict(weights)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


class EncoderTrainer(_ExampleTrainer, SentenceTransformerTrainer):  # type: ignore[misc]
    """The trainer of encoders."""


class RerankerTrainer(_ExampleTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """The trainer of cross-encoders."""


class Steps(TrainerCallback):  # type: ignore[misc]
    """A callback that prepares each batch and checks gradients."""

    def __init__(self, loss: ExampleLoss, batches_SB: IntArray, advance: Advance) -> None:
        self.loss = loss
        self.batches_SB = batches_SB
        self._advance = advance

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Find the best checkpoint again, also if the folder was moved."""
        if state.best_global_step:
            state.best_model_checkpoint = str(checkpoint_folder(Path(args.output_dir), state.best_global_step))

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Prepare the batch."""
        self.loss.begin_step(self.batches_SB[state.global_step])

    def on_pre_optimizer_step(self, _args: Any, state: Any, _control: Any, model: Any, **_: Any) -> None:
        """Check the gradient."""
        gradients = [weights.grad for weights in model.parameters() if weights.grad is not None]
        if not torch.nn.utils.get_total_norm(gradients).isfinite():
            batch_B = self.batches_SB[state.global_step]
            first = self.loss.describe(int(batch_B[0]))
            raise NotFiniteError(f"the gradient of a batch of {len(batch_B)} that begins with {first} is not finite")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the last losses, which not every transformers does."""
        self._advance()
        if state.global_step >= state.max_steps:
            control.should_log = True
            control.should_evaluate = args.eval_strategy != IntervalStrategy.NO

    def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: dict[str, float], **_: Any) -> None:
        """Keep the weights that the training began with, unless later ones are better."""
        if state.global_step == 0:
            state.best_metric = metrics["eval_loss"]


def checkpoint_folder(work: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step."""
    return work / f"checkpoint-{step}"


def latest_state(work: Path) -> TrainerState:
    """Return the state of the trainer at the last checkpoint; a new one if there is none."""
    for step in sorted((int(folder.name.partition("-")[2]) for folder in work.glob("checkpoint-*")), reverse=True):
        folder = checkpoint_folder(work, step)
        with suppress(OSError, ValueError):
            return TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        shutil.rmtree(folder)  # it was not written to its end
    return TrainerState()


LOSSES: Final = "losses.csv"
_COLUMNS: Final = {"learning_rate": "learning_rate", "loss": "training_loss", "eval_loss": "held_out_loss"}
"""The columns of `LOSSES`, but for the step, by the names in the log of a trainer."""
_LOSSES_SCHEMA: Final = pa.schema({"step": pa.int64(), **dict.fromkeys(_COLUMNS.values(), pa.float64())})
_KEPT: Final = 3
"""Checkpoints on disk: the last two, and the best."""

_logger = logging.getLogger(__name__)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, for new weights and dropout; afterwards the caller's are as before."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


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
    with another `config` was begun there; ModelError if a loss is not finite.
    """
    out = Path(out)
    check_output(out, kind=kind, force=force)
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
        following = Steps(loss, batches_SB, advance)
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
