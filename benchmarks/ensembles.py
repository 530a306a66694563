"""Ensembles of 10 documents (REPLUG) against the plain loop of 10 separate passes per stride: same model, same process.

    python -m benchmarks.ensembles [--strides 64] [--plain-strides 2] [--dtype float32 bfloat16]

The model has GPT-2 124M's shape and random weights. The text is part of Python's own documentation, the passages come
from the rest of it. Windows have 1,024 tokens, documents at most 256, strides 4. The plain loop is that of the official
code: float32, one window at a time, all its logits, once per document. It is timed on a few strides, since all its
passes are alike. The engine reads the same strides in sliding windows, and a whole block of 256 tokens in blocked
windows. Times are processor times, so other load on the machine does not change the ratios. If engine and loop read the
same, the greatest difference of a log-probability is printed.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import plain_loop
from benchmarks.scoring import LENGTH, Material, materials, prepared_for, rows_from
from ralm.lm.registry import Dtype
from ralm.lm.scoring import Scorer
from ralm.reading.ensemble import Ensemble
from ralm.reading.in_context import stride_request
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.reading.plan import Windows
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import DoubleArray, FloatArray, Hits

OPTIONS = Ensemble(documents=10)
STRIDE = 4


@dataclass(frozen=True)
class Task:
    """Some strides, their hits, and the documents as token ids."""

    prepared: PreparedText
    rows: Sequence[int]
    hits: Hits
    documents: PassageDocuments

    def mixed(self, row: int, log_probs_KT: FloatArray) -> DoubleArray:
        """The ensemble of the log-probabilities that the documents of a row give."""
        scores_K = self.hits.scores_QK[row, : len(log_probs_KT)]
        return mix(log_probs_KT, similarity_log_weights(scores_K, OPTIONS.temperature))


def task_for(material: Material, windows: Windows, strides: int) -> Task:
    """Retrieve ten passages for each of this many strides."""
    prepared = prepared_for(material, windows, STRIDE)
    source = FromRetriever(material.index.bm25, material.index.passages)
    hits, _ = source.find(prepared, material.model.tokenizer, OPTIONS.hits)
    documents = PassageDocuments(
        material.index.passages, material.model.tokenizer, prepared.plan.options.document_tokens
    )
    return Task(prepared, rows_from(prepared, strides), hits, documents)


def run_plain(material: Material, task: Task) -> list[DoubleArray]:
    """One pass for every document of every stride."""
    tokens, plan, found = task.prepared.tokens, task.prepared.plan, []
    for row in task.rows:
        window = tokens[int(plan.end_R[row]) - LENGTH : int(plan.end_R[row])]
        passes = [
            plain_loop.read(material.plain, window, task.documents[number], STRIDE) for number, _ in task.hits.of(row)
        ]
        found.append(task.mixed(row, torch.stack(passes).numpy()))
    return found


def run_engine(material: Material, task: Task) -> list[DoubleArray]:
    """All documents of all strides at once."""
    numbers = {row: [number for number, _ in task.hits.of(row)] for row in task.rows}
    requests = [
        stride_request(task.prepared.tokens, task.prepared.plan, row, task.documents[number])
        for row in task.rows
        for number in numbers[row]
    ]
    scored = iter(Scorer(material.model).log_probs(requests))
    return [task.mixed(row, np.stack([next(scored) for _ in numbers[row]])) for row in task.rows]


def timed(
    run: Callable[[Material, Task], list[DoubleArray]], material: Material, task: Task
) -> tuple[float, list[DoubleArray]]:
    """Processor seconds per stride, and the log-probabilities."""
    begin = time.process_time()
    found = run(material, task)
    return (time.process_time() - begin) / len(task.rows), found


def distinct(task: Task) -> int:
    """The number of distinct documents among the strides, which is the number of passes of a block."""
    return len({number for row in task.rows for number, _ in task.hits.of(row)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strides", type=int, default=64, help="strides of the engine in blocked windows")
    parser.add_argument("--plain-strides", type=int, default=2, help="strides of the plain loop, of 10 passes each")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("engine  windows  dtype     strides  documents  s/stride   ratio  greatest difference from the loop")
    base: float | None = None
    exact: list[DoubleArray] = []
    dtypes: list[Dtype] = args.dtype
    with materials("gpt2", dtypes) as each:
        for material in each:
            sliding = task_for(material, "sliding", args.plain_strides)
            runs: list[tuple[str, Windows, Task]] = [
                ("engine", "sliding", sliding),
                ("engine", "blocked", task_for(material, "blocked", args.strides)),
            ]
            if base is None:
                runs.insert(0, ("plain", "sliding", sliding))
            warm = Task(sliding.prepared, sliding.rows[:1], sliding.hits.first(1), sliding.documents)
            run_engine(material, warm)
            for name, windows, task in runs:
                seconds, found = timed(run_plain if name == "plain" else run_engine, material, task)
                if base is None:
                    base, exact = seconds, found
                difference = max(float(np.abs(a - b).max()) for a, b in zip(found, exact, strict=False))
                print(
                    f"{name:7} {windows:8} {material.dtype:8} {len(task.rows):8} {distinct(task):10} {seconds:9.3f} "
                    f"{base / seconds:7.1f}  {f'{difference:.1e}' if windows == 'sliding' else 'another context'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
