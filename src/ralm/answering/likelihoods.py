"""How likely given texts are behind the prompts of a question, token by token.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

Works on token ids; knows nothing of questions or of what the texts are. Letters of shapes: K prompts of a question, T
tokens of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.lm.scoring import Scorer
from ralm.reading.ensemble import mixture, posterior
from ralm.records import FloatArray, Front, IntArray, Request

_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """A text behind the prompts of a question: the natural log-probability of each token behind each prompt (float32,
    K x T), and the logarithm of the weight of each prompt (float64, K)."""

    log_probs_KT: FloatArray
    log_weights_K: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """T."""
        return self.log_probs_KT.shape[1]

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text under the average of all prompts."""
        return float(mixture(self.log_probs_KT, self.log_weights_K).sum(dtype=np.float64))

    @property
    def shares_K(self) -> NDArray[np.float64]:
        """The share of the tokens' probability that came from each prompt, averaged over tokens; they sum to 1."""
        return posterior(self.log_probs_KT, self.log_weights_K).mean(axis=0, dtype=np.float64)


def likelihoods(texts: Sequence[tuple[Sequence[Front], IntArray]], scorer: Scorer) -> list[Likelihood]:
    """The likelihood of each text (token ids, at least one) behind its prompts.

    Raises ModelError if a prompt and its text are longer than the model reads.
    """
    requests = [
        Request(document=front.tokens, context=_NOTHING, targets=tokens) for fronts, tokens in texts for front in fronts
    ]
    scored = iter(scorer.log_probs(requests))
    return [
        Likelihood(
            np.stack([next(scored) for _ in fronts]), np.array([front.log_weight for front in fronts], dtype=np.float64)
        )
        for fronts, _ in texts
    ]
