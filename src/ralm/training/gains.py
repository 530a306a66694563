"""What rerankers and encoders gain on held-out documents.

Letters of shapes: E examples, K candidates, T tokens of a continuation, R readings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc
from pydantic import JsonValue

from ralm.evaluation.intervals import Estimate, Units, estimate
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.records import DoubleArray, IntArray
from ralm.training.options import TrainingOptions
from ralm.training.signals import Signals, split_documents, spread

_TEMPERATURES: Final = 2.0 ** (np.arange(-10, 11) / 2)
"""Temperatures that are tried, in standard deviations of the scores."""


def held_out_gains(
    gains: Mapping[str, DoubleArray], tokens_E: IntArray, documents_E: Sequence[str]
) -> dict[str, Estimate]:
    """Return the gain of each reading in nats a token by its name, with its interval over documents, from the nats that
    it gains on each example, the tokens of the examples, and the documents that they are from."""
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
        """The log-probabilities after the candidate with the highest score."""
        return np.take_along_axis(self.log_probs_EKT, self.scores_EK.argmax(axis=1)[:, None, None], axis=1)[:, 0]

    def ensemble_ET(self, temperature: float) -> DoubleArray:
        """The log-probabilities of the ensemble of all candidates."""
        return np.stack(
            [
                mix(log_probs_KT, similarity_log_weights(scores_K, temperature))
                for log_probs_KT, scores_K in zip(self.log_probs_EKT, self.scores_EK, strict=True)
            ]
        )

    def best_temperature(self, count: int) -> float:
        """The temperature at which the first examples, so many, are most likely."""
        some = ReadCandidates(self.log_probs_EKT[:count], self.scores_EK[:count])
        spread = float(some.scores_EK[np.isfinite(some.scores_EK)].std()) or 1.0
        return max((spread * _TEMPERATURES).tolist(), key=lambda one: float(some.ensemble_ET(one).sum()))


def held_out_halves(
    documents_E: Sequence[str], held_out_E: IntArray, options: TrainingOptions, most_tested: int = 0
) -> tuple[IntArray, IntArray]:
    """The held-out examples that say when to stop and choose temperatures, and those that say what was gained: of
    halves of the documents, at most as many as an evaluation reads, and as `most_tested` if that is more."""
    halves = held_out_E, held_out_E[:0]
    if len(held_out_E) > 1:
        split = split_documents([documents_E[example] for example in held_out_E.tolist()], 0.5, options.seed + 1)
        halves = held_out_E[split[0]], held_out_E[split[1]]
    most = options.evaluated, max(options.evaluated, most_tested)
    return spread(halves[0], documents_E, most[0]), spread(halves[1], documents_E, most[1])


def encoder_gains(
    alone_ET: DoubleArray,
    before: ReadCandidates,
    after: ReadCandidates,
    tokens_E: IntArray,
    documents: Sequence[str],
    chosen: int,
) -> dict[str, JsonValue] | None:
    """Return what the passages that an encoder finds gain over no passage, before its training and after it, and the
    change: its `first` candidate, and the `ensemble` of all. The first `chosen` examples choose temperatures, the
    others are tested; None if these are of one document."""
    tested = documents[chosen:]
    if not chosen or len({*tested}) < 2:
        return None
    temperatures = [one.best_temperature(chosen) for one in (before, after)]
    ensembles = (one.ensemble_ET(temperature) for one, temperature in zip((before, after), temperatures, strict=True))
    gained: dict[str, DoubleArray] = {}
    for name, readings in {"first": (before.first_ET(), after.first_ET()), "ensemble": ensembles}.items():
        old_E, new_E = ((read_ET - alone_ET)[chosen:].sum(axis=1) for read_ET in readings)
        gained |= {f"{name}_before": old_E, name: new_E, f"{name}_change": new_E - old_E}
    return _as_json(gained, tokens_E[chosen:], tested, temperature_before=temperatures[0], temperature=temperatures[1])


def reranker_gains(
    signals: Signals, examples_E: IntArray, before_E: IntArray, chosen_E: IntArray
) -> dict[str, JsonValue] | None:
    """Return what the candidates gain that are chosen (by their columns) before a training and after it (`chosen`) over
    the `first` one, which is compared with no passage, and the `best`; None if the examples are of one document."""
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


def token_log_probs(signals: Signals, examples_E: IntArray) -> tuple[DoubleArray, DoubleArray]:
    """The log-probability of each token of the continuations of examples in any order: without a passage (E x T), and
    after each candidate (E x K x T); 0 after the last token of a shorter one."""
    order_E = np.argsort(examples_E)
    table = signals.candidates(examples_E)
    row_R = np.searchsorted(examples_E[order_E], table["example"].to_numpy())
    column_R = np.arange(len(table)) - np.searchsorted(row_R, row_R)
    counts_R = pc.list_value_length(table["log_probs"]).to_numpy()
    width = int(counts_R.max(initial=1))
    read_EKT = np.zeros((len(examples_E), signals.width + 1, width))
    tokens_RT = np.zeros((len(table), width))
    tokens_RT[np.arange(width) < counts_R[:, None]] = pc.list_flatten(table["log_probs"]).to_numpy()
    read_EKT[order_E[row_R], column_R] = tokens_RT
    return read_EKT[:, 0], read_EKT[:, 1:]
