"""Choosing the passages that a cross-encoder scores highest, after reading the end of the prefix and the passage.

Trained on a language model's likelihoods (`ralm train reranker`), this is the predictive reranker of In-Context RALM,
section 6.2; any other cross-encoder serves too. Knows rows and hits; knows nothing of how a score is made.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from ralm.bounds import check_count
from ralm.protocols import Rows
from ralm.records import FloatArray, Hits, Passages
from ralm.reranking.pairs import CrossEncoder, PairScorer


def rank_prior(weight: float, count: int) -> FloatArray:
    """What the ranks of a retriever's hits, from 1, add to their scores (float32, `count`): -weight * log(rank)."""
    return (-weight * np.log(np.arange(1, count + 1))).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictive:
    """Chooses the passages that a cross-encoder scores highest (In-Context RALM, section 6.2, Eq. 7 and 8).

    `cross_encoder` comes from `load_cross_encoder`, or is your own. If it has an attribute `rank_weight`, as one has
    that was trained with a rank prior, the logarithm of a hit's rank times this weight is subtracted from its score.
    Raises UsageError if `candidates` is below 1.
    """

    cross_encoder: CrossEncoder
    candidates: int = 16

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)
        object.__setattr__(self, "cross_encoder", PairScorer.of(self.cross_encoder))

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options, and what decides the scores of the cross-encoder."""
        scores = dict(self.cross_encoder.config)
        return {"reranker": "predictive", "candidates": self.candidates, "cross_encoder": scores}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """The k best of each row's hits, with the cross-encoder's scores and the rank prior; of equal ones the first.

        A row with a single hit keeps it unread, with score 0.
        """
        found = [hits.of(row) for row in range(len(hits))]
        ends = {row: self.cross_encoder.end(rows.prefix(row)) for row, own in enumerate(found) if len(own) > 1}
        numbers = dict.fromkeys(number for row in ends for number, _ in found[row])
        read = {number: passages[number].contents for number in numbers}
        pairs = [(end, read[number]) for row, end in ends.items() for number, _ in found[row]]
        scores = iter(self.cross_encoder.scores(pairs).tolist())
        prior_K = rank_prior(PairScorer.of(self.cross_encoder).rank_weight, max(map(len, found), default=0))
        chosen = []
        for row, own in enumerate(found):
            given = np.array([next(scores) if row in ends else 0.0 for _ in own], dtype=np.float32)
            given += prior_K[: len(own)]
            best = np.argsort(-given, kind="stable")[:k]
            chosen.append((np.array([number for number, _ in own], dtype=np.int64)[best], given[best]))
        return Hits.of_rows(chosen)
