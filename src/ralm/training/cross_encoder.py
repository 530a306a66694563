"""A cross-encoder that is trained on signals with In-Context RALM Eq. 9.

Two weights are fitted before the training: that of the retriever's rank, and that of the likelihood of the prefix's end
after a passage. Letters of shapes: E examples, B those of a batch, K candidates, P pairs, J positions before the end of
a prefix, W weights.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import NO_PASSAGE, FloatArray, IntArray, Passages
from ralm.reranking.cross_encoder import PairModel, PrefixLikelihood
from ralm.reranking.oracle import rank_prior
from ralm.reranking.predictive import Pair
from ralm.terminal import track
from ralm.training import options
from ralm.training.losses import marginal_loss
from ralm.training.signals import Signals, spread
from ralm.training.trainer import ExampleLoss, RerankerTrainer

_FITTED: Final = 256
"""The most examples whose pairs are read to fit the likelihood: it has two numbers."""
_WEIGHTS: Final = np.arange(0, 81) / 20
"""From 0, where the rank says nothing, to 4, where the first of two passages is chosen 16 times as often."""
_DECAYS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Tokens after which one before counts a third."""
_MOST_PLACES: Final = PrefixLikelihood(weight=1.0, decay=max(_DECAYS)).places
"""The most tokens that count."""
_LIKELIHOODS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0)


def fitted_priors(
    signals: Signals, examples_E: IntArray, ends_EKJ: FloatArray | None = None, *, rank: bool = True
) -> tuple[float, PrefixLikelihood | None]:
    """Return the weight of the rank, in steps of 0.05 (0 without `rank`), and the likelihood with which both together
    have the lowest loss (In-Context RALM, Eq. 9) on some examples; None if the likelihood does not lower it.
    `ends_EKJ`: log-probabilities of the last tokens of prefixes after each candidate, the last one first."""
    log_probs_EK = signals.log_probs_EK[examples_E]
    log_probs, there = torch.from_numpy(log_probs_EK), torch.from_numpy(np.isfinite(log_probs_EK))
    tried: list[PrefixLikelihood | None] = [None]
    if ends_EKJ is not None:
        ends_PJ = torch.from_numpy(ends_EKJ).flatten(0, 1)
        tried += [PrefixLikelihood(weight=weight, decay=decay) for decay in _DECAYS for weight in _LIKELIHOODS]
    best, fitted = float("inf"), (0.0, tried[0])
    for likelihood in tried:
        added_EK = torch.zeros(there.shape)
        if likelihood is not None:
            added_EK = likelihood.of(ends_PJ).view(there.shape)
        for rank_weight in _WEIGHTS.tolist() if rank else [0.0]:
            # a retriever's first candidates are the first columns; padding stands after them
            scores_EK = added_EK + torch.from_numpy(rank_prior(rank_weight, signals.width))
            loss = float(marginal_loss(scores_EK, log_probs, there).double().mean())
            if loss < best:
                best, fitted = loss, (rank_weight, likelihood)
    return fitted


_PAIRS_A_PASS: Final = {"cpu": 16, "cuda": 64}
"""Pairs of similar length that are read together: the fewer, the less padding."""


class CrossEncoderLoss(ExampleLoss):
    """In-Context RALM Eq. 9 of a cross-encoder and the candidates of signals. The rank and the likelihood are fitted to
    the examples `fitted_to` before its first loss, unless it is restored; None leaves them as they are."""

    trainer = RerankerTrainer

    def __init__(
        self,
        pairs: PairModel,
        signals: Signals,
        passages: Passages,
        reading: options.RerankerOptions,
        *,
        fitted_to: IntArray | None = None,
    ) -> None:
        super().__init__()
        self.model = pairs.model
        self.documents_E = signals.documents_E
        self.at_once = max(1, reading.pairs // min(reading.candidates or signals.width, signals.width))
        self._pair_model = pairs
        self._signals = signals
        self._passages = passages
        self._reading = reading
        self._fitted_to = fitted_to
        self._prefixes = signals.texts("prefix")

    def losses(self, examples_B: IntArray) -> torch.Tensor:
        """Eq. 9 (B); in a step over as many candidates of each example as the options say, drawn at random."""
        self._fit()
        there_BK = self._signals.passages_EK[examples_B] != NO_PASSAGE
        if self.in_step and self._reading.candidates is not None:
            there_BK &= _drawn(there_BK, self._reading.candidates)
        scores_P = self._scores(self._pairs(examples_B, there_BK))
        there = torch.from_numpy(there_BK).to(scores_P.device)
        scores_BK = torch.zeros(there.shape, dtype=scores_P.dtype, device=scores_P.device)
        scores_BK = scores_BK.masked_scatter(there, scores_P) + torch.from_numpy(self._prior_K).to(scores_P)
        log_probs_BK = torch.from_numpy(self._signals.log_probs_EK[examples_B]).to(scores_P.device, torch.float32)
        return marginal_loss(scores_BK, log_probs_BK, there)

    def save(self, folder: Path) -> None:
        """Write the cross-encoder."""
        self._pair_model.save(folder)

    def state(self) -> dict[str, JsonValue]:
        """What was fitted."""
        likelihood = self._pair_model.likelihood
        return {
            "rank_weight": self._pair_model.rank_weight,
            "likelihood": None if likelihood is None else asdict(likelihood),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take what was fitted from `state`."""
        self._pair_model.rank_weight = state["rank_weight"]
        self._pair_model.likelihood = None if state["likelihood"] is None else PrefixLikelihood(**state["likelihood"])
        self._fitted_to = None

    def choices(self, examples_E: IntArray) -> IntArray:
        """The column of the candidate (int64, E) that is chosen for each example."""
        self._fit()
        chosen_E = np.zeros(len(examples_E), dtype=np.int64)
        for place, example in enumerate(track(examples_E.tolist(), "Choosing", len(examples_E))):
            there_K = self._signals.passages_EK[example] != NO_PASSAGE
            scores_K = self._pair_model.scores(self._pairs(np.array([example]), there_K[None]))
            chosen_E[place] = (scores_K + self._prior_K[: len(scores_K)]).argmax()
        return chosen_E

    @property
    def _prior_K(self) -> FloatArray:
        return rank_prior(self._pair_model.rank_weight, self._signals.width)

    def _fit(self) -> None:
        """Fit what is known before training, unless that was done."""
        examples_E, self._fitted_to = self._fitted_to, None
        if examples_E is None:
            return
        if self._reading.likelihood and self._pair_model.reads_ends:
            some_E, training = spread(examples_E, self.documents_E, _FITTED), self.model.training
            with torch.autocast(self.model.device.type, enabled=False):
                ends_EKJ = self._ends(some_E)
            self.model.train(training)
            fitted = fitted_priors(self._signals, some_E, ends_EKJ, rank=self._reading.rank_prior)
            self._pair_model.rank_weight, self._pair_model.likelihood = fitted
        elif self._reading.rank_prior:
            self._pair_model.rank_weight, _ = fitted_priors(self._signals, examples_E)

    def _ends(self, examples_E: IntArray) -> FloatArray:
        """The log-probabilities (float32, E x K x J) of the last tokens of prefixes after each candidate, from the
        last one on; 0 where there is no candidate."""
        there_EK = self._signals.passages_EK[examples_E] != NO_PASSAGE
        ends_EKJ = np.zeros((*there_EK.shape, min(self._pair_model.tokens, _MOST_PLACES)), dtype=np.float32)
        for place, example in enumerate(track(examples_E.tolist(), "Fitting", len(examples_E))):
            there_K = there_EK[place]
            pairs = self._pairs(np.array([example]), there_K[None])
            ends_EKJ[place, there_K] = self._pair_model.end_log_probs(pairs, ends_EKJ.shape[2])
        return ends_EKJ

    def _pairs(self, examples_B: IntArray, there_BK: NDArray[np.bool_]) -> list[Pair]:
        """The pairs of some examples and their candidates, row by row."""
        pairs = []
        for example, there_K in zip(examples_B.tolist(), there_BK, strict=True):
            end = self._pair_model.end(self._prefixes[example].as_py())
            numbers = self._signals.passages_EK[example, there_K].tolist()
            pairs += [(end, self._passages[number].contents) for number in numbers]
        return pairs

    def _scores(self, pairs: list[Pair]) -> torch.Tensor:
        """The scores (P) of pairs; those of similar length are read together."""
        groups = self._pair_model.batches(pairs, _PAIRS_A_PASS)
        scores_P = torch.cat([self._pair_model.logits([pairs[place] for place in group]) for group in groups])
        return scores_P[torch.tensor(np.argsort(np.concatenate(groups)), device=scores_P.device)]


def _drawn(there_BK: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """`count` candidates of each example, or all if it has fewer, each set of them equally likely."""
    keys_BK = np.where(there_BK, torch.rand(there_BK.shape).numpy(), 2.0)
    return keys_BK.argsort(axis=1).argsort(axis=1) < count
