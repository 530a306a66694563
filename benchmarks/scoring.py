"""The scoring engine against the plain loop: same model, text and passages, in one process.

    python -m benchmarks.scoring [--model gpt2|ralm-tiny|...] [--dtype ...] [--strides 8] [--threads 1]

Reads part of Python's own documentation with passages from the rest of it: full windows of 1,024 tokens, documents of
at most 256. The plain loop, with the model as transformers loads it, is timed on a few strides. The engine is timed on
the same strides in sliding windows, and on whole blocks of 256 tokens in blocked windows. The ratio is that of speeds,
per token, to the plain loop in the first format. "share of peak" is the model's arithmetic (matrix products, causal
attention counted half), divided by the time and by the rate at which this machine multiplies matrices.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmarks import plain_loop
from benchmarks.measuring import print_table, random_model
from ralm.corpus.splitting import make_passages
from ralm.demo import held_out_text, split_held_out, standard_library_documentation
from ralm.lm import model_path
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import Dtype, ModelOptions, load_local_model
from ralm.lm.scoring import Scorer
from ralm.reading.plan import PlanOptions, Windows, stride_request
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import NO_PASSAGE, Hits, Request
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index

LENGTH, BLOCK, CANDIDATES, RANK_TOKENS = 1024, 256, 16, 16
SHAPES: dict[str, Any] = {
    "gpt2": lambda: GPT2Config(),
    "gpt2-xl": lambda: GPT2Config(n_layer=48, n_embd=1600, n_head=25),
    "llama-7b": lambda: LlamaConfig(),
}
"""Published shapes, with random weights, since only time is measured."""


class Meter:
    """Counts the arithmetic of a model: its products at the positions where they are computed, and causal attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self._attention = 2 * config.num_hidden_layers * config.hidden_size
        self.flops = 0.0
        model.base_model.register_forward_pre_hook(self._read, with_kwargs=True)
        for module in model.modules():
            if isinstance(module, (torch.nn.Linear, Conv1D)):
                module.register_forward_hook(self._multiplied)

    def _read(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
        batch, length = named.get("input_ids", *inputs).shape
        self.flops += batch * length**2 * self._attention

    def _multiplied(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _: object) -> None:
        self.flops += 2 * module.weight.numel() * inputs[0].shape[:-1].numel()  # type: ignore[operator]


@dataclass(frozen=True)
class Task:
    """Strides to read, the hits of each, and the documents as token ids."""

    prepared: PreparedText
    rows: Sequence[int]
    hits: Hits
    documents: PassageDocuments

    def targets(self, row: int) -> int:
        """Return the number of targets of a row."""
        plan = self.prepared.plan
        return int(plan.end_R[row] - plan.target_begin_R[row])

    def numbers(self, row: int) -> list[int]:
        """Return the passages of a row; few words of a stride may be in no passage."""
        return [number for number, _ in self.hits.of(row)] or [NO_PASSAGE]


@dataclass(frozen=True)
class Material:
    """A model in one number format, ours and as transformers loads it; a text; and an index of passages."""

    name: str
    model: LocalLanguageModel
    plain: PreTrainedModel
    dtype: Dtype
    text: str
    index: Index

    def task(self, windows: Windows, stride: int, strides: int, documents: int) -> Task:
        """Retrieve for this many strides with full windows, planned as in the official code, from a block's start."""
        options = PlanOptions(semantics="official", windows=windows, block=BLOCK, stride=stride, max_length=LENGTH)
        prepared = prepare_text(self.text, self.model.tokenizer, options, limit_tokens=3 * LENGTH)
        begin_R = prepared.plan.begin_R
        first = int(np.flatnonzero((begin_R >= 2 * LENGTH) & ((begin_R - LENGTH) % BLOCK == 0))[0])
        hits, passages = FromRetriever.of_index(self.index).find(prepared, self.model.tokenizer, documents)
        encoded = PassageDocuments(passages, self.model.tokenizer, prepared.plan.options.document_tokens)
        return Task(prepared, range(first, first + strides), hits, encoded)


def run_plain(material: Material, task: Task, rank_tokens: int) -> None:
    """Read every stride by the plain loop."""
    for row in task.rows:
        end = int(task.prepared.plan.end_R[row])
        window = task.prepared.tokens[end - LENGTH : end]
        candidates = [task.documents[number] for number in task.numbers(row)]
        plain_loop.read_best(material.plain, window, candidates, task.targets(row), rank_tokens)


def run_engine(material: Material, task: Task, rank_tokens: int) -> None:
    """Read every candidate of every stride by the engine, at once."""
    requests: list[Request] = [
        stride_request(task.prepared.tokens, task.prepared.plan, row, task.documents[number], before=rank_tokens)
        for row in task.rows
        for number in task.numbers(row)
    ]
    Scorer(material.model).log_probs(requests)


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return operations per second of a matrix product of 2,048 x 2,048 (8,192 on a GPU)."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    rates = []
    for _ in range(5):
        begin = _now(device)
        torch.mm(a, b)
        rates.append(2 * size**3 / (_now(device) - begin))
    return max(rates)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def cases(few: int) -> Iterator[tuple[str, str, Windows, int, int]]:
    """Yield what is measured: engine, reading, windows, stride and number of strides."""
    yield "plain", "first", "sliding", 4, few
    yield "engine", "first", "sliding", 4, few
    yield "engine", "first", "blocked", 4, BLOCK
    yield "engine", "first", "blocked", 1, 4 * BLOCK
    yield "plain", "zero-shot", "sliding", 4, max(1, few // 16)
    yield "engine", "zero-shot", "blocked", 4, BLOCK // 4


def rows(name: str, dtypes: Sequence[Dtype], few: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a model."""
    base: dict[str, float] = {}
    with materials(name, dtypes) as each:
        for material in each:
            device = material.model.model.device
            peak = matmul_peak(device, material.model.model.dtype)
            meters = Meter(material.model.model), Meter(material.plain)
            for engine, reading, windows, stride, strides in cases(few):
                run = {"plain": run_plain, "engine": run_engine}[engine]
                rank_tokens = RANK_TOKENS if reading == "zero-shot" else 0
                task = material.task(windows, stride, strides, CANDIDATES if rank_tokens else 1)
                run(material, replace(task, rows=task.rows[:1], hits=task.hits.first(1)), 0)  # warms up
                begin, flops = _now(device), sum(meter.flops for meter in meters)
                run(material, task, rank_tokens)
                seconds = _now(device) - begin
                base.setdefault(reading, seconds / strides / stride)
                case = {"engine": engine, "model": name, "reading": reading, "windows": windows, "stride": stride}
                yield {
                    **case,
                    "dtype": material.dtype,
                    "s per stride": seconds / strides,
                    "ratio": base[reading] / (seconds / strides / stride),
                    "tokens per second": strides * stride / seconds,
                    "share of peak": f"{(sum(meter.flops for meter in meters) - flops) / seconds / peak:.1%}",
                }


@contextmanager
def materials(name: str, dtypes: Sequence[Dtype]) -> Iterator[Iterator[Material]]:
    """The model in each number format, with text and index."""
    corpus, held_out = split_held_out(standard_library_documentation())
    drawn = nullcontext(name) if name == "ralm-tiny" else random_model(SHAPES[name](), dtypes[0])
    with TemporaryDirectory() as folder, drawn as place:
        build_index(make_passages(corpus), Path(folder) / "index")
        index = open_index(Path(folder) / "index")

        def each() -> Iterator[Material]:
            for dtype in dtypes:
                model = load_local_model(place, ModelOptions(dtype=dtype))
                plain = AutoModelForCausalLM.from_pretrained(model_path(place), dtype=model.model.dtype)
                plain = plain.eval().to(model.model.device)
                yield Material(name, model, plain, dtype, held_out_text(held_out), index)

        yield each()


def main() -> None:
    """Print the table of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["ralm-tiny", "gpt2"], choices=["ralm-tiny", *SHAPES])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--strides", type=int, default=8, help="strides of the plain loop")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.model:
        print_table(rows(name, args.dtype, args.strides))


if __name__ == "__main__":
    main()
