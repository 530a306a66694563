"""Whether the passages of a corpus help a language model: the verdict, and the figures behind it.

Units are measured until the verdict is certain (`ralm.advice.sequential`), the budget is used up, or no unit is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.advice.held_out import SEQUENCE, HeldOut, WorthOptions
from ralm.advice.measure import ALL, DENSE, FIRST, MeasuredUnit, Measuring, Meter
from ralm.advice.sequential import looks, repeated_interval, spending_bounds, units_needed
from ralm.errors import BudgetError, UsageError
from ralm.evaluation.intervals import MIN_UNITS, Estimate, Units, estimate
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.tokens import PassageDocuments
from ralm.retrieval.index import Index
from ralm.terminal import progress_bar
from ralm.validation import scores_given_texts

WorthVerdict = Literal["helps", "near duplicates", "no difference", "open", "harms"]
Stopped = Literal["certain", "budget", "measured"]

_NEGLIGIBLE: Final = 0.01
"""Nats per token: if the whole interval is nearer to 0, there is no difference that matters."""
_MOST_OF_IT: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The verdict on a corpus, and the gain of each reading in nats a token.

    `gain` is that of the first passage that is no near duplicate, `with_duplicates` that of the first of all. Both have
    intervals that hold together, over all looks; the others of `readings` have 95% intervals over units. None of fewer
    than ten units has an interval. `needed` is how many units would decide an open verdict. `with_passage` is the share
    of strides for which a first passage was found, `near_duplicates` their part of the gain of all passages.
    """

    lm: str
    text: str
    noun: str
    most: int
    of_corpus: bool
    retriever: str
    verdict: WorthVerdict
    stopped: Stopped
    readings: Mapping[str, Estimate]
    with_passage: float
    near_duplicates: float | None
    needed: int | None
    copied: int
    skipped: int

    @property
    def gain(self) -> Estimate:
        """The gain of the first passage that is no near duplicate."""
        return self.readings[FIRST]

    @property
    def with_duplicates(self) -> Estimate:
        """The gain of the first of all passages."""
        return self.readings[ALL]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        gain, units = self.gain, f"{self.gain.units:,} {self.noun}"
        if self.verdict == "near duplicates":
            other = self.with_duplicates
            return (
                f"The corpus helps by near duplicates alone: by {other.low:.3f} to {other.high:.3f} nats a token with "
                f"them, and {_reach(gain)} without ({units})."
            )
        if gain.low is None or gain.high is None:
            few = gain.units < MIN_UNITS
            why = f"too few {self.noun} for an interval" if few else "all gain the same, which gives no interval"
            return f"No verdict: {why} ({gain.units:,}). The gain is {gain.value:+.3f} nats a token."
        reach = f"{_reach(gain)} nats a token"
        if self.verdict == "helps":
            others = ""
            if self.near_duplicates is not None and self.near_duplicates > _MOST_OF_IT:
                others = f", without near duplicates, which give {self.near_duplicates:.0%} of what all passages gain"
            return f"The corpus helps: by {gain.low:.3f} to {gain.high:.3f} nats a token ({units}){others}."
        if self.verdict == "harms":
            return f"The corpus harms: by {-gain.high:.3f} to {-gain.low:.3f} nats a token ({units})."
        if self.verdict == "no difference":
            return f"The corpus makes no difference above {_NEGLIGIBLE} nats a token: {reach} ({units})."
        more = "" if self.needed is None else f"; a gain of this size would need about {self.needed:,} {self.noun}"
        ended = " when the budget ended" if self.stopped == "budget" else ""
        return f"No difference can be shown{ended}: {reach} ({units}){more}."

    def as_json(self) -> dict[str, JsonValue]:
        """All figures, and the sentence."""
        return {"sentence": self.sentence, **asdict(self)}


def _reach(gain: Estimate) -> str:
    """The ends of an interval, or the gain where it has none."""
    return f"{gain.value:+.3f}" if gain.low is None else f"{gain.low:+.3f} to {gain.high:+.3f}"


def open_meter(index: Index, model: LanguageModel, options: WorthOptions) -> Meter:
    """Measures with BM25, and with dense retrieval if the index has vectors."""
    if not scores_given_texts(model):
        raise UsageError(
            f"{model.name} does not score given texts, so no gain can be measured: give a model that does "
            "(`ralm probe` says what a server can)."
        )
    if options.document_tokens + SEQUENCE > model.max_length:
        raise UsageError(
            f"`document_tokens` {options.document_tokens} and {SEQUENCE} tokens of text do not fit together into the "
            f"{model.max_length} that {model.name} can read: lower it, or give another model."
        )
    has_bm25 = index.bm25_options is not None
    others = {DENSE: index.dense()} if has_bm25 and index.vectors else {}
    scorer = Scorer(model, progress=False)
    documents = PassageDocuments(index.passages, scorer.tokenizer, options.document_tokens, "auto")
    return Meter(index.passages, documents, index.bm25 if has_bm25 else index.dense(), others, scorer, options)


def judge_corpus(index: Index, model: LanguageModel, held_out: HeldOut, options: WorthOptions | None = None) -> Worth:
    """Measure units until the verdict is certain, the budget is used up, or all are measured.

    Raises UsageError if the model does not score given texts or no unit is long enough, BudgetError if the budget ends
    before a unit is measured.
    """
    options = options or WorthOptions()
    measuring = Measuring(open_meter(index, model, options), held_out, options.budget)
    stopped = _measure(measuring, held_out.most)
    measured = measuring.measured
    if not measured and stopped == "budget":
        raise BudgetError(f"the budget ended before any of the {held_out.noun} was measured: raise it.")
    if not measured:
        raise UsageError(
            f"{held_out.description} has no {held_out.noun} that are long enough: give longer ones, or lower "
            "`prefix_tokens`."
        )
    verdict, gain, with_duplicates = judge_units(measured, held_out.most, last=stopped != "certain")
    others = dict.fromkeys(chain.from_iterable(unit.gains for unit in measured))
    return Worth(
        lm=model.name,
        text=held_out.description,
        noun=held_out.noun,
        most=held_out.most,
        of_corpus=held_out.of_corpus,
        retriever="BM25" if index.bm25_options is not None else "dense",
        verdict=verdict,
        stopped=stopped,
        readings={name: estimate(_gains(measured, name), "mean") for name in others}
        | {FIRST: gain, ALL: with_duplicates},
        with_passage=sum(unit.with_passage for unit in measured) / sum(unit.strides for unit in measured),
        near_duplicates=max(0.0, 1 - gain.value / with_duplicates.value) if with_duplicates.is_above else None,
        needed=units_needed(_gains(measured, FIRST), held_out.most) if verdict == "open" and gain.ends else None,
        copied=sum(unit.has_copy for unit in measured),
        skipped=measuring.skipped,
    )


def _measure(measuring: Measuring, most: int) -> Stopped:
    """Measure until the verdict is certain, then the other readings; return why no more units are measured."""
    stopped: Stopped = "measured"
    with progress_bar("Measuring", total=most) as advance:
        for look in looks(most):
            if stop := measuring.until(look, advance):
                stopped = stop
                break
            _, gain, _ = judge_units(measuring.measured, most)
            if _verdict(gain) != "open":
                stopped = "certain"
                break
    with progress_bar("Reading other passages", total=2 * len(measuring.measured)) as advance:
        measuring.read_others(advance)
    return stopped


def judge_units(
    measured: Sequence[MeasuredUnit], most: int, *, last: bool = False
) -> tuple[WorthVerdict, Estimate, Estimate]:
    """Return the verdict after these of at most so many units, and the gains without near duplicates and with them; the
    `last` look spends what is left of the level."""
    bound = _bound(len(measured), most, last=last)
    gain, with_duplicates = (repeated_interval(_gains(measured, name), bound) for name in (FIRST, ALL))
    return _verdict(gain, with_duplicates), gain, with_duplicates


@cache
def _bound(units: int, most: int, *, last: bool) -> float:
    """Return the bound of the standardised mean after so many units."""
    return spending_bounds([*(look for look in looks(most) if look < units), units], most, last=last)[-1]


def _verdict(gain: Estimate, with_duplicates: Estimate | None = None) -> WorthVerdict:
    if gain.is_above:
        return "helps"
    if gain.is_below:
        return "harms"
    if with_duplicates is not None and with_duplicates.is_above:
        return "near duplicates"
    if gain.low is None or gain.high is None:
        return "open"
    return "no difference" if max(-gain.low, gain.high) < _NEGLIGIBLE else "open"


def _gains(measured: Sequence[MeasuredUnit], name: str) -> Units:
    """The gain and the tokens of each unit that has the reading."""
    sums = [unit.gains[name] for unit in measured if name in unit.gains]
    nats_U, tokens_U = np.array(sums, dtype=np.float64).reshape(-1, 2).T
    return Units(nats_U, tokens_U)
