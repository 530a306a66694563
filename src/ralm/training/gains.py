"""What rerankers and encoders gain on held-out documents, and what choosing among the candidates of signals can gain.

Letters of shapes: E examples, K candidates, T tokens of a continuation, R readings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import JsonValue

from ralm.evaluation.intervals import Estimate, Units, estimate
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.records import NO_PASSAGE, DoubleArray, IntArray

if TYPE_CHECKING:
    from ralm.training.signals import Signals

_TEMPERATURES: Final = 2.0 ** (np.arange(-10, 11) / 2)
"""Temperatures that are tried, in standard deviations of the scores."""
_NO_PREFERENCE: Final = 0.01
"""Nats per token: below this difference between the best and the worst candidate an example has no preference."""


def held_out_gains(
    gains: Mapping[str, DoubleArray], tokens_E: IntArray, documents_E: Sequence[str]
) -> dict[str, Estimate]:
    """Return the gain of each reading in nats a token, with its interval over documents, from nats by example."""
    document_E = np.unique(documents_E, return_inverse=True)[1]
    counts_U = np.bincount(document_E, tokens_E)
    return {
        name: estimate(Units(Units.of(gain_E, document_E).sums_U, counts_U), "mean") for name, gain_E in gains.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class ReadCandidates:
    """Log-probabilities of continuations after candidates (E x K x T) and scores (E x K; -inf is padding), float64."""

    log_probs_EKT: DoubleArray
    scores_EK: DoubleArray

    def first_ET(self) -> DoubleArray:
        """Return the log-probabilities after the candidate with the highest score."""
        return np.take_along_axis(self.log_probs_EKT, self.scores_EK.argmax(axis=1)[:, None, None], axis=1)[:, 0]

    def ensemble_ET(self, temperature: float) -> DoubleArray:
        """Return the log-probabilities of the ensemble of all candidates."""
        weights = (similarity_log_weights(scores_K, temperature) for scores_K in self.scores_EK)
        return np.stack([mix(*both) for both in zip(self.log_probs_EKT, weights, strict=True)])

    def best_temperature(self, count: int) -> float:
        """Return the temperature at which the first `count` examples are most likely."""
        first = ReadCandidates(self.log_probs_EKT[:count], self.scores_EK[:count])
        spread = float(first.scores_EK[np.isfinite(first.scores_EK)].std()) or 1.0
        return max(
            (spread * _TEMPERATURES).tolist(), key=lambda temperature: float(first.ensemble_ET(temperature).sum())
        )


def encoder_gains(
    alone_ET: DoubleArray, before: ReadCandidates, after: ReadCandidates, tokens_E: IntArray, tested: Sequence[str]
) -> dict[str, JsonValue] | None:
    """Return what an encoder's passages, the `first` or the `ensemble`, gain over none before and after training.

    The last examples, of the documents `tested`, are tested; those before choose temperatures. None if there are none
    before, or the tested ones are of one document.
    """
    chosen = len(tokens_E) - len(tested)
    if not chosen or len({*tested}) < 2:
        return None
    temperatures = [read.best_temperature(chosen) for read in (before, after)]
    pairs = zip((before, after), temperatures, strict=True)
    ensembles = (read.ensemble_ET(temperature) for read, temperature in pairs)
    gained: dict[str, DoubleArray] = {}
    for name, readings in {"first": (before.first_ET(), after.first_ET()), "ensemble": ensembles}.items():
        old_E, new_E = ((read_ET - alone_ET)[chosen:].sum(axis=1) for read_ET in readings)
        gained |= {f"{name}_before": old_E, name: new_E, f"{name}_change": new_E - old_E}
    return _as_json(gained, tokens_E[chosen:], tested, temperature_before=temperatures[0], temperature=temperatures[1])


def reranker_gains(
    signals: "Signals", examples_E: IntArray, before_E: IntArray, chosen_E: IntArray
) -> dict[str, JsonValue] | None:
    """Return what the candidates chosen `before` a training and after it (`chosen`), by columns, gain over the `first`.

    The `best` is compared with it too, and the first with no passage. None if the examples are of one document.
    """
    documents = [signals.documents_E[example] for example in examples_E.tolist()]
    if len({*documents}) < 2:
        return None
    log_probs_EK, rows_E = signals.log_probs_EK[examples_E], np.arange(len(examples_E))
    first_E, old_E, new_E = log_probs_EK[:, 0], log_probs_EK[rows_E, before_E], log_probs_EK[rows_E, chosen_E]
    gained = {
        "first": first_E - signals.baseline_E[examples_E],
        "before": old_E - first_E,
        "chosen": new_E - first_E,
        "best": log_probs_EK.max(axis=1) - first_E,
        "change": new_E - old_E,
    }
    return _as_json(gained, signals.tokens_E[examples_E], documents)


def _as_json(
    gained: Mapping[str, DoubleArray], tokens_E: IntArray, documents: Sequence[str], **more: float
) -> dict[str, JsonValue]:
    gains = held_out_gains(gained, tokens_E, documents)
    counts = {"examples": len(documents), "documents": len({*documents})}
    return {**counts, **more, **{name: asdict(gain) for name, gain in gains.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalStatistics:
    """What choosing among the candidates can gain over no passage, in nats per token.

    `first`: the retriever's first candidate; `random`: the mean of all; `best`: the best for each example. `examples`
    counts those with two candidates or more, `single` those with fewer, `impossible` those in which a token has no
    probability, `no_preference` those whose candidates differ by less than 0.01 nats per token.
    """

    examples: int
    single: int
    impossible: int
    first: Estimate
    random: Estimate
    best: Estimate
    no_preference: int


def signal_statistics(signals: "Signals") -> SignalStatistics:
    """Return what choosing among the candidates of signals can gain (`SignalStatistics`)."""
    there_EK = signals.passages_EK != NO_PASSAGE
    several_E, possible_E = signals.has_choice_E, signals.is_possible_E
    used_E = several_E & possible_E
    there_EK, tokens_E = there_EK[used_E], signals.tokens_E[used_E]
    total_EK = np.where(there_EK, signals.log_probs_EK[used_E], -np.inf)
    mean_EK = total_EK / tokens_E[:, None]
    counts_E = there_EK.sum(axis=1)
    gain_EK = total_EK - signals.baseline_E[used_E][:, None]
    lowest_E = np.where(there_EK, mean_EK, np.inf).min(axis=1, initial=np.inf)
    random_E = np.where(there_EK, gain_EK, 0).sum(axis=1) / np.maximum(counts_E, 1)
    gained = {"first": gain_EK[:, 0], "random": random_E, "best": gain_EK.max(axis=1, initial=-np.inf)}
    return SignalStatistics(
        examples=int(used_E.sum()),
        single=int((~several_E).sum()),
        impossible=int((several_E & ~possible_E).sum()),
        **held_out_gains(gained, tokens_E, np.array(signals.documents_E)[used_E].tolist()),
        no_preference=int((mean_EK.max(axis=1, initial=-np.inf) - lowest_E < _NO_PREFERENCE).sum()),
    )
