"""What signals are worth, before anything is trained with them: how much choosing among the candidates can gain.

Works on signals; knows nothing of how they were measured.
"""

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import NO_PASSAGE
from ralm.training.signals import Signals

BETAS: Final = (0.01, 0.03, 0.1, 0.3, 1.0)
_NO_PREFERENCE: Final = 0.01
"""Nats per token: below this difference between the best and the worst candidate an example has no preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What choosing among the candidates can gain. Gains are in nats per token over reading no passage.

    `first`: the retriever's first candidate; `random`: the mean of all candidates; `best`: the best for each example.
    `examples` counts those with two candidates or more, of which the others are means; `single` counts those with
    fewer, `impossible` those in which the language model gives a token no probability. `no_preference` counts examples
    whose candidates differ by less than 0.01 nats per token. `entropies`: for each beta, the mean entropy in nats of
    Q, the softmax of the mean token log-probability over beta (REPLUG, section 4.2); `uniform` is the entropy if Q were
    uniform.
    """

    examples: int
    single: int
    impossible: int
    first: float
    random: float
    best: float
    no_preference: int
    entropies: dict[str, float]
    uniform: float

    def as_json(self) -> dict[str, JsonValue]:
        """For a manifest."""
        return asdict(self)


def worth_of(signals: Signals) -> Worth:
    """What some signals are worth."""
    there_EK = signals.passages_EK != NO_PASSAGE
    several_E, possible_E = signals.has_choice_E, signals.is_possible_E
    used_E = several_E & possible_E
    there_EK, tokens_E = there_EK[used_E], signals.tokens_E[used_E]
    total_EK = np.where(there_EK, signals.log_probs_EK[used_E], -np.inf)
    mean_EK = total_EK / tokens_E[:, None]
    counts_E = there_EK.sum(axis=1)
    gain_EK = total_EK - signals.baseline_E[used_E][:, None]
    lowest_E = np.where(there_EK, mean_EK, np.inf).min(axis=1, initial=np.inf)
    tokens = max(1, int(tokens_E.sum()))
    return Worth(
        examples=int(used_E.sum()),
        single=int((~several_E).sum()),
        impossible=int((several_E & ~possible_E).sum()),
        first=float(gain_EK[:, 0].sum() / tokens),
        random=float((np.where(there_EK, gain_EK, 0).sum(axis=1) / np.maximum(counts_E, 1)).sum() / tokens),
        best=float(gain_EK.max(axis=1, initial=-np.inf).sum() / tokens) if used_E.any() else 0.0,
        no_preference=int((mean_EK.max(axis=1, initial=-np.inf) - lowest_E < _NO_PREFERENCE).sum()),
        entropies={str(beta): _entropy(mean_EK / beta) for beta in BETAS},
        uniform=float(np.log(np.maximum(counts_E, 1)).mean()) if used_E.any() else 0.0,
    )


def _entropy(logits_EK: NDArray[np.float64]) -> float:
    """The mean entropy of softmax over each row; -inf is padding."""
    if not len(logits_EK):
        return 0.0
    shifted_EK = logits_EK - logits_EK.max(axis=1, keepdims=True)
    q_EK = np.exp(shifted_EK)
    q_EK /= q_EK.sum(axis=1, keepdims=True)
    terms_EK = q_EK * np.log(np.where(q_EK > 0, q_EK, 1))
    return float(-terms_EK.sum(axis=1).mean())
