"""Whether the passages of a corpus help a language model: the verdict, and the figures behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np

from ralm.errors import BudgetError, UsageError
from ralm.evaluation.intervals import MIN_UNITS, Estimate, Units
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.tokens import PassageDocuments
from ralm.retrieval.index import Index
from ralm.terminal import track
from ralm.training.candidates import check_fits
from ralm.validation import scores_given_texts
from ralm.worth.held_out import SEQUENCE, HeldOut, WorthOptions
from ralm.worth.measure import MeasuredUnit, Meter, measure_units
from ralm.worth.sequential import looks, repeated_interval, spending_bounds

WorthVerdict = Literal["helps", "near duplicates", "no difference", "open", "harms"]
Stopped = Literal["certain", "budget", "measured"]

_NEGLIGIBLE: Final = 0.01
"""Nats per token: if the whole interval is nearer to 0, there is no difference that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The verdict on a corpus, and its gains in nats a token.

    `gain` is that of the first passage that is no near duplicate, `with_duplicates` that of the first of all. Their
    intervals hold together, over all looks; fewer than ten units have none. `with_passage` is the share of tokens with
    a first passage, `near_duplicates` their part of the gain of all passages, `duplicated` how many units have some.
    """

    verdict: WorthVerdict
    gain: Estimate
    with_duplicates: Estimate
    noun: str
    most: int
    stopped: Stopped
    with_passage: float
    near_duplicates: float | None
    duplicated: int

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        gain, other, units = self.gain, self.with_duplicates, f"{self.gain.units:,} {self.noun}"
        if self.verdict == "near duplicates":
            reach = f"{other.low:.3f} to {other.high:.3f}"
            return f"The corpus helps by near duplicates alone: by {reach} nats a token with them ({units})."
        if gain.low is None or gain.high is None:
            few = gain.units < MIN_UNITS
            why = f"too few {self.noun} for an interval" if few else "all gain the same, which gives no interval"
            return f"No verdict: {why} ({gain.units:,}). The gain is {gain.value:+.3f} nats a token."
        if self.verdict == "helps":
            return f"The corpus helps: by {gain.low:.3f} to {gain.high:.3f} nats a token ({units})."
        if self.verdict == "harms":
            return f"The corpus harms: by {-gain.high:.3f} to {-gain.low:.3f} nats a token ({units})."
        reach = f"{gain.low:+.3f} to {gain.high:+.3f} nats a token ({units})"
        if self.verdict == "no difference":
            return f"The corpus makes no difference above {_NEGLIGIBLE} nats a token: {reach}."
        ended = " when the budget ended" if self.stopped == "budget" else ""
        return f"No difference can be shown{ended}: {reach}."


def open_meter(index: Index, model: LanguageModel, options: WorthOptions) -> Meter:
    """Return a meter with BM25, or with dense retrieval if the index has vectors alone."""
    if not scores_given_texts(model):
        raise UsageError(
            f"{model.name} does not score given texts, so no gain can be measured: give a model that does "
            "(`ralm probe` says what a server can)."
        )
    check_fits(model, SEQUENCE, options.document_tokens)
    documents = PassageDocuments(index.passages, model.tokenizer, options.document_tokens, "auto")
    retriever = index.dense() if index.bm25_options is None else index.bm25
    return Meter(index.passages, documents, retriever, Scorer(model, progress=False))


def judge_corpus(index: Index, model: LanguageModel, held_out: HeldOut, options: WorthOptions) -> Worth:
    """Measure units until the verdict is certain, the budget is used up, or all are measured.

    Raises:
        UsageError: The model does not score given texts, or no unit is long enough.
        BudgetError: The budget ends before a unit is measured.
    """
    meter, most = open_meter(index, model, options), held_out.most
    measured: list[MeasuredUnit] = []
    stopped: Stopped = "measured"
    try:
        for unit in track(measure_units(meter, held_out, options.budget), "Measuring", most):
            measured.append(unit)
            if len(measured) in looks(most) and _verdict(judge_units(measured, most)[1]) != "open":
                stopped = "certain"
                break
    except BudgetError:
        stopped = "budget"
    if not measured and stopped == "budget":
        raise BudgetError(f"the budget ended before any of the {held_out.noun} was measured: raise it.")
    if not measured:
        raise UsageError(
            f"{held_out.description} has no {held_out.noun} that are long enough: give longer ones, or lower "
            "`prefix_tokens`."
        )
    verdict, gain, with_duplicates = judge_units(measured, most, last=stopped != "certain")
    return Worth(
        verdict=verdict,
        gain=gain,
        with_duplicates=with_duplicates,
        noun=held_out.noun,
        most=most,
        stopped=stopped,
        with_passage=sum(unit.with_passage for unit in measured) / sum(unit.tokens for unit in measured),
        near_duplicates=max(0.0, 1 - gain.value / with_duplicates.value) if with_duplicates.is_above else None,
        duplicated=sum(unit.is_duplicated for unit in measured),
    )


def judge_units(
    measured: Sequence[MeasuredUnit], most: int, *, last: bool = False
) -> tuple[WorthVerdict, Estimate, Estimate]:
    """Return the verdict, and the gains without near duplicates and with them; the `last` look spends the level."""
    bound = _bound(len(measured), most, last=last)
    gain, with_duplicates = (repeated_interval(gains, bound) for gains in _gains(measured))
    return _verdict(gain, with_duplicates), gain, with_duplicates


@cache
def _bound(units: int, most: int, *, last: bool) -> float:
    return spending_bounds([*(look for look in looks(most) if look < units), units], most, last=last)[-1]


def _verdict(gain: Estimate, with_duplicates: Estimate | None = None) -> WorthVerdict:
    if gain.is_above:
        return "helps"
    if gain.is_below:
        return "harms"
    if with_duplicates is not None and with_duplicates.is_above:
        return "near duplicates"
    return "no difference" if gain.ends and max(map(abs, gain.ends)) < _NEGLIGIBLE else "open"


def _gains(measured: Sequence[MeasuredUnit]) -> list[Units]:
    rows = [(unit.tokens, unit.gain, unit.with_duplicates) for unit in measured]
    tokens_U, *gains = np.array(rows, dtype=np.float64).T
    return [Units(gains_U, tokens_U) for gains_U in gains]
