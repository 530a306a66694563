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
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes import inputs, resources
from ralm.recipes.folder import RecipeFolder
from ralm.recipes.steps import Amounts, Step
from ralm.retrieval.dense.options import EncoderOptions
from ralm.storage.outputs import recover
from ralm.training.options import CandidateOptions, ExampleOptions, RetrieverTrainingOptions, TrainingOptions

_BYTES_PER_TOKEN: Final = 4.3
_BYTES_PER_PASSAGE: Final = 620
_TOKENS_PER_PASSAGE: Final = 135
_PASSAGES_PER_SECOND: Final = 20_000
"""Passages that two cores index for BM25 (docs/cluster.md)."""
_QUERIES_PER_SECOND: Final = 500
_INDEX_BYTES: Final = 1_100
_VECTOR_BYTES: Final = 4 * 768
_HIT_BYTES: Final = 750
_ROW_BYTES: Final = 60
_SIGNAL_BYTES: Final = 16 * 40
_ANSWER_BYTES: Final = 4_000
_PROMPT_TOKENS: Final = 1_500
_EXAMPLE_TOKENS: Final = 384
_PAIR_TOKENS: Final = 200
_RANKER_PARAMETERS: Final = 125e6
_TINY_PARAMETERS: Final = 4e6
_LARGE_PARAMETERS: Final = 2e9
_TRAINING: Final = 3
"""Operations of a training step to those of reading."""
_UTILISATION: Final = 0.5
_SECONDS: Final = 0.2

_LOG: Final = logging.getLogger(__name__)


def run_steps(steps: Sequence[Step], folder: RecipeFolder, run: Callable[[list[str]], None]) -> None:
    """Run the steps, which are in order, unless their results exist; `run` executes a command line.

    Raises what a command raises, naming the step and the inputs that can be replaced if the hub cannot be reached.
    """
    folder.begin()
    steps = folder.distinct_steps(steps)
    for number, step in enumerate(steps, 1):
        at = f"[{number}/{len(steps)}] {folder.path_of(step).name}"
        if folder.is_done(step):
            with suppress(FolderExistsError):  # another process is about to finish it
                recover(folder.path_of(step))
            _LOG.info("%s: done before", at)
            continue
        line = folder.command_line(step)
        _LOG.info("%s: %s", at, command_text(line))
        try:
            check_step_fits(step, folder)
            folder.write_inputs(step)
            run(line)
        except RalmError as error:
            error.args = (f"{at}: {str(error).removesuffix('.')}.{_replaceable(step, folder)}",)
            raise


def command_text(line: Sequence[str]) -> str:
    """A command as one types it."""
    return f"ralm {shlex.join(line)}"


def _replaceable(step: Step, folder: RecipeFolder) -> str:
    """The inputs of a step from the hub, for a message."""
    read = [resource for resource in step.resources if folder.is_from_hub(resource)]
    if not read:
        return ""
    named = [f"{one.name} ({one.note})" if one.note else one.name for one in read]
    return f" From the hub it reads {', '.join(named)}; give your own with --use {read[0].name}=PATH."


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Passages, tokens that models read, bytes of disk and memory, and hours. All are rough."""

    passages: int = 0
    tokens: int = 0
    disk: int = 0
    memory: int = 0
    hours: float = 0.0


def estimate(step: Step, folder: RecipeFolder) -> Estimate:
    """The estimate of a step."""
    sizes = _Sizes(step, folder)
    match step.command:
        case "index":
            return sizes.index()
        case "retrieve":
            queries = sizes.strides()
            disk = int(queries * step.option(Amounts).k * _HIT_BYTES)
            return Estimate(disk=disk, hours=queries / _QUERIES_PER_SECOND / 3600)
        case "eval":
            return sizes.evaluation()
        case "train reranker":
            training = step.option(TrainingOptions)
            tokens = training.steps * training.batch * CandidateOptions().candidates * _PAIR_TOKENS
            return Estimate(tokens=tokens, hours=_TRAINING * _hours(tokens, _RANKER_PARAMETERS))
        case "signals" | "train retriever":
            return sizes.signals()
        case _:
            return sizes.questions()


def total(estimates: Sequence[Estimate]) -> Estimate:
    """All steps together; memory is that of the largest."""
    return Estimate(
        passages=sum(one.passages for one in estimates),
        tokens=sum(one.tokens for one in estimates),
        disk=sum(one.disk for one in estimates),
        memory=max((one.memory for one in estimates), default=0),
        hours=sum(one.hours for one in estimates),
    )


def check_step_fits(step: Step, folder: RecipeFolder) -> None:
    """Raise StorageError or UsageError before a step begins whose result or model does not fit on this machine.

    Memory is not checked where the model runs elsewhere: on a GPU, a cluster, or behind an API.
    """
    needed = estimate(step, folder)
    free = shutil.disk_usage(folder.folder if folder.folder.exists() else folder.folder.resolve().parent).free
    if needed.disk > free:
        raise StorageError(
            f"{folder.path_of(step).name} needs about {needed.disk / 1e9:,.1f} GB of disk, and {folder.folder} has "
            f"{free / 1e9:,.1f} GB left: choose an `out` on a larger disk."
        )
    memory, elsewhere = _memory(), folder.model.ray is not None or folder.uses_api(step)
    if needed.memory <= memory or elsewhere or folder.model.device not in ("auto", "cpu") or _has_gpu():
        return
    dense = step.command == "index"
    remedy = "" if dense else "run smaller models alone (`only`), give `lm_args` dtype=bfloat16, or "
    raise UsageError(
        f"{folder.path_of(step).name} needs about {needed.memory / 1e9:,.1f} GB of memory for its "
        f"{'vectors' if dense else 'model'}, and this machine has {memory / 1e9:,.1f} GB: {remedy}use a larger "
        "machine, one with a GPU, or a cluster."
    )


class _Sizes:
    """Estimates a step with the sizes of the files that it reads."""

    def __init__(self, step: Step, folder: RecipeFolder) -> None:
        self._step = step
        self._folder = folder

    def index(self) -> Estimate:
        corpus, passages = self._step.resource("corpus"), self._passages()
        disk = passages * _INDEX_BYTES
        disk += passages * _BYTES_PER_PASSAGE if corpus.form and self._folder.is_from_hub(corpus) else 0
        if not self._step.has(EncoderOptions):
            return Estimate(passages=passages, disk=disk, hours=passages / _PASSAGES_PER_SECOND / 3600)
        encoders = [one for one in self._step.resources if one.kind == "encoder"]
        tokens, memory = passages * _TOKENS_PER_PASSAGE, passages * _VECTOR_BYTES
        hours = _hours(tokens, self._parameters(encoders[0]) if encoders else 110e6)
        return Estimate(passages=passages, tokens=tokens, disk=disk + memory, memory=memory, hours=hours)

    def strides(self) -> float:
        return self._tokens() / self._step.option(PlanOptions).stride

    def evaluation(self) -> Estimate:
        tokens, plan, reading = self._tokens(), self._step.option(PlanOptions), self._step.option(ReadingOptions)
        retrieved = any(one.command == "retrieve" for one in self._step.steps)
        windows = self.strides()
        if plan.windows == "blocked":
            windows = tokens / plan.block * (5 if retrieved else 1)
        several = 1
        if reading.reranks and retrieved:
            several = reading.candidates
        elif reading.reader_name == "ensemble" and retrieved:
            several = reading.chosen_reader.hits
        return self._reading(int(windows * min(plan.max_length, tokens) * several), disk=tokens * _ROW_BYTES)

    def signals(self) -> Estimate:
        step = self._step
        examples, vectors = step.option(ExampleOptions).examples, 0
        if step.command == "signals":
            candidates = step.option(CandidateOptions).candidates
        else:  # the training ends after so many steps, and encodes the vectors of the index again
            training = step.option(TrainingOptions)
            examples = min(examples, training.steps * training.batch)
            candidates = step.option(RetrieverTrainingOptions).candidates
            vectors = 2 * self._passages() * _VECTOR_BYTES
        return self._reading(examples * candidates * _EXAMPLE_TOKENS, disk=examples * _SIGNAL_BYTES + vectors)

    def questions(self) -> Estimate:
        amounts, reading = self._step.option(Amounts), self._step.option(ReadingOptions)
        count = self._step.resource("questions", "choices").questions or 1000
        count = count if amounts.limit is None else min(count, amounts.limit)
        prompts = len(amounts.numbers) or (reading.chosen_reader.hits if reading.reader_name == "ensemble" else 1)
        return self._reading(count * prompts * _PROMPT_TOKENS, disk=count * _ANSWER_BYTES)

    def _reading(self, tokens: int, disk: float) -> Estimate:
        """A step whose language model reads so many tokens. Large models are mostly saved in 16 bits, which
        `dtype="auto"` keeps."""
        parameters, dtype = self._parameters(self._step.resource("model")), self._folder.model.dtype
        halves = parameters >= _LARGE_PARAMETERS if dtype == "auto" else dtype != "float32"
        memory = int(parameters * (2 if halves else 4))
        return Estimate(tokens=tokens, disk=int(disk), memory=memory, hours=_hours(tokens, parameters))

    def _tokens(self) -> float:
        text, limit = self._step.resource("text"), self._step.option(Amounts).limit_tokens
        tokens = (self._bytes(text) or text.tokens * _BYTES_PER_TOKEN) / _BYTES_PER_TOKEN
        return tokens if limit is None else min(tokens, limit)

    def _passages(self) -> int:
        corpus = self._step.resource("corpus")
        return int((self._bytes(corpus) or corpus.passages * _BYTES_PER_PASSAGE) / _BYTES_PER_PASSAGE)

    def _parameters(self, resource: resources.Resource) -> float:
        source = self._folder.source_of(resource)
        if source == inputs.STAND_IN_MODEL:
            return _TINY_PARAMETERS
        # A path that is no folder has no files.
        weights = sum(one.stat().st_size for one in Path(source).glob("*.safetensors"))
        return weights / 4 or resource.parameters

    def _bytes(self, resource: resources.Resource) -> int:
        """The size of a file or folder; 0 if it is on the hub."""
        path = Path(self._folder.source_of(resource))
        if path.is_dir():
            return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        return path.stat().st_size if path.is_file() else 0


def _hours(tokens: float, parameters: float) -> float:
    return 2 * tokens * parameters / (_UTILISATION * _speed()) / 3600


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
        _ = (matrix @ matrix)[0, 0].item()  # .item() waits for the GPU
        products += 1
    return 2 * float(size) ** 3 * products / (perf_counter() - begin)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
