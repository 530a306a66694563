"""Estimates what the steps of recipes take, and runs them in order; a step whose result exists is skipped.

Hours are floating-point operations over the speed of a product of matrices on this machine: two operations for each
parameter and token, at half of that speed. Shared prefixes make runs shorter than estimated.
"""

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final

from ralm.errors import FolderExistsError, RalmError, StorageError, UsageError
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.inputs import STAND_IN_MODEL
from ralm.recipes.resources import Resource
from ralm.recipes.steps import Step
from ralm.reranking import RerankOptions
from ralm.storage.outputs import recover
from ralm.training.options import (
    REPLUG,
    REPLUG_EXAMPLES,
    CandidateOptions,
    ExampleOptions,
    RetrieverTrainingOptions,
    TrainingOptions,
)

Perform = Callable[[list[str]], None]
_LOG: Final = logging.getLogger(__name__)


def run_steps(steps: Sequence[Step], place: RecipeFolder, perform: Perform) -> None:
    """Perform the steps, which are in order, unless they were done before.

    Raises what a command raises, with the step in front and what can be given instead of what it reads from the hub.
    """
    place.begin()
    steps = place.distinct_steps(steps)
    for number, step in enumerate(steps, 1):
        at = f"[{number}/{len(steps)}] {place.folder_of(step).name}"
        if place.is_done(step):
            with suppress(FolderExistsError):  # another process is at its end
                recover(place.folder_of(step))
            _LOG.info("%s: done before", at)
            continue
        line = place.command_line(step)
        _LOG.info("%s: %s", at, command_text(line))
        try:
            check_room(step, place)
            place.provide(step)
            perform(line)
        except RalmError as error:
            said = str(error)
            error.args = (f"{at}: {said}{'' if said.endswith('.') else '.'}{_instead(step, place)}",)
            raise


def command_text(line: Sequence[str]) -> str:
    """A command as one types it."""
    return f"ralm {shlex.join(line)}"


def _instead(step: Step, place: RecipeFolder) -> str:
    """What a user can give if the hub cannot be reached."""
    read = [resource for resource in step.resources if place.is_from_hub(resource)]
    if not read:
        return ""
    named = [f"{one.name} ({one.note})" if one.note else one.name for one in read]
    return f" From the hub it reads {', '.join(named)}; give your own with --use {read[0].name}=PATH."


_BYTES_A_TOKEN: Final = 4.3
_BYTES_A_PASSAGE: Final = 620
_TOKENS_A_PASSAGE: Final = 135
_PASSAGES_A_SECOND: Final = 20_000
"""Passages that two cores index for BM25 (docs/cluster.md)."""
_INDEX_BYTES: Final = 1_100
_VECTOR_BYTES: Final = 4 * 768
_HIT_BYTES: Final = 750
_ROW_BYTES: Final = 60
_TINY_PARAMETERS: Final = 4e6
_LARGE: Final = 2e9
_TRAINING: Final = 3
"""Operations of a training step to those of reading."""
_HALF: Final = 0.5
_SECONDS: Final = 0.2
_PLAN: Final = PlanOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Passages, tokens that models read, bytes of disk and memory, and hours."""

    passages: int = 0
    tokens: int = 0
    disk: int = 0
    memory: int = 0
    hours: float = 0.0


def estimate(step: Step, place: RecipeFolder) -> Estimate:
    """What a step will take."""
    sizes = _Sizes(place)
    match step.command:
        case "index":
            return sizes.index(step)
        case "retrieve":
            rows = sizes.strides(step)
            return Estimate(disk=int(rows * _number(step, "-k") * _HIT_BYTES), hours=rows / 500 / 3600)
        case "eval":
            return sizes.evaluation(step)
        case "signals" | "train reranker" | "train retriever":
            return sizes.learning(step)
        case _:
            return sizes.questions(step)


def check_room(step: Step, place: RecipeFolder) -> None:
    """Raise StorageError or UsageError before a step begins whose result or model does not fit on this machine.

    Memory is not checked where the model runs elsewhere: on a GPU, a cluster, or behind an API.
    """
    needed = estimate(step, place)
    free = shutil.disk_usage(place.folder if place.folder.exists() else place.folder.resolve().parent).free
    if needed.disk > free:
        raise StorageError(
            f"{place.folder_of(step).name} needs about {needed.disk / 1e9:,.1f} GB of disk, and {place.folder} has "
            f"{free / 1e9:,.1f} GB left: choose an `out` on a larger disk."
        )
    memory, elsewhere = _memory(), place.ways.ray is not None or place.asks_api(step)
    if needed.memory <= memory or elsewhere or place.ways.model.device not in ("auto", "cpu") or _has_gpu():
        return
    dense = step.command == "index"
    remedy = "" if dense else 'run smaller models alone (`only`), give `dtype="bfloat16"`, or '
    raise UsageError(
        f"{place.folder_of(step).name} needs about {needed.memory / 1e9:,.1f} GB of memory for its "
        f"{'vectors' if dense else 'model'}, and this machine has {memory / 1e9:,.1f} GB: {remedy}use a larger "
        "machine, one with a GPU, or a cluster."
    )


class _Sizes:
    """Estimates with the sizes of what a place reads."""

    def __init__(self, place: RecipeFolder) -> None:
        self._place = place

    def index(self, step: Step) -> Estimate:
        corpus = _resource(step, "corpus")
        passages = self._passages(corpus)
        written = passages * _BYTES_A_PASSAGE if corpus.writes and self._place.is_from_hub(corpus) else 0
        encoder = next((one for one in step.arguments if isinstance(one, Resource) and one.kind == "encoder"), None)
        dense = "--encoder" in step.arguments
        disk = written + passages * (_INDEX_BYTES + _VECTOR_BYTES if dense else _INDEX_BYTES)
        if not dense:
            return Estimate(passages=passages, disk=disk, hours=passages / _PASSAGES_A_SECOND / 3600)
        tokens = passages * _TOKENS_A_PASSAGE
        parameters = self._parameters(encoder) if encoder else 110e6
        memory = passages * _VECTOR_BYTES
        return Estimate(passages=passages, tokens=tokens, disk=disk, memory=memory, hours=_hours(tokens, parameters))

    def strides(self, step: Step) -> float:
        return self._text(step) / _number(step, "--stride", _PLAN.stride)

    def evaluation(self, step: Step) -> Estimate:
        tokens, window = self._text(step), _number(step, "--max-length", _PLAN.max_length)
        rows = self.strides(step)
        passages = "--index" in step.arguments or "--retrieved" in step.arguments
        several = 1.0
        if passages and "--rerank" in step.arguments:
            several = _number(step, "--candidates", RerankOptions().candidates)
        elif passages and "ensemble" in step.arguments:
            several = _number(step, "--documents", Ensemble().documents)
        if "blocked" in step.arguments:
            rows = tokens / _number(step, "--block", _PLAN.block) * (5 if passages else 1)
        read = int(rows * min(window, tokens) * several)
        parameters = self._parameters(_resource(step, "model"))
        return Estimate(
            tokens=read, disk=int(tokens * _ROW_BYTES), memory=self._weights(parameters), hours=_hours(read, parameters)
        )

    def learning(self, step: Step) -> Estimate:
        if step.command == "train reranker":
            plain = TrainingOptions()
            examples = _number(step, "--steps", plain.steps) * _number(step, "--batch", plain.batch)
            pairs = examples * _number(step, "--candidates", CandidateOptions().candidates)
            return Estimate(tokens=int(pairs * 200), hours=_TRAINING * _hours(pairs * 200, 125e6))
        vectors = 0
        if step.command == "signals":
            examples = _number(step, "--examples", ExampleOptions().examples)
            candidates = _number(step, "--candidates", CandidateOptions().candidates)
        else:  # those of the index are encoded again
            read_once = _number(step, "--steps", REPLUG.steps) * _number(step, "--batch", REPLUG.batch)
            examples = min(_number(step, "--examples", REPLUG_EXAMPLES.examples), read_once)
            candidates = _number(step, "--candidates", RetrieverTrainingOptions().candidates)
            vectors = 2 * self._passages(_resource(step, "corpus")) * _VECTOR_BYTES
        read = examples * candidates * 384
        parameters = self._parameters(_resource(step, "model"))
        return Estimate(
            tokens=int(read),
            disk=int(examples * 16 * 40) + vectors,
            memory=self._weights(parameters),
            hours=_hours(read, parameters),
        )

    def questions(self, step: Step) -> Estimate:
        asked = next(one for one in step.resources if one.kind in ("questions", "choices"))
        count = min(asked.questions or 1000, _number(step, "--limit", 1e9))
        prompts = _number(step, "--documents", Ensemble().documents) if "ensemble" in step.arguments else 1
        if "--numbers" in step.arguments:
            prompts = len(str(step.arguments[step.arguments.index("--numbers") + 1]).split(","))
        read = count * prompts * 1500
        parameters = self._parameters(_resource(step, "model"))
        return Estimate(
            tokens=int(read), disk=int(count * 4000), memory=self._weights(parameters), hours=_hours(read, parameters)
        )

    def _text(self, step: Step) -> float:
        text = _resource(step, "text")
        tokens = (self._bytes(text) or text.tokens * _BYTES_A_TOKEN) / _BYTES_A_TOKEN
        return min(tokens, _number(step, "--limit-tokens", tokens))

    def _passages(self, corpus: Resource) -> int:
        return int((self._bytes(corpus) or corpus.passages * _BYTES_A_PASSAGE) / _BYTES_A_PASSAGE)

    def _parameters(self, resource: Resource) -> float:
        value = self._place.value(resource)
        if value == STAND_IN_MODEL:
            return _TINY_PARAMETERS
        weights = sum(one.stat().st_size for one in Path(value).glob("*.safetensors")) if Path(value).is_dir() else 0
        return weights / 4 if weights else resource.parameters

    def _weights(self, parameters: float) -> int:
        """The bytes of a model's weights; large ones are mostly saved in 16 bits, which `dtype="auto"` keeps."""
        dtype = self._place.ways.model.dtype
        halves = parameters >= _LARGE if dtype == "auto" else dtype != "float32"
        return int(parameters * (2 if halves else 4))

    def _bytes(self, resource: Resource) -> int:
        """The size of a file or folder; 0 if it is on the hub."""
        path = Path(self._place.value(resource))
        if path.is_dir():
            return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        return path.stat().st_size if path.is_file() else 0


def _resource(step: Step, kind: str) -> Resource:
    return next(one for one in step.resources if one.kind == kind)


def _number(step: Step, flag: str, default: float | None = None) -> float:
    """The value of a flag of a step; one without a default is always there."""
    places = [place for place, one in enumerate(step.arguments) if one == flag]
    if places or default is None:
        return float(str(step.arguments[places[0] + 1]))
    return default


def _hours(tokens: float, parameters: float) -> float:
    return 2 * tokens * parameters / (_HALF * _speed()) / 3600


@cache
def _speed() -> float:
    """Floating-point operations a second of a product of matrices on this machine, on a GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 4096 if device == "cuda" else 1024
    matrix = torch.rand(size, size, device=device)
    _ = (matrix @ matrix)[0, 0].item()
    begin, products = perf_counter(), 0
    while perf_counter() - begin < _SECONDS:
        _ = (matrix @ matrix)[0, 0].item()
        products += 1
    return 2 * float(size) ** 3 * products / (perf_counter() - begin)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def total(estimates: Sequence[Estimate]) -> Estimate:
    """All steps together; memory is that of the largest."""
    return Estimate(
        passages=sum(one.passages for one in estimates),
        tokens=sum(one.tokens for one in estimates),
        disk=sum(one.disk for one in estimates),
        memory=max((one.memory for one in estimates), default=0),
        hours=sum(one.hours for one in estimates),
    )
