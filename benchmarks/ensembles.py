"""Ensembles of 10 documents (REPLUG) against the plain loop of 10 separate passes per stride: same model, same process.

    python -m benchmarks.ensembles [--strides 64] [--plain-strides 2] [--dtype float32 bfloat16]

The model has GPT-2 124M's shape and random weights; text, passages, windows and the plain loop are those of
`benchmarks.scoring`. The plain loop reads one window at a time, once per document, in the first format, on a few
strides, since all its passes are alike. The engine reads the same strides in sliding windows, and a whole block of 256
tokens in blocked windows. Times are processor times. If engine and loop read the same, the greatest difference of a
log-probability is printed.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks import plain_loop
from benchmarks.measuring import print_table
from benchmarks.scoring import LENGTH, Material, Task, materials
from ralm.lm.registry import Dtype
from ralm.lm.scoring import Scorer
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.reading.plan import stride_request
from ralm.records import DoubleArray, FloatArray

DOCUMENTS, STRIDE, TEMPERATURE = 10, 4, 1.0


def mix_row(task: Task, row: int, log_probs_KT: FloatArray) -> DoubleArray:
    """Return the ensemble of the log-probabilities that the documents of a row give."""
    scores_K = task.hits.scores_QK[row, : len(log_probs_KT)]
    return mix(log_probs_KT, similarity_log_weights(scores_K, TEMPERATURE))


def run_plain(material: Material, task: Task) -> list[DoubleArray]:
    """Read every document of every stride in a pass of its own."""
    mixtures = []
    for row in task.rows:
        end = int(task.prepared.plan.end_R[row])
        window = task.prepared.tokens[end - LENGTH : end]
        passes = [plain_loop.read(material.plain, window, task.documents[n], STRIDE) for n in task.numbers(row)]
        mixtures.append(mix_row(task, row, torch.stack(passes).numpy()))
    return mixtures


def run_engine(material: Material, task: Task) -> list[DoubleArray]:
    """Read all documents of all strides at once."""
    requests = [
        stride_request(task.prepared.tokens, task.prepared.plan, row, task.documents[number])
        for row in task.rows
        for number in task.numbers(row)
    ]
    scored = iter(Scorer(material.model).log_probs(requests))
    return [mix_row(task, row, np.stack([next(scored) for _ in task.numbers(row)])) for row in task.rows]


def rows(dtypes: Sequence[Dtype], strides: int, plain_strides: int) -> Iterator[dict[str, object]]:
    """Yield the plain loop in the first format, and the engine in each."""
    base, exact = 0.0, list[DoubleArray]()
    with materials("gpt2", dtypes) as each:
        for material in each:
            sliding = material.task("sliding", STRIDE, plain_strides, DOCUMENTS)
            blocked = material.task("blocked", STRIDE, strides, DOCUMENTS)
            works = [("engine", "sliding", run_engine, sliding), ("engine", "blocked", run_engine, blocked)]
            if not base:
                works.insert(0, ("plain", "sliding", run_plain, sliding))
            run_engine(material, replace(sliding, rows=sliding.rows[:1]))  # warms up
            for name, windows, run, task in works:
                begin = time.process_time()
                mixtures = run(material, task)
                seconds = (time.process_time() - begin) / len(task.rows)
                base, exact = (base, exact) if base else (seconds, mixtures)
                difference = max(float(np.abs(a - b).max()) for a, b in zip(mixtures, exact, strict=False))
                case = {"engine": name, "windows": windows, "dtype": material.dtype, "strides": len(task.rows)}
                yield {
                    **case,
                    "passages": len({number for row in task.rows for number in task.numbers(row)}),
                    "s per stride": seconds,
                    "ratio": base / seconds,
                    "difference": difference if windows == "sliding" else "another context",
                }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strides", type=int, default=64, help="strides of the engine in blocked windows")
    parser.add_argument("--plain-strides", type=int, default=2, help="strides of the plain loop, of 10 passes each")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print_table(rows(args.dtype, args.strides, args.plain_strides))


if __name__ == "__main__":
    main()
