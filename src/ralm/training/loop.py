"""Trains a small model in steps: order of examples, optimiser, evaluation, early stopping, checkpoints, result.

A killed training resumes at its last checkpoint. On a CPU, with as many threads, its final weights are bit for bit
those of an undisturbed training: all that a step depends on is in the checkpoint, or follows from the seed and the
number of the step. This needs the loss of each example before the weights change, and atomic checkpoints. The trainers
of transformers and sentence-transformers offer neither. Letters of shapes: E all examples, B those of a batch.
"""

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from matplotlib.figure import Figure
from pydantic import JsonValue
from torch.nn.attention import SDPBackend, sdpa_kernel

from ralm.errors import FolderError, ModelError, RalmWarning, UsageError
from ralm.records import IntArray
from ralm.runs import plot, resume
from ralm.runs.run import environment
from ralm.storage.manifest import Manifest, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import progress_bar, to_json
from ralm.training.checkpoints import Checkpoint, Checkpoints
from ralm.training.options import Trained, TrainingOptions

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
_MOST_GRADIENT: Final = 1.0
_TIMED: Final = 3
"""Steps after which the time of a step is known: that of the fastest."""
_MODEL: Final = "model."
_BEST: Final = "best."
_OPTIMIZER: Final = "optimizer."
_RANDOM: Final = "random."

_logger = logging.getLogger(__name__)


class TrainableModel(ABC):
    """A small model and its loss on numbered examples, which are from the documents with the ids `documents_E`.
    `module` holds all weights that training changes. `at_once` is how many examples are in memory at once: the gradient
    of a batch is summed over parts of that size."""

    module: torch.nn.Module
    documents_E: Sequence[str]
    at_once: int = 1

    @abstractmethod
    def losses(self, examples_B: IntArray, draws: np.random.Generator | None) -> torch.Tensor:
        """The loss (float32, B) of each example. `draws` makes the random choices of a training step, if there are any;
        it is None in an evaluation, which must give the same losses each time."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the trained model into a new folder."""

    def begin(self, work: Path, held_out_E: IntArray, step: int) -> None:  # noqa: B027 (most models need nothing)
        """Prepare a training that begins, or resumes after this step, and keeps what it needs in the folder `work`. The
        weights are still those that the training began with."""

    def begin_step(self, step: int) -> None:  # noqa: B027
        """Prepare a step, from 0: retrieve other passages, for example."""

    def state(self) -> dict[str, JsonValue]:
        """What a checkpoint must hold besides the weights."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from what `state` returned."""


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, for new weights and dropout; the caller's own are untouched afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def train(
    trainable: TrainableModel,
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
    The module ends with the weights of the lowest held-out loss, or of the last step if nothing is held out; then
    `results` returns what the manifest says of them. A training with this `config` that was killed resumes at its last
    checkpoint. Call this within `own_randomness`. Raises UsageError if a training with another `config` was begun there
    or the budget has no room for a step, ModelError if a loss is not finite; the last checkpoint stays."""
    out = Path(out)
    check_output(out, kind=kind, force=force)
    with resume.unfinished_run(out, config, force=force) as work:
        training = _Training(trainable, work, training_E, held_out_E, options)
        best_step = training.run()
        rows = training.now.losses
        settings: dict[str, JsonValue] = {"config": config, "results": results(), "environment": environment()}
        counts = {"steps": training.now.step, "best_step": best_step}
        with new_folder(out, kind=kind, force=force) as folder:
            trainable.save(folder)
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows, _LOSSES_SCHEMA), folder / LOSSES)
            _draw_losses(rows, best_step, folder / PLOT)
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
    return Trained(out=out, **manifest.counts, losses=rows, held_out=results.get("held_out"))


@dataclass(slots=True)
class _Progress:
    """How far a training is, apart from tensors; the `planned` steps are None until the time of a step is known."""

    step: int = 0
    planned: int | None = None
    best_step: int | None = None
    best_loss: float = float("inf")
    without_gain: int = 0
    recent: list[float] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)


class _Training:
    def __init__(
        self,
        trainable: TrainableModel,
        work: Path,
        training_E: IntArray,
        held_out_E: IntArray,
        options: TrainingOptions,
    ) -> None:
        self.now = _Progress()
        self._model = trainable
        self._work = work
        self._checkpoints = Checkpoints(work)
        self._training_E = training_E
        self._held_out_E = held_out_E
        self._options = options
        self._weights = [one for one in trainable.module.parameters() if one.requires_grad]
        self._device = self._weights[0].device
        self._optimizer = torch.optim.AdamW(self._weights, lr=0.0, weight_decay=0.0)
        self._best: dict[str, torch.Tensor] = {}
        """The weights of the lowest held-out loss so far."""

    def run(self) -> int:
        """Train, and load the best weights; returns their step."""
        checkpoint = self._checkpoints.latest()
        self._model.begin(self._work, self._held_out_E, 0 if checkpoint is None else checkpoint.step)
        if checkpoint is not None:
            self._resume(checkpoint)
        self._do_steps()
        now = self.now
        self._model.module.eval()
        if now.best_step is None:
            return now.step
        self._model.module.load_state_dict(self._best)
        if now.best_step == 0:
            warnings.warn(
                "training did not lower the loss of the held-out examples; the weights that it began with are kept.",
                RalmWarning,
                stacklevel=2,
            )
        return now.best_step

    def _do_steps(self) -> None:
        now = self.now
        evaluation = seconds = float("inf")
        if now.step == 0 and not now.losses:
            began = time.perf_counter()
            self._evaluate()
            evaluation = time.perf_counter() - began
        while now.planned is None and not self._is_over():
            seconds = min(seconds, self._do_step())
            if now.step >= _TIMED:
                self._plan(seconds, evaluation)
        with progress_bar("Training", self._steps) as advance:
            advance(now.step)
            while not self._is_over():
                self._do_step()
                advance()

    def _do_step(self) -> float:
        """Do a step, and evaluate and keep its weights where that is due; returns the seconds of the step alone."""
        now, options = self.now, self._options
        began = time.perf_counter()
        self._step()
        seconds = time.perf_counter() - began
        if now.step % options.evaluate_every == 0 or now.step == self._steps:
            self._evaluate()
        if now.step % options.checkpoint_every == 0 or self._is_over():
            self._keep()
        return seconds

    def _plan(self, seconds: float, evaluation: float) -> None:
        """Plan as many steps as the budget has room for, given the seconds of a step and of an evaluation, which is
        infinite if it is not known. Raises UsageError if there is no room for one step."""
        now, options = self.now, self._options
        if np.isfinite(evaluation):
            seconds += evaluation / options.evaluate_every
        fitting = int(60 * options.budget / seconds) if options.budget else options.steps
        if not fitting:
            raise UsageError(
                f"`budget` {options.budget:g} minutes has no room for one step, which takes {seconds:,.1f} seconds: "
                f"give at least {seconds / 60:.2g}, a smaller `batch`, or 0 for no limit."
            )
        now.planned = min(options.steps, max(now.step + 1, fitting))
        if now.planned < options.steps:
            _logger.info(
                "%s instead of %s steps fit into %g minutes, at %.2g seconds each: raise `budget` for more",
                *(f"{now.planned:,}", f"{options.steps:,}", options.budget, seconds),
            )

    @property
    def _steps(self) -> int:
        return self._options.steps if self.now.planned is None else self.now.planned

    def _is_over(self) -> bool:
        return self.now.step >= self._steps or self.now.without_gain >= self._options.patience

    def _step(self) -> None:
        now, trainable = self.now, self._model
        trainable.begin_step(now.step)
        trainable.module.train(self._options.dropout)
        examples_B = batch_of_step(self._training_E, now.step, self._options)
        draws = np.random.default_rng([self._options.seed, 2, now.step])
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for losses_B in self._losses(examples_B, draws):
            (losses_B.sum() / len(examples_B)).backward()  # type: ignore[no-untyped-call]
            total += float(losses_B.detach().double().sum())
        if not torch.nn.utils.clip_grad_norm_(self._weights, _MOST_GRADIENT).isfinite():
            first = self._describe(int(examples_B[0]))
            self._reject(f"the gradient of a batch of {len(examples_B)} that begins with {first} is not finite")
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(now.step, self._options, self._steps)
        self._optimizer.step()
        now.step += 1
        now.recent.append(total / len(examples_B))

    def _losses(self, examples_E: IntArray, draws: np.random.Generator | None) -> Iterator[torch.Tensor]:
        """The losses of as many examples at a time as are in memory at once, with the large products in the precision
        that the options name; ModelError names the first example whose loss is not finite. On a CPU in bfloat16,
        attention is plain products: the gradient of torch's fused kernel takes longer there."""
        lower = self._options.precision == "bfloat16"
        for begin in range(0, len(examples_E), self._model.at_once):
            examples_B = examples_E[begin : begin + self._model.at_once]
            plain = sdpa_kernel(SDPBackend.MATH) if lower and self._device.type == "cpu" else nullcontext()
            with torch.autocast(self._device.type, torch.bfloat16, enabled=lower), plain:
                losses_B = self._model.losses(examples_B, draws).float()
            finite = losses_B.detach().isfinite().tolist()
            if not all(finite):
                place = finite.index(False)
                self._reject(f"the loss of {self._describe(int(examples_B[place]))} is {losses_B[place].item()}")
            yield losses_B

    def _evaluate(self) -> None:
        """Add a row to the losses; keep the weights if the held-out examples have their lowest loss."""
        now, held_out_loss = self.now, None
        if len(self._held_out_E):
            self._model.module.eval()
            total = 0.0
            with torch.no_grad():
                for losses_B in self._losses(self._held_out_E, None):
                    total += float(losses_B.double().sum())
            held_out_loss = total / len(self._held_out_E)
        now.losses.append(
            {
                "step": now.step,
                "learning_rate": learning_rate(max(0, now.step - 1), self._options, self._steps),
                "training_loss": float(np.mean(now.recent)) if now.recent else None,
                "held_out_loss": held_out_loss,
            }
        )
        now.recent = []
        if held_out_loss is None:
            return
        now.without_gain += 1
        if held_out_loss < now.best_loss:
            now.best_step, now.best_loss, now.without_gain = now.step, held_out_loss, 0
            self._best = {name: one.detach().cpu().clone() for name, one in self._model.module.state_dict().items()}

    def _describe(self, example: int) -> str:
        return f"example {example} (document {self._model.documents_E[example]!r})"

    def _reject(self, what: str) -> NoReturn:
        kept = self._checkpoints.latest()
        stays = f"the checkpoint of step {kept.step:,} is kept" if kept else "there is no checkpoint yet"
        raise ModelError(
            f"{what} in step {self.now.step + 1:,}; {stays}. Train with a lower `learning_rate` or in "
            '`precision="float32"`.'
        )

    def _keep(self) -> None:
        """Write a checkpoint."""
        tensors = {_MODEL + name: tensor for name, tensor in self._model.module.state_dict().items()}
        tensors |= {_BEST + name: tensor for name, tensor in self._best.items()}
        for number, values in self._optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{number}.{name}": tensor for name, tensor in values.items()}
        tensors[_RANDOM + "cpu"] = torch.get_rng_state()
        if self._device.type == "cuda":
            tensors[_RANDOM + "cuda"] = torch.cuda.get_rng_state(self._device)
        facts: dict[str, JsonValue] = {"progress": asdict(self.now), "model": self._model.state()}
        self._checkpoints.save(Checkpoint(self.now.step, tensors, facts))

    def _resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        tensors, facts = checkpoint.tensors, checkpoint.facts
        weights, self._best = (
            {name.removeprefix(kind): tensors[name] for name in tensors if name.startswith(kind)}
            for kind in (_MODEL, _BEST)
        )
        self._model.module.load_state_dict(weights)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name in tensors:
            if name.startswith(_OPTIMIZER):
                number, _, what = name.removeprefix(_OPTIMIZER).partition(".")
                state.setdefault(int(number), {})[what] = tensors[name]
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(tensors[_RANDOM + "cpu"])
        if self._device.type == "cuda" and _RANDOM + "cuda" in tensors:
            torch.cuda.set_rng_state(tensors[_RANDOM + "cuda"], self._device)
        self.now = _Progress(**facts["progress"])  # type: ignore[arg-type]
        self._model.restore(facts["model"])  # type: ignore[arg-type]
        _logger.info("resuming a training that was stopped: %s steps were done before", f"{checkpoint.step:,}")


def batch_of_step(examples_E: IntArray, step: int, options: TrainingOptions) -> IntArray:
    """The examples (int64, B) of a step, from 0: all examples in random order, then all again in another order."""
    places = np.arange(step * options.batch, (step + 1) * options.batch)
    rounds, within = places // len(examples_E), places % len(examples_E)
    orders = {
        one: np.random.default_rng([options.seed, 1, one]).permutation(examples_E) for one in np.unique(rounds).tolist()
    }
    return np.array([orders[one][place] for one, place in zip(rounds.tolist(), within.tolist(), strict=True)])


def learning_rate(step: int, options: TrainingOptions, steps: int) -> float:
    """The learning rate of a step, from 0, of so many: a straight line up to the peak, then one down to almost 0."""
    rising = round(options.warmup * steps)
    if step < rising:
        return options.learning_rate * (step + 1) / rising
    return options.learning_rate * (steps - step) / max(1, steps - rising)


def _draw_losses(rows: Sequence[dict[str, Any]], best_step: int, path: Path) -> None:
    """Draw the losses of the examples that were trained on and of those held out, and mark the best step."""
    figure = Figure(figsize=plot.INCHES, dpi=plot.DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    for column, style, label in (("training_loss", "o-", "trained on"), ("held_out_loss", "s--", "held out")):
        known = [row for row in rows if row[column] is not None]
        if known:
            steps, losses = [row["step"] for row in known], [row[column] for row in known]
            axes.plot(steps, losses, style, label=label, markersize=3)
    axes.axvline(best_step, linestyle=":", color="grey", label="kept")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path)
