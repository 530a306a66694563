"""Examples that need no language model, and the program that trains both encoders on them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ralm.protocols import Retriever
from ralm.records import FloatArray, Hits, IntArray, Passage
from ralm.training.examples import OnlineExamples
from ralm.training.options import ExampleOptions, RetrieverTrainingOptions, TrainingOptions
from ralm.training.retriever import train_retriever

WORDS = "fox sea hill sheep barn radium stone bread moon river salt crow".split()
TRAINING = TrainingOptions(steps=12, batch=4, learning_rate=3e-3, evaluate_every=4, held_out=0.2, patience=100, seed=4)
OPTIONS = RetrieverTrainingOptions(candidates=5, refresh_every=4)


def passages() -> list[Passage]:
    return [Passage(n, f"d{n}", f"about {word}", f"the {word} and the {word} again") for n, word in enumerate(WORDS)]


class Taught(OnlineExamples):
    """Queries of random words; the higher the number of a passage, the more it helps."""

    def __init__(self, count: int = 30) -> None:
        draws = np.random.default_rng(0)
        self.documents_E = [f"document {n}" for n in range(count)]
        self._queries = [" ".join(draws.choice(WORDS, 4)) for _ in range(count)]
        self.asked: list[list[int]] = []
        self.options = ExampleOptions(continuation_tokens=4)
        self.config = {"examples": "taught", "count": count}

    def queries(self, examples_B: IntArray) -> Sequence[str]:
        return [self._queries[example] for example in examples_B.tolist()]

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        self.asked.append(examples_B.tolist())
        return retriever.retrieve(self.queries(examples_B), k)

    def log_probs(self, _: IntArray, hits: Hits, *, alone: bool = False) -> list[list[FloatArray]]:
        first = [np.full(4, -9, dtype=np.float32)] if alone else []
        return [
            first + [np.full(4, number / 3 - 9, dtype=np.float32) for number, _ in hits.of(row)]
            for row in range(len(hits))
        ]


if __name__ == "__main__":
    os.environ["RALM_PROGRESS"] = "0"
    folder = Path(sys.argv[1])
    train_retriever(Taught(), folder / "index", folder / "out", OPTIONS, TRAINING)
