"""What choosing among the candidates of signals can gain.

Letters of shapes: E examples, K candidates, T tokens of a continuation.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ralm.evaluation.intervals import Estimate
from ralm.records import NO_PASSAGE, IntArray
from ralm.training.gains import held_out_gains, token_log_probs
from ralm.training.signals import Signals

_NO_PREFERENCE: Final = 0.01
"""Nats per token: below this difference between the best and the worst candidate an example has no preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfGains:
    """Mean gains over no passage on the second halves of continuations: of the first candidate, of the one that is best
    for the first half, and of the best for the second half itself. The second is what a reranker can attain that knows
    the text before perfectly; the last one also profits from chance."""

    first: Estimate
    attainable: Estimate
    best: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalStatistics:
    """What choosing among the candidates can gain. Gains are in nats per token over reading no passage, with intervals
    over documents.

    `first`: the retriever's first candidate; `random`: the mean of all candidates; `best`: the best for each example.
    `examples` counts those with two candidates or more, of which the others are means; `single` counts those with
    fewer, `impossible` those in which the language model gives a token no probability. `no_preference` counts examples
    whose candidates differ by less than 0.01 nats per token. `halves`:
    the gains on the second half of each continuation, None if one has a single token.
    """

    examples: int
    single: int
    impossible: int
    first: Estimate
    random: Estimate
    best: Estimate
    no_preference: int
    halves: HalfGains | None


def signal_statistics(signals: Signals) -> SignalStatistics:
    """The statistics of some signals."""
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
    used = np.flatnonzero(used_E)
    gained = {"first": gain_EK[:, 0], "random": random_E, "best": gain_EK.max(axis=1, initial=-np.inf)}
    return SignalStatistics(
        examples=int(used_E.sum()),
        single=int((~several_E).sum()),
        impossible=int((several_E & ~possible_E).sum()),
        **held_out_gains(gained, tokens_E, [signals.documents_E[example] for example in used.tolist()]),
        no_preference=int((mean_EK.max(axis=1, initial=-np.inf) - lowest_E < _NO_PREFERENCE).sum()),
        halves=_half_gains(signals, used),
    )


def _half_gains(signals: Signals, examples_E: IntArray) -> HalfGains | None:
    """The gains on second halves of some examples (rising)."""
    tokens_E = signals.tokens_E[examples_E]
    if not len(examples_E) or tokens_E.min() < 2:
        return None
    alone_ET, log_probs_EKT = token_log_probs(signals, examples_E)
    is_early_ET = np.arange(alone_ET.shape[1]) < tokens_E[:, None] // 2
    there_EK = signals.passages_EK[examples_E] != NO_PASSAGE
    early_EK = np.where(there_EK, log_probs_EKT.sum(axis=2, where=is_early_ET[:, None]), -np.inf)
    late_EK = np.where(there_EK, log_probs_EKT.sum(axis=2, where=~is_early_ET[:, None]), -np.inf)
    late_EK -= alone_ET.sum(axis=1, where=~is_early_ET)[:, None]
    attained_E = np.take_along_axis(late_EK, early_EK.argmax(axis=1)[:, None], axis=1)[:, 0]
    gained = {"first": late_EK[:, 0], "attainable": attained_E, "best": late_EK.max(axis=1)}
    documents = [signals.documents_E[example] for example in examples_E.tolist()]
    return HalfGains(**held_out_gains(gained, tokens_E - tokens_E // 2, documents))
