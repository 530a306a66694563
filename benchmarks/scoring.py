"""The scoring engine against the plain loop: same model, text and passages, in one process.

    python -m benchmarks.scoring [--model gpt2|ralm-tiny|...] [--threads 1] [--out FILE]

Reads part of Python's own documentation with passages from the rest of it: full windows of 1,024 tokens, documents of
at most 256. The plain loop, with the model as transformers loads it, is timed on a few strides. The engine is timed on
the same strides in sliding windows, and on whole blocks of 256 tokens in blocked windows. Prints a table; --out also
writes one JSON object per line. `flops_share` is the model's arithmetic (matrix products, causal attention counted
half), divided by the time and by the rate at which this machine multiplies matrices of 2,048 in the same number format.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, OPTConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmarks import plain_loop
from ralm.corpus.splitting import make_passages
from ralm.demo.demonstration import held_out_text
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.lm import model_path
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import Dtype, ModelOptions, load_local_model
from ralm.lm.scoring import Scorer
from ralm.reading.in_context import stride_request
from ralm.reading.plan import PlanOptions, Windows
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import FloatArray, IntArray, Request
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index

LENGTH, BLOCK, CANDIDATES, RANK_TOKENS = 1024, 256, 16, 16
ARCHITECTURES: dict[str, Any] = {
    "gpt2": lambda: GPT2Config(),
    "gpt2-xl": lambda: GPT2Config(n_layer=48, n_embd=1600, n_head=25),
    "opt-6.7b": lambda: OPTConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, ffn_dim=16384),
    "llama-7b": lambda: LlamaConfig(),
}
"""Published shapes, with random weights, since only time is measured."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    engine: str
    model: str
    reading: str
    windows: str
    stride: int
    dtype: str
    strides: int
    seconds_per_stride: float
    tokens_per_second: float
    nll: float
    flops_share: float


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
class Material:
    """A model in one number format, ours and as transformers loads it; its text; and the peak rate of the machine."""

    name: str
    model: LocalLanguageModel
    plain: PreTrainedModel
    dtype: Dtype
    text: str
    index: Index
    meters: tuple[Meter, Meter]
    peak: float

    @property
    def flops(self) -> float:
        """Operations that both copies of the model have done."""
        return sum(meter.flops for meter in self.meters)


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product of 2,048 x 2,048 (8,192 on a GPU)."""
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


def rows_from(prepared: PreparedText, strides: int) -> list[int]:
    """This many rows with a full window, starting at the beginning of a block."""
    begin_R = prepared.plan.begin_R
    first = int(np.flatnonzero((begin_R >= 2 * LENGTH) & ((begin_R - LENGTH) % BLOCK == 0))[0])
    return list(range(first, first + strides))


def prepared_for(material: Material, windows: Windows, stride: int) -> PreparedText:
    """The text, planned as in the official code."""
    options = PlanOptions(semantics="official", windows=windows, block=BLOCK, stride=stride, max_length=LENGTH)
    return prepare_text(material.text, material.model.tokenizer, options, limit_tokens=3 * LENGTH)


@dataclass(frozen=True)
class Task:
    """Some strides to read, each with its candidates; one candidate for plain reading."""

    prepared: PreparedText
    rows: Sequence[int]
    candidates: Sequence[Sequence[IntArray]]
    rank_tokens: int

    def targets(self, row: int) -> int:
        plan = self.prepared.plan
        return int(plan.end_R[row] - plan.target_begin_R[row])


def task_for(material: Material, reading: str, windows: Windows, stride: int, strides: int) -> Task:
    """Retrieve for these strides."""
    prepared = prepared_for(material, windows, stride)
    rows = rows_from(prepared, strides)
    k = CANDIDATES if reading == "zero-shot" else 1
    source = FromRetriever(material.index.bm25, material.index.passages)
    hits, _ = source.find(prepared, material.model.tokenizer, k)
    documents = PassageDocuments(
        material.index.passages, material.model.tokenizer, prepared.plan.options.document_tokens
    )
    nothing = np.array([], dtype=np.int64)  # few words of a stride may be in no passage
    candidates = [[documents[number] for number, _ in hits.of(row)] or [nothing] for row in rows]
    return Task(prepared, rows, candidates, RANK_TOKENS if k > 1 else 0)


def run_plain(material: Material, task: Task) -> list[FloatArray]:
    """The plain loop."""
    tokens, plan, found = task.prepared.tokens, task.prepared.plan, []
    for row, candidates in zip(task.rows, task.candidates, strict=True):
        window = tokens[int(plan.end_R[row]) - LENGTH : int(plan.end_R[row])]
        if task.rank_tokens:
            scored = plain_loop.read_best(material.plain, window, candidates, task.targets(row), task.rank_tokens)
        else:
            scored = plain_loop.read(material.plain, window, candidates[0], task.targets(row))
        found.append(scored.numpy())
    return found


def run_engine(material: Material, task: Task) -> list[FloatArray]:
    """The engine: every candidate of every stride at once."""
    requests: list[Request] = [
        stride_request(task.prepared.tokens, task.prepared.plan, row, document, before=task.rank_tokens)
        for row, candidates in zip(task.rows, task.candidates, strict=True)
        for document in candidates
    ]
    scored = iter(Scorer(material.model).log_probs(requests))
    found = []
    for row, candidates in zip(task.rows, task.candidates, strict=True):
        of_row = [next(scored) for _ in candidates]
        totals = [one[: -task.targets(row)].sum(dtype=np.float64) for one in of_row]
        best = int(np.argmax(totals)) if task.rank_tokens else 0
        found.append(of_row[best][-task.targets(row) :])
    return found


def measured(material: Material, engine: str, reading: str, windows: Windows, stride: int, strides: int) -> Row:
    """Time one way of reading this many strides, after one stride of warm-up."""
    run = {"plain": run_plain, "engine": run_engine}[engine]
    task = task_for(material, reading, windows, stride, strides)
    run(material, replace(task, rows=task.rows[:1], candidates=[task.candidates[0][:1]], rank_tokens=0))
    before = material.flops
    begin = _now(material.model.model.device)
    found = run(material, task)
    seconds = _now(material.model.model.device) - begin
    tokens = sum(len(log_probs) for log_probs in found)
    return Row(
        engine=engine,
        model=material.name,
        reading=reading,
        windows=windows,
        stride=stride,
        dtype=material.dtype,
        strides=strides,
        seconds_per_stride=seconds / strides,
        tokens_per_second=tokens / seconds,
        nll=-float(np.concatenate(found).sum(dtype=np.float64)) / tokens,
        flops_share=(material.flops - before) / seconds / material.peak,
    )


def runs(material: Material, few: int) -> Iterator[Row]:
    """Everything that is measured in one number format: the plain loop on a few strides, the engine on the same and on
    blocks."""
    strides_of_a_block = BLOCK // 4
    yield measured(material, "plain", "first", "sliding", 4, few)
    yield measured(material, "engine", "first", "sliding", 4, few)
    yield measured(material, "engine", "first", "blocked", 4, 4 * strides_of_a_block)
    yield measured(material, "engine", "first", "blocked", 1, 4 * BLOCK)
    yield measured(material, "plain", "zero-shot", "sliding", 4, max(1, few // 16))
    yield measured(material, "engine", "zero-shot", "blocked", 4, strides_of_a_block)


@contextmanager
def materials(name: str, dtypes: Sequence[Dtype]) -> Iterator[Iterator[Material]]:
    """The model in each number format, with text and index."""
    corpus, held_out = split_held_out(standard_library_documentation())
    with tempfile.TemporaryDirectory() as folder:
        build_index(make_passages(corpus), Path(folder) / "index")
        index = open_index(Path(folder) / "index")
        place = name if name == "ralm-tiny" else str(Path(folder) / name)
        if name != "ralm-tiny":
            torch.manual_seed(0)
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            with device:  # a GPU draws 7 billion weights in a second
                drawn = AutoModelForCausalLM.from_config(ARCHITECTURES[name](), dtype=getattr(torch, dtypes[0]))
            drawn.save_pretrained(place)
            del drawn
            gpt2_tokenizer().save_pretrained(place)

        def each() -> Iterator[Material]:
            for dtype in dtypes:
                model = load_local_model(place, ModelOptions(dtype=dtype))
                plain = AutoModelForCausalLM.from_pretrained(model_path(place), dtype=model.model.dtype)
                plain = plain.eval().to(model.model.device)
                meters = Meter(model.model), Meter(plain)
                peak = matmul_peak(model.model.device, model.model.dtype)
                yield Material(name, model, plain, dtype, held_out_text(held_out), index, meters, peak)

        yield each()


def gpt2_tokenizer() -> Any:
    """GPT-2's tokenizer if it is beside the checkout; otherwise ralm-tiny's, with a note."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "gpt2_bpe"
    if not folder.exists():
        print("GPT-2's tokenizer is missing: ralm-tiny's is used.")
        return AutoTokenizer.from_pretrained(model_path("ralm-tiny"))
    from transformers import GPT2Tokenizer

    return GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["ralm-tiny", "gpt2"], choices=["ralm-tiny", *ARCHITECTURES])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--strides", type=int, default=8, help="strides of the plain loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.threads} thread(s), torch {torch.__version__}; ratio: to the plain loop in float32, a stride\n")
    print("model      engine  reading    windows  stride  dtype     s/stride  ratio  tokens/s      nll  flops share")
    for name in args.model:
        baseline: dict[str, float] = {}
        with materials(name, args.dtype) as each:
            for row in (row for material in each for row in runs(material, args.strides)):
                if row.engine == "plain":
                    baseline.setdefault(row.reading, row.seconds_per_stride / row.stride)
                ratio = baseline[row.reading] / (row.seconds_per_stride / row.stride)
                print(
                    f"{row.model:10} {row.engine:7} {row.reading:10} {row.windows:8} {row.stride:6}  {row.dtype:8} "
                    f"{row.seconds_per_stride:9.4f} {ratio:6.1f} {row.tokens_per_second:9.1f} {row.nll:8.4f} "
                    f"{row.flops_share:12.1%}",
                    flush=True,
                )
                if args.out:
                    with args.out.open("a") as lines:
                        lines.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main()
