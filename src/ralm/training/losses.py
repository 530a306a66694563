"""The losses of both papers: In-Context RALM, Eq. 9, for rerankers, and LSR (REPLUG, Eq. 4 to 6) for retrievers.

Each function returns one loss per example, in float32; training takes the mean over the batch. `CrossEncoderLoss` is
that of a cross-encoder on signals, which `encoders.py` has for encoders. Letters of shapes: E examples, B those of a
batch, K candidates, P pairs. Candidates where `there` is False are padding: they are not read and get no gradient.
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
from ralm.training.options import RerankerOptions
from ralm.training.signals import Signals
from ralm.training.trainer import ExampleLoss, RerankerTrainer

_WEIGHTS: Final = np.arange(0, 81) / 20
"""From 0, where the rank says nothing, to 4, where the first of two passages is chosen 16 times as often."""
_PAIRS_A_PASS: Final = {"cpu": 16, "cuda": 64}
"""Pairs of similar length that are read together: the fewer, the less padding."""


def marginal_loss(scores_BK: torch.Tensor, log_probs_BK: torch.Tensor, there_BK: torch.Tensor) -> torch.Tensor:
    """Return -log sum_i p_rank(d_i) p_LM(y | d_i, x) with p_rank = softmax(scores) (In-Context RALM, Eq. 9).

    `log_probs_BK`: log p_LM of the whole continuation y after each candidate; -inf marks a candidate after which y is
    impossible. The gradient with respect to the scores is p_rank - r with r in proportion to p_rank p_LM.
    """
    return -torch_mix(_only(log_probs_BK, there_BK).detach(), _only(scores_BK, there_BK))


def torch_mix(log_probs_BK: torch.Tensor, scores_BK: torch.Tensor) -> torch.Tensor:
    """Return `ralm.reading.mixture.mix` (REPLUG, Eq. 2) with weights softmax(scores), and a gradient for these."""
    return (scores_BK + log_probs_BK).logsumexp(dim=1) - scores_BK.logsumexp(dim=1)


def divergence_loss(
    scores_BK: torch.Tensor,
    lm_scores_BK: torch.Tensor,
    there_BK: torch.Tensor,
    *,
    gamma: float = 0.1,
    beta: float = 0.1,
) -> torch.Tensor:
    """Return KL(Q || P_R), the loss of LSR (REPLUG, Eq. 6).

    P_R = softmax(scores / gamma) is the retrieval likelihood (REPLUG, Eq. 4), and Q = softmax(LM scores / beta) the
    likelihood of the language model (REPLUG, Eq. 5). `lm_scores_BK`: see `LSROptions.lm_scores`; -inf gives a candidate
    no weight. Q gets no gradient.
    """
    log_p_BK = (_only(scores_BK, there_BK) / gamma).log_softmax(dim=1)
    log_q_BK = (_only(lm_scores_BK, there_BK).detach() / beta).log_softmax(dim=1)
    parts_BK = log_q_BK.exp() * (log_q_BK - log_p_BK)
    return torch.where(log_q_BK == -torch.inf, 0, parts_BK).sum(dim=1)


def _only(values_BK: torch.Tensor, there_BK: torch.Tensor) -> torch.Tensor:
    """Return the values in float32, with -inf where there is no candidate."""
    return torch.where(there_BK, values_BK.float(), -torch.inf)


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
