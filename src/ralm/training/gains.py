"""What rerankers and encoders gain on held-out documents.

Letters of shapes: E examples, K candidates, T tokens of a continuation, R readings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc

from ralm.evaluation.bootstrap import bootstrap_means, interval, sums_of_units
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.records import DoubleArray, IntArray
from ralm.training.options import TrainingOptions
from ralm.training.signals import Signals, evenly_spaced, split_documents

_TEMPERATURES: Final = 2.0 ** (np.arange(-10, 11) / 2)
"""Temperatures that are tried, in standard deviations of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutGain:
    """A gain on held-out examples in nats a token, with the 95% interval of a paired bootstrap over documents."""

    gain: float
    low: float
    high: float


def held_out_gains(gains_ER: DoubleArray, tokens_E: IntArray, document_E: IntArray, seed: int) -> Sequence[HeldOutGain]:
    """The gain of each reading, given the nats that it gains on each example, the tokens of the example, and the number
    of its document (from 0)."""
    sums_UR, counts_U = sums_of_units(gains_ER, document_E), np.bincount(document_E, tokens_E)
    draws_DR = bootstrap_means(sums_UR, counts_U, seed=seed)
    means = (sums_UR.sum(axis=0) / counts_U.sum()).tolist()
    return [
        HeldOutGain(gain=gain, low=low, high=high)
        for gain, (low, high) in zip(means, map(interval, draws_DR.T), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderGains:
    """What the passages that an encoder finds gain on held-out documents, in nats a token over no passage: its first
    candidate, and the ensemble of all at the temperature that is best for other held-out documents; before the training
    and after it. The changes are paired."""

    examples: int
    documents: int
    temperature_before: float
    temperature: float
    first_before: HeldOutGain
    first: HeldOutGain
    first_change: HeldOutGain
    ensemble_before: HeldOutGain
    ensemble: HeldOutGain
    ensemble_change: HeldOutGain


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerGains:
    """What the choice of a reranker gains on held-out documents, in nats a token: the retriever's first candidate over
    no passage (`first`); over this first one, the choice `before` the training, by what is known without it, the choice
    after it (`chosen`), and the `best` candidate; and the choice after over the one before (`change`)."""

    examples: int
    documents: int
    first: HeldOutGain
    before: HeldOutGain
    chosen: HeldOutGain
    best: HeldOutGain
    change: HeldOutGain


@dataclass(frozen=True, slots=True, eq=False)
class ReadCandidates:
    """The log-probabilities of continuations after each candidate (E x K x T), and an encoder's scores (E x K; -inf
    where there is no candidate), float64."""

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
    return evenly_spaced(halves[0], options.evaluated), evenly_spaced(halves[1], max(options.evaluated, most_tested))


def encoder_gains(
    alone_ET: DoubleArray,
    before: ReadCandidates,
    after: ReadCandidates,
    tokens_E: IntArray,
    documents: Sequence[str],
    chosen: int,
) -> EncoderGains | None:
    """The gains of an encoder before and after its training, given the log-probabilities without a passage too. The
    first `chosen` examples choose temperatures, the others are tested; None if these are of one document."""
    document_E = np.unique(documents[chosen:], return_inverse=True)[1]
    if not chosen or len(set(document_E.tolist())) < 2:
        return None
    temperatures = [one.best_temperature(chosen) for one in (before, after)]
    readings = [before.first_ET(), after.first_ET()]
    readings += [one.ensemble_ET(temperature) for one, temperature in zip((before, after), temperatures, strict=True)]
    gains_ER = np.stack([(one - alone_ET)[chosen:].sum(axis=1) for one in readings], axis=1)
    changes_ER = gains_ER[:, [1, 3]] - gains_ER[:, [0, 2]]
    gains = held_out_gains(np.hstack([gains_ER, changes_ER]), tokens_E[chosen:], document_E, 0)
    names = ("first_before", "first", "ensemble_before", "ensemble", "first_change", "ensemble_change")
    return EncoderGains(
        examples=len(document_E),
        documents=int(document_E.max()) + 1,
        temperature_before=temperatures[0],
        temperature=temperatures[1],
        **dict(zip(names, gains, strict=True)),
    )


def reranker_gains(
    signals: Signals, examples_E: IntArray, before_E: IntArray, chosen_E: IntArray
) -> RerankerGains | None:
    """The gains of the candidates of examples, by their columns, that are chosen before a training and after it; None
    if the examples are of fewer than two documents."""
    document_E = np.unique([signals.documents_E[example] for example in examples_E.tolist()], return_inverse=True)[1]
    if len(set(document_E.tolist())) < 2:
        return None
    log_probs_EK, rows_E = signals.log_probs_EK[examples_E], np.arange(len(examples_E))
    first_E, old_E, new_E = log_probs_EK[:, 0], log_probs_EK[rows_E, before_E], log_probs_EK[rows_E, chosen_E]
    gains = [first_E - signals.baseline_E[examples_E], old_E - first_E, new_E - first_E]
    gains += [log_probs_EK.max(axis=1) - first_E, new_E - old_E]
    read = held_out_gains(np.stack(gains, axis=1), signals.tokens_E[examples_E], document_E, 0)
    named = dict(zip(("first", "before", "chosen", "best", "change"), read, strict=True))
    return RerankerGains(examples=len(examples_E), documents=int(document_E.max()) + 1, **named)


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
