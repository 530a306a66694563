"""The control of a retriever's training: signals whose preferences are permuted within each example must teach nothing.

    python -m benchmarks.permuted_signals SIGNALS OUT

Trains the query encoder of an index as the table in docs/results.md says, but each candidate of an example has the
likelihood of another one. The encoder in OUT is then read with `ralm eval --retriever dense:query_encoder=OUT`, as the
trained one is.
"""

import sys
from dataclasses import replace

import numpy as np

from ralm.cli.results import print_retriever
from ralm.records import NO_PASSAGE
from ralm.training.options import QueryEncoderOptions, TrainingOptions
from ralm.training.retriever import train_query_encoder
from ralm.training.signals import Signals, open_signals

OPTIONS = QueryEncoderOptions(gamma=0.05)
TRAINING = TrainingOptions(
    steps=130,
    batch=64,
    learning_rate=5e-5,
    held_out=0.15,
    evaluated=512,
    evaluate_every=26,
    precision="bfloat16",
    dropout=False,
)


def permuted(signals: Signals, seed: int = 0) -> Signals:
    """The same signals, with the log-probabilities of an example's candidates in random order."""
    draws = np.random.default_rng(seed)
    log_probs_EK = signals.log_probs_EK.copy()
    for row_K, passages_K in zip(log_probs_EK, signals.passages_EK, strict=True):
        there = np.flatnonzero(passages_K != NO_PASSAGE)
        row_K[there] = row_K[draws.permutation(there)]
    return replace(signals, log_probs_EK=log_probs_EK)


def main() -> None:
    """Train on the permuted signals, and print what became of the loss."""
    folder, out = sys.argv[1:]
    trained = train_query_encoder(permuted(open_signals(folder)), out, OPTIONS, TRAINING)
    print_retriever(trained, "query encoder", "MiniLM", f"search with --retriever dense:query_encoder={out}")


if __name__ == "__main__":
    main()
