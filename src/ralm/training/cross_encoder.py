"""A cross-encoder that is trained on signals with In-Context RALM Eq. 9, and the weight of the retriever's rank.

Letters of shapes: E examples, B those of a batch, K candidates, P pairs.
"""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ralm.records import NO_PASSAGE, IntArray, Passages
from ralm.reranking.cross_encoder import PairModel
from ralm.reranking.oracle import rank_prior
from ralm.reranking.predictive import Pair
from ralm.terminal import track
from ralm.training.losses import marginal_loss
from ralm.training.options import RerankerOptions
from ralm.training.signals import Signals
from ralm.training.trainer import ExampleLoss, RerankerTrainer

_WEIGHTS: Final = np.arange(0, 81) / 20
"""From 0, where the rank says nothing, to 4, where the first of two passages is chosen 16 times as often."""
_PAIRS_A_PASS: Final = {"cpu": 16, "cuda": 64}
"""Pairs of similar length that are read together: the fewer, the less padding."""


def fitted_rank_weight(signals: Signals, examples_E: IntArray) -> float:
    """Return the weight of the rank, in steps of 0.05, with the lowest loss (In-Context RALM, Eq. 9) on examples."""
    log_probs_EK = signals.log_probs_EK[examples_E]
    log_probs, there = torch.from_numpy(log_probs_EK), torch.from_numpy(np.isfinite(log_probs_EK))

    def loss(weight: float) -> float:
        # a retriever's first candidates are the first columns; padding stands after them
        scores_EK = torch.from_numpy(rank_prior(weight, signals.width)).expand(there.shape)
        return float(marginal_loss(scores_EK, log_probs, there).double().mean())

    return min(_WEIGHTS.tolist(), key=loss)


class CrossEncoderLoss(ExampleLoss):
    """In-Context RALM Eq. 9 of a cross-encoder and the candidates of signals."""

    trainer = RerankerTrainer

    def __init__(self, pairs: PairModel, signals: Signals, passages: Passages, reading: RerankerOptions) -> None:
        super().__init__()
        self.model = pairs.model
        self.documents_E = signals.documents_E
        self.at_once = max(1, reading.pairs // signals.width)
        self._pair_model = pairs
        self._signals = signals
        self._passages = passages
        self._prefixes = signals.texts("prefix")
        self._prior_K = rank_prior(pairs.rank_weight, signals.width)

    def losses(self, examples_B: IntArray) -> torch.Tensor:
        """Return Eq. 9 (B)."""
        there_BK = self._signals.passages_EK[examples_B] != NO_PASSAGE
        scores_P = self._scores(self._pairs(examples_B, there_BK))
        there = torch.from_numpy(there_BK).to(scores_P.device)
        scores_BK = torch.zeros(there.shape, dtype=scores_P.dtype, device=scores_P.device)
        scores_BK = scores_BK.masked_scatter(there, scores_P) + torch.from_numpy(self._prior_K).to(scores_P)
        log_probs_BK = torch.from_numpy(self._signals.log_probs_EK[examples_B]).to(scores_P.device, torch.float32)
        return marginal_loss(scores_BK, log_probs_BK, there)

    def save(self, folder: Path) -> None:
        """Write the cross-encoder."""
        self._pair_model.save(folder)

    def choices(self, examples_E: IntArray) -> IntArray:
        """Return the column of the candidate (int64, E) that is chosen for each example."""
        chosen_E = np.zeros(len(examples_E), dtype=np.int64)
        for place, example in enumerate(track(examples_E.tolist(), "Choosing", len(examples_E))):
            there_K = self._signals.passages_EK[example] != NO_PASSAGE
            scores_K = self._pair_model.scores(self._pairs(np.array([example]), there_K[None]))
            chosen_E[place] = (scores_K + self._prior_K[: len(scores_K)]).argmax()
        return chosen_E

    def _pairs(self, examples_B: IntArray, there_BK: NDArray[np.bool_]) -> list[Pair]:
        """Return the pairs of some examples and their candidates, row by row."""
        pairs = []
        for example, there_K in zip(examples_B.tolist(), there_BK, strict=True):
            end = self._pair_model.end(self._prefixes[example].as_py())
            numbers = self._signals.passages_EK[example, there_K].tolist()
            pairs += [(end, self._passages[number].contents) for number in numbers]
        return pairs

    def _scores(self, pairs: list[Pair]) -> torch.Tensor:
        """Return the scores (P) of pairs; those of similar length are read together."""
        groups = self._pair_model.batches(pairs, _PAIRS_A_PASS)
        scores_P = torch.cat([self._pair_model.logits([pairs[place] for place in group]) for group in groups])
        return scores_P[torch.tensor(np.argsort(np.concatenate(groups)), device=scores_P.device)]
