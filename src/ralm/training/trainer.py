"""Losses of numbered examples, and the trainers of sentence-transformers that lower them: encoders and cross-encoders.

The trainers' data are numbers of examples; a loss reads texts and candidates, which may depend on the weights. Letters
of shapes: E all examples, B those of a batch, S steps.
"""

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy

from ralm.errors import DamagedFolderError, StorageError, short_message
from ralm.records import IntArray
from ralm.terminal import Advance
from ralm.training.options import TrainingOptions

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
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint; StorageError if torch cannot write it."""
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        except RuntimeError as error:
            if "PytorchStreamWriter" not in str(error):  # which does not say why it failed
                raise
            raise StorageError(
                f"a checkpoint in {self.args.output_dir} cannot be written ({short_message(error)}): free some space, "
                "or choose an output on another disk, and run it again."
            ) from error

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
    """A callback for at most `budget` minutes (0: no limit), which prepares each batch and checks gradients."""

    def __init__(self, loss: ExampleLoss, batches_SB: IntArray, advance: Advance, budget: float) -> None:
        self.loss = loss
        self.batches_SB = batches_SB
        self._advance = advance
        self._end = monotonic() + 60 * budget if budget else math.inf
        self.is_out_of_time = False

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
        """End the training when the time is over; record the last losses, which not every transformers does."""
        self._advance()
        self.is_out_of_time = state.global_step < state.max_steps and monotonic() >= self._end
        if self.is_out_of_time:
            control.should_training_stop = control.should_save = True
        if self.is_out_of_time or state.global_step >= state.max_steps:
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
