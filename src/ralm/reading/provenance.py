"""What retrieval was worth, token by token and passage by passage, in nats.

Of a target y_t, read with documents after [d; x] and without after x alone:

    gain_t         = log p(y_t | with documents) - log p(y_t | x)
    contribution_td = posterior_td gain_t,     posterior_td = lambda_d p(y_t | [d; x]) / sum over d' of the same

The posteriors of a target sum to 1 (REPLUG's ensemble, Shi et al., 2023, Eq. 2; with one document it is 1), so its
contributions sum to its gain, and those of all passages to the gain of the text. Gains may be negative: a passage can
hurt. A target read without a document has whatever gain was measured (both readings ask the model the same, so that is
rounding), and no passage is given any of it.

Works on arrays of what was scored; knows nothing of models, texts or where passages come from. All sums are float64.
Letters of shapes: T targets, K documents of a target.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ralm.records import NO_PASSAGE, FloatArray, Provenance, ScoredTokens

DoubleArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one passage was worth to a text.

    `gain` is its share of the text's gain in nats, `tokens` the number of targets of which it gave more than any other
    passage; `helped` of those became likelier than without documents, and `hurt` less likely.
    """

    passage: int
    gain: float
    tokens: int
    helped: int
    hurt: int


@dataclass(frozen=True, slots=True)
class Gain:
    """What retrieval was worth to a text of so many `targets`.

    `nats` is the sum of all gains, of which `unattributed` belongs to the targets that were read without a document;
    `helped` targets became likelier than without documents, and `hurt` ones less likely.
    """

    nats: float
    targets: int
    helped: int
    hurt: int
    unattributed: float

    @property
    def per_token(self) -> float:
        """Nats a target; not a number where there is none."""
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
    """How much of each target's gain (float64, T x K) is each document's: every row sums to the gain."""
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
    """What each passage was worth, the best first, those of equal gain by number: a row per passage that was read."""
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
    """The place (int64, T) among the sorted `numbers` of the passage that gave most of each target; one past the end
    for a target without passage."""
    most_T = provenance.posteriors_TK.argmax(axis=1)
    passages_T = provenance.passages_TK[np.arange(len(most_T)), most_T]
    return np.where(passages_T == NO_PASSAGE, len(numbers), np.searchsorted(numbers, passages_T))
