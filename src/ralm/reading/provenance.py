"""The gain from retrieval, token by token and passage by passage, in nats.

For a target y_t, read after [d; x] with documents and after x without:

    gain_t         = log p(y_t | with documents) - log p(y_t | x)
    contribution_td = posterior_td gain_t,     posterior_td = lambda_d p(y_t | [d; x]) / sum over d' of the same

The posteriors of a target sum to 1 (REPLUG's ensemble, Shi et al., 2023, Eq. 2; with one document it is 1), so its
contributions sum to its gain, and those of all passages to the gain of the text. Gains may be negative: a passage can
hurt. The gain of a target read without a document is attributed to no passage; both readings ask the model the same, so
this gain is rounding error.

Works on arrays of what was scored; knows nothing of models, texts or where passages come from. All sums are float64.
Letters of shapes: T targets, K documents of a target.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Provenance, ScoredTokens


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one passage contributed to a text.

    `gain` is its share of the text's gain in nats. `tokens` is the number of targets to which it contributed more than
    any other passage; `helped` of these became likelier than without documents, and `hurt` less likely.
    """

    passage: int
    gain: float
    tokens: int
    helped: int
    hurt: int


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain from retrieval for a text of `targets` targets.

    `nats` is the sum of all gains, of which `unattributed` belongs to targets that were read without a document.
    `helped` targets became likelier than without documents, and `hurt` targets less likely.
    """

    nats: float
    targets: int
    helped: int
    hurt: int
    unattributed: float

    @property
    def per_token(self) -> float:
        """Nats per target; NaN without targets."""
        return self.nats / self.targets if self.targets else float("nan")


def provenance_of(scored: ScoredTokens) -> Provenance:
    """The documents of each target: those of its ensemble, or the one passage it was read with, with posterior 1."""
    if scored.provenance is not None:
        return scored.provenance
    passages_TK = scored.passages_T[:, None]
    return Provenance(passages_TK=passages_TK, posteriors_TK=np.ones(passages_TK.shape, dtype=np.float32))


def gains(log_probs_T: FloatArray, baseline_T: FloatArray) -> DoubleArray:
    """The gain (float64, T) of each target: its log-probability with documents less that without, in nats."""
    return log_probs_T.astype(np.float64) - baseline_T.astype(np.float64)


def attributed(provenance: Provenance, gain_T: DoubleArray) -> DoubleArray:
    """The part of each target's gain (float64, T x K) that each document contributed: every row sums to the gain."""
    posteriors_TK = provenance.posteriors_TK.astype(np.float64)
    return gain_T[:, None] * posteriors_TK / posteriors_TK.sum(axis=1, keepdims=True)


def total_gain(provenance: Provenance, gain_T: DoubleArray) -> Gain:
    """The gain of all targets together."""
    without_T = (provenance.passages_TK == NO_PASSAGE).all(axis=1)
    return Gain(
        nats=float(gain_T.sum()),
        targets=len(gain_T),
        helped=int((gain_T > 0).sum()),
        hurt=int((gain_T < 0).sum()),
        unattributed=float(gain_T[without_T].sum()),
    )


def contributions(provenance: Provenance, gain_T: DoubleArray) -> list[Contribution]:
    """What each passage contributed, a row per passage that was read: largest gain first, equal gains by number."""
    read_TK = provenance.passages_TK != NO_PASSAGE
    numbers, places = np.unique(provenance.passages_TK[read_TK], return_inverse=True)
    gain = np.bincount(places, weights=attributed(provenance, gain_T)[read_TK], minlength=len(numbers))
    led_T = _led_by(provenance, numbers)
    led = [
        np.bincount(led_T[chosen_T], minlength=len(numbers) + 1)[:-1].tolist()
        for chosen_T in (np.ones(len(gain_T), dtype=np.bool_), gain_T > 0, gain_T < 0)
    ]
    rows = map(Contribution, numbers.tolist(), gain.tolist(), *led)
    return sorted(rows, key=lambda row: (-row.gain, row.passage))


def _led_by(provenance: Provenance, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index (int64, T) into the sorted `numbers` of the passage that contributed most to each target; one past the
    end for a target without a passage."""
    most_T = provenance.posteriors_TK.argmax(axis=1)
    passages_T = provenance.passages_TK[np.arange(len(most_T)), most_T]
    return np.where(passages_T == NO_PASSAGE, len(numbers), np.searchsorted(numbers, passages_T))
