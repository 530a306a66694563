"""How much the retriever's rank says about which passage helps: a weight fitted to signals.

Knows signals and numbers; knows nothing of models. Letters of shapes: E examples, K candidates, W weights.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ralm.records import FloatArray, IntArray
from ralm.reranking.predictive import rank_prior
from ralm.training.losses import marginal_loss
from ralm.training.signals import Signals

_WEIGHTS: Final = np.arange(0, 81) / 20
"""From 0, where the rank says nothing, to 4, where the first of two passages is chosen 16 times as often."""


def fitted_rank_weight(signals: Signals, examples_E: IntArray) -> float:
    """The weight, in steps of 0.05, with which the rank alone has the lowest loss (In-Context RALM, Eq. 9) on some
    examples.

    A retriever's first candidates are the first columns of `signals`; padding stands behind them.
    """
    log_probs_EK = signals.log_probs_EK[examples_E]
    losses_W = [_loss(rank_prior(weight, signals.width), log_probs_EK) for weight in _WEIGHTS.tolist()]
    return float(_WEIGHTS[int(np.argmin(losses_W))])


def _loss(prior_K: FloatArray, log_probs_EK: NDArray[np.float64]) -> float:
    there_EK = torch.from_numpy(np.isfinite(log_probs_EK))
    scores_EK = torch.from_numpy(prior_K).expand(there_EK.shape)
    return float(marginal_loss(scores_EK, torch.from_numpy(log_probs_EK), there_EK).double().mean())
