"""What a reranker knows before it is trained, with weights fitted to signals: how much the retriever's rank says about
which passage helps, and how much it says how likely a language model finds the end of the prefix behind a passage.

Knows signals and numbers; knows nothing of models. Letters of shapes: E examples, K candidates, J places before the end
of a prefix, W weights.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ralm.records import FloatArray, IntArray
from ralm.reranking.cross_encoder import Likelihood
from ralm.reranking.predictive import rank_prior
from ralm.training.losses import marginal_loss
from ralm.training.signals import Signals

FITTED: Final = 256
"""The most examples whose pairs are read to fit the likelihood: it has two numbers."""
_WEIGHTS: Final = np.arange(0, 81) / 20
"""From 0, where the rank says nothing, to 4, where the first of two passages is chosen 16 times as often."""
_DECAYS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Tokens after which one before counts a third."""
MOST_PLACES: Final = Likelihood(weight=1.0, decay=max(_DECAYS)).places
"""The most tokens that count."""
_LIKELIHOODS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0)


def fitted_rank_weight(signals: Signals, examples_E: IntArray) -> float:
    """The weight, in steps of 0.05, with which the rank alone has the lowest loss (In-Context RALM, Eq. 9) on some
    examples.

    A retriever's first candidates are the first columns of `signals`; padding stands behind them.
    """
    log_probs_EK = signals.log_probs_EK[examples_E]
    nothing_EK = torch.zeros(log_probs_EK.shape)
    losses_W = [_loss(nothing_EK, weight, log_probs_EK) for weight in _WEIGHTS.tolist()]
    return float(_WEIGHTS[int(np.argmin(losses_W))])


def fitted_likelihood(
    signals: Signals, examples_E: IntArray, ends_EKJ: FloatArray, *, rank: bool
) -> tuple[float, Likelihood | None]:
    """The weight of the rank and the likelihood with which both together have the lowest loss (Eq. 9) on some examples;
    None if the likelihood does not lower it.

    `ends_EKJ`: log-probabilities of the last tokens of the prefixes behind each candidate, from the last one on.
    Without `rank` its weight is 0.
    """
    log_probs_EK = signals.log_probs_EK[examples_E]
    ends_PJ = torch.from_numpy(ends_EKJ).flatten(0, 1)
    tried = [None, *(Likelihood(weight=much, decay=decay) for decay in _DECAYS for much in _LIKELIHOODS)]
    best, fitted = float("inf"), (0.0, tried[0])
    for likelihood in tried:
        added_P = torch.zeros(len(ends_PJ)) if likelihood is None else likelihood.of(ends_PJ)
        for weight in _WEIGHTS.tolist() if rank else [0.0]:
            loss = _loss(added_P.view(log_probs_EK.shape), weight, log_probs_EK)
            if loss < best:
                best, fitted = loss, (weight, likelihood)
    return fitted


def _loss(scores_EK: torch.Tensor, rank_weight: float, log_probs_EK: NDArray[np.float64]) -> float:
    there_EK = torch.from_numpy(np.isfinite(log_probs_EK))
    scores_EK = scores_EK + torch.from_numpy(rank_prior(rank_weight, log_probs_EK.shape[1]))
    return float(marginal_loss(scores_EK, torch.from_numpy(log_probs_EK), there_EK).double().mean())
