"""Trains a small model in steps: order of examples, optimiser, evaluation, early stopping, checkpoints, result.

    with training_run(out, KIND, config, force=force) as work:
        trained = train(model, work, training_E, held_out_E, options)
        write_trained(out, KIND, model, trained, config, force=force)

A killed training resumes at its last checkpoint. On a CPU, with as many threads, its final weights are bit for bit
those of an undisturbed training: all that a step depends on is in the checkpoint, or follows from the seed and the
number of the step. This needs the loss of each example before the weights change, and atomic checkpoints. The trainers
of transformers and sentence-transformers offer neither. Letters of shapes: E all examples, B those of a batch.
"""

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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

from ralm.errors import FolderError, ModelError, RalmWarning
from ralm.records import IntArray
from ralm.runs.plot import DOTS_AN_INCH, INCHES
from ralm.runs.resume import unfinished_run
from ralm.runs.run import environment, to_json
from ralm.storage.manifest import read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import progress_bar
from ralm.training.checkpoints import Checkpoint, Checkpoints
from ralm.training.options import TrainingOptions

LOSSES: Final = "losses.csv"
PLOT: Final = "losses.png"
_MOST_GRADIENT: Final = 1.0
_MODEL: Final = "model."
_OPTIMIZER: Final = "optimizer."
_RANDOM: Final = "random."

_logger = logging.getLogger(__name__)


class TrainableModel(ABC):
    """A small model and its loss on numbered examples.

    `module` holds all weights that training changes. `at_once` is how many examples are in memory at once: the gradient
    of a batch is summed over parts of that size.
    """

    module: torch.nn.Module
    at_once: int = 1

    @abstractmethod
    def losses(self, examples_B: IntArray, draws: np.random.Generator | None) -> torch.Tensor:
        """The loss (float32, B) of each example. `draws` makes the random choices of a training step, if there are any;
        it is None in an evaluation, which must give the same losses each time."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the trained model into a new folder."""

    def describe(self, example: int) -> str:
        """An example in messages: its number and its document."""
        return f"example {example}"

    def begin_step(self, step: int) -> None:  # noqa: B027 (most models need nothing)
        """Prepare a step, from 0: retrieve other passages, for example."""

    def state(self) -> dict[str, JsonValue]:
        """What a checkpoint must hold besides the weights."""
        return {}

    def restore(self, state: dict[str, JsonValue]) -> None:  # noqa: B027
        """Continue from what `state` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """A row of losses.csv: the mean loss of the steps since the row before, and that of the held-out examples."""

    step: int
    learning_rate: float
    training_loss: float | None = None
    held_out_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome of a training: its losses, and the step whose weights were kept."""

    losses: Sequence[Losses]
    best_step: int
    steps: int

    def held_out_loss(self, step: int) -> float | None:
        """The loss of the held-out examples after some step; None if it was not measured."""
        return next((row.held_out_loss for row in self.losses if row.step == step), None)


@contextmanager
def training_run(out: Path | str, kind: FolderKind, config: dict[str, JsonValue], *, force: bool) -> Iterator[Path]:
    """Yield the folder beside `out` in which a training keeps its checkpoints; reuses that of an earlier training with
    the same settings.

    Raises FolderExistsError if `out` exists and `force` is not set or another process is training into it, and
    UsageError if a training with other settings was begun there.
    """
    check_output(Path(out), kind=kind, force=force)
    with unfinished_run(Path(out), config, force=force) as folder:
        yield folder


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, for new weights and dropout; the caller's own are untouched afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def train(
    trainable: TrainableModel, work: Path, training_E: IntArray, held_out_E: IntArray, options: TrainingOptions
) -> Trained:
    """Train a model on examples, from its last checkpoint in `work` if there is one; its module ends with the weights
    of the lowest held-out loss, or of the last step if nothing is held out.

    Call it within `own_randomness`. Raises ModelError if a loss is not finite, StorageError if the disk is full; the
    last checkpoint stays.
    """
    return _Training(
        trainable, Checkpoints(work), training_E, evenly_spaced(held_out_E, options.evaluated), options
    ).run()


def write_trained(
    out: Path | str,
    kind: FolderKind,
    trainable: TrainableModel,
    trained: Trained,
    config: dict[str, JsonValue],
    *,
    results: dict[str, JsonValue] | None = None,
    force: bool = False,
) -> None:
    """Write the folder of a trained model atomically: the model, its losses as table and plot, and a manifest."""
    with new_folder(Path(out), kind=kind, force=force) as folder:
        trainable.save(folder)
        rows = [asdict(row) for row in trained.losses]
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows, _SCHEMA), folder / LOSSES)
        training = [(row.step, row.training_loss) for row in trained.losses if row.training_loss is not None]
        held_out = [(row.step, row.held_out_loss) for row in trained.losses if row.held_out_loss is not None]
        draw_losses(training, held_out, trained.best_step, folder / PLOT)
        write_manifest(
            folder,
            kind=kind,
            settings={"config": config, "results": results or {}, "environment": environment()},
            counts={"steps": trained.steps, "best_step": trained.best_step},
        )


def read_trained(
    out: Path | str, kind: FolderKind, config: dict[str, JsonValue]
) -> tuple[Trained, dict[str, Any]] | None:
    """The outcome and the `results` that `write_trained` wrote into this folder for a training with this `config`; None
    if the folder is missing, damaged, or another one."""
    try:
        manifest = read_manifest(Path(out), kind=kind)
    except FolderError:
        return None
    settings, counts = manifest.settings, manifest.counts
    if to_json(settings["config"]) != to_json(config):
        return None
    options = pyarrow.csv.ConvertOptions(column_types=_SCHEMA)
    rows = pyarrow.csv.read_csv(Path(out) / LOSSES, convert_options=options).to_pylist()
    losses = [Losses(**row) for row in rows]
    results: Any = settings["results"]
    return Trained(losses=losses, best_step=counts["best_step"], steps=counts["steps"]), results


_SCHEMA: Final = pa.schema(
    {
        "step": pa.int64(),
        "learning_rate": pa.float64(),
        "training_loss": pa.float64(),
        "held_out_loss": pa.float64(),
    }
)


@dataclass(slots=True)
class _Progress:
    """How far a training is: everything of it, apart from tensors, that a checkpoint holds."""

    step: int = 0
    best_step: int | None = None
    best_loss: float = float("inf")
    without_gain: int = 0
    recent: list[float] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)


class _Training:
    def __init__(
        self,
        trainable: TrainableModel,
        checkpoints: Checkpoints,
        training_E: IntArray,
        held_out_E: IntArray,
        options: TrainingOptions,
    ) -> None:
        self._model = trainable
        self._checkpoints = checkpoints
        self._training_E = training_E
        self._held_out_E = held_out_E
        self._options = options
        self._weights = [one for one in trainable.module.parameters() if one.requires_grad]
        self._device = self._weights[0].device
        self._optimizer = torch.optim.AdamW(self._weights, lr=0.0, weight_decay=0.0)
        self._now = _Progress()

    def run(self) -> Trained:
        self._resume()
        with progress_bar("Training", self._options.steps) as advance:
            advance(self._now.step)
            if self._now.step == 0 and not self._now.losses:
                self._evaluate()
            while not self._is_over():
                self._step()
                self._look_and_keep()
                advance()
        return self._finish()

    def _is_over(self) -> bool:
        return self._now.step >= self._options.steps or self._now.without_gain >= self._options.patience

    def _step(self) -> None:
        now, trainable = self._now, self._model
        trainable.begin_step(now.step)
        trainable.module.train(self._options.dropout)
        examples_B = batch_of_step(self._training_E, now.step, self._options)
        draws = np.random.default_rng([self._options.seed, 2, now.step])
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in _parts(examples_B, trainable.at_once):
            losses_B = self._checked(part, self._computed(part, draws))
            (losses_B.sum() / len(examples_B)).backward()  # type: ignore[no-untyped-call]
            total += float(losses_B.detach().double().sum())
        self._check_gradient(examples_B)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(now.step, self._options)
        self._optimizer.step()
        now.step += 1
        now.recent.append(total / len(examples_B))

    def _look_and_keep(self) -> None:
        """Evaluate and write a checkpoint if it is time."""
        step, options = self._now.step, self._options
        last = step == options.steps
        if step % options.evaluate_every == 0 or last:
            self._evaluate()
        if step % options.checkpoint_every == 0 or last or self._is_over():
            self._keep()

    def _computed(self, examples_B: IntArray, draws: np.random.Generator | None) -> torch.Tensor:
        """The loss of each example, with the large products in the precision that the options name.

        On a CPU in bfloat16, attention is plain products: the gradient of torch's fused kernel takes longer there.
        """
        lower = self._options.precision == "bfloat16"
        plain = sdpa_kernel(SDPBackend.MATH) if lower and self._device.type == "cpu" else nullcontext()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=lower), plain:
            return self._model.losses(examples_B, draws).float()

    def _evaluate(self) -> None:
        """Add a row to the losses; keep the weights if the held-out examples have their lowest loss."""
        now = self._now
        row = Losses(
            step=now.step,
            learning_rate=learning_rate(max(0, now.step - 1), self._options),
            training_loss=float(np.mean(now.recent)) if now.recent else None,
            held_out_loss=self._held_out_loss() if len(self._held_out_E) else None,
        )
        now.recent = []
        now.losses.append(asdict(row))
        if row.held_out_loss is None:
            return
        now.without_gain += 1
        if row.held_out_loss < now.best_loss:
            now.best_step, now.best_loss, now.without_gain = now.step, row.held_out_loss, 0
            self._checkpoints.save_weights(now.step, self._model.module.state_dict())

    def _held_out_loss(self) -> float:
        self._model.module.eval()
        total = 0.0
        with torch.no_grad():
            for part in _parts(self._held_out_E, self._model.at_once):
                total += float(self._checked(part, self._computed(part, None)).double().sum())
        return total / len(self._held_out_E)

    def _checked(self, examples_B: IntArray, losses_B: torch.Tensor) -> torch.Tensor:
        """The same losses; raises ModelError with the name of the first example whose loss is not finite."""
        finite = losses_B.detach().isfinite().tolist()
        if not all(finite):
            place = finite.index(False)
            self._reject(f"the loss of {self._model.describe(int(examples_B[place]))} is {losses_B[place].item()}")
        return losses_B

    def _check_gradient(self, examples_B: IntArray) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self._weights, _MOST_GRADIENT)
        if not norm.isfinite():
            first = self._model.describe(int(examples_B[0]))
            self._reject(f"the gradient of a batch of {len(examples_B)} that begins with {first} is not finite")

    def _reject(self, what: str) -> NoReturn:
        kept = self._checkpoints.latest()
        stays = f"the checkpoint of step {kept.step:,} is kept" if kept else "there is no checkpoint yet"
        raise ModelError(
            f"{what} in step {self._now.step + 1:,}; {stays}. Train with a lower `learning_rate` or in "
            '`precision="float32"`.'
        )

    def _keep(self) -> None:
        """Write a checkpoint."""
        tensors = {_MODEL + name: tensor for name, tensor in self._model.module.state_dict().items()}
        for number, values in self._optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{number}.{name}": tensor for name, tensor in values.items()}
        tensors[_RANDOM + "cpu"] = torch.get_rng_state()
        if self._device.type == "cuda":
            tensors[_RANDOM + "cuda"] = torch.cuda.get_rng_state(self._device)
        facts: dict[str, JsonValue] = {"progress": asdict(self._now), "model": self._model.state()}
        self._checkpoints.save(Checkpoint(self._now.step, tensors, facts), self._now.best_step)

    def _resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        checkpoint = self._checkpoints.latest()
        if checkpoint is None:
            return
        tensors, facts = checkpoint.tensors, checkpoint.facts
        _load(self._model.module, {name: tensors[name] for name in tensors if name.startswith(_MODEL)})
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
        self._now = _Progress(**facts["progress"])  # type: ignore[arg-type]
        self._model.restore(facts["model"])  # type: ignore[arg-type]
        _logger.info("resuming a training that was stopped: %s steps were done before", f"{checkpoint.step:,}")

    def _finish(self) -> Trained:
        """Load the best weights into the module."""
        now = self._now
        best = now.step if now.best_step is None else now.best_step
        weights = None if now.best_step is None else self._checkpoints.weights(now.best_step)
        if weights is not None:
            _load(self._model.module, {_MODEL + name: tensor for name, tensor in weights.items()})
        if best == 0:
            warnings.warn(
                "training did not lower the loss of the held-out examples; the weights that it began with are kept.",
                RalmWarning,
                stacklevel=2,
            )
        self._model.module.eval()
        return Trained(losses=[Losses(**row) for row in now.losses], best_step=best, steps=now.step)


def batch_of_step(examples_E: IntArray, step: int, options: TrainingOptions) -> IntArray:
    """The examples (int64, B) of a step, from 0: all examples in random order, then all again in another order."""
    places = np.arange(step * options.batch, (step + 1) * options.batch)
    rounds, within = places // len(examples_E), places % len(examples_E)
    orders = {
        one: np.random.default_rng([options.seed, 1, one]).permutation(examples_E) for one in np.unique(rounds).tolist()
    }
    return np.array([orders[one][place] for one, place in zip(rounds.tolist(), within.tolist(), strict=True)])


def evenly_spaced(examples_E: IntArray, max_count: int) -> IntArray:
    """At most `max_count` of the examples, evenly spread."""
    count = min(max_count, len(examples_E))
    return examples_E[np.linspace(0, len(examples_E) - 1, count).astype(np.int64)]


def learning_rate(step: int, options: TrainingOptions) -> float:
    """The learning rate of a step, from 0: a straight line up to the peak, then one down to almost 0."""
    rising = round(options.warmup * options.steps)
    if step < rising:
        return options.learning_rate * (step + 1) / rising
    return options.learning_rate * (options.steps - step) / max(1, options.steps - rising)


def _load(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    module.load_state_dict({name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()})


def _parts(examples_B: IntArray, size: int) -> Iterator[IntArray]:
    return (examples_B[begin : begin + size] for begin in range(0, len(examples_B), size))


def draw_losses(
    training: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]], best_step: int, path: Path
) -> None:
    """Draw (step, loss) pairs of the examples that were trained on and of those held out, and mark the best step."""
    figure = Figure(figsize=INCHES, dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    for pairs, style, label in ((training, "o-", "trained on"), (held_out, "s--", "held out")):
        if pairs:
            axes.plot([step for step, _ in pairs], [loss for _, loss in pairs], style, label=label, markersize=3)
    axes.axvline(best_step, linestyle=":", color="grey", label="kept")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path)
