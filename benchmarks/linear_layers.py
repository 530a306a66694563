"""Linear layers with packed weights against the model's own: the rate of single layers, and texts that are scored.

    python -m benchmarks.linear_layers [--texts 4] [--rounds 5]

The layers are those of GPT-2 124M with random weights, in float32; a round multiplies all layers of the model one after
the other, so weights come from memory as they do in a pass. GFLOPS are those of the fastest round. The texts have 1,024
tokens, of which the last 256 are scored; seconds are those of all processors together, of the fastest round.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel

from benchmarks.api.material import print_table
from benchmarks.scoring import gpt2_tokenizer
from ralm.lm.local.kernels import packable
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.records import ScoringSequence

ROWS = (1, 16, 32, 64, 224, 1024)
LENGTH, TARGETS = 1024, 256


def fastest(rounds: int, clock: Callable[[], float], work: Callable[[], object]) -> float:
    """Seconds of the fastest of several rounds, after one that does not count."""
    work()
    seconds = []
    for _ in range(rounds):
        begin = clock()
        work()
        seconds.append(clock() - begin)
    return min(seconds)


def rate(model: PreTrainedModel, rows: int, rounds: int) -> float:
    """GFLOPS of all linear layers but the output layer."""
    layers: list[Any] = [layer for layer in packable(model) if layer is not model.get_output_embeddings()]
    inputs = [torch.randn(rows, layer.weight.shape[0]) for layer in layers]
    operations = sum(2 * rows * layer.weight.numel() for layer in layers)

    def work() -> None:
        for layer, states in zip(layers, inputs, strict=True):
            layer(states)

    with torch.inference_mode():
        return float(operations) / fastest(rounds, time.perf_counter, work) / 1e9


def scoring(model: LocalLanguageModel, texts: int, rounds: int) -> float:
    """Processor seconds to score texts."""
    draws = np.random.default_rng(0)
    targets = np.arange(LENGTH - TARGETS, LENGTH)
    passes = [ScoringSequence(draws.integers(0, model.vocabulary, LENGTH), targets) for _ in range(texts)]
    return fastest(rounds, time.process_time, lambda: list(model.score(passes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(GPT2Config()).save_pretrained(folder)
        gpt2_tokenizer().save_pretrained(folder)
        packed, own = load_transformers_model(folder), load_transformers_model(folder)
    for layer in packable(own.model):
        del layer.forward  # what the class defines
    table: list[dict[str, object]] = []
    for rows in ROWS:
        plain, faster = (rate(one.model, rows, args.rounds) for one in (own, packed))
        table.append({"": f"{rows} rows, GFLOPS", "own": plain, "packed": faster, "ratio": faster / plain})
    plain, faster = (scoring(one, args.texts, args.rounds) for one in (own, packed))
    table.append({"": f"{args.texts} texts, seconds", "own": plain, "packed": faster, "ratio": plain / faster})
    print_table(table)


if __name__ == "__main__":
    main()
