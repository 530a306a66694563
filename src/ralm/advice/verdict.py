"""Whether the passages of a corpus help a language model: the verdict, and the figures behind it.

Units are measured until the verdict is certain (`ralm.advice.sequential`), the budget is used up, or no unit is left.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.advice.held_out import SEQUENCE, STANDS_IN, HeldOut, WorthOptions
from ralm.advice.measure import ALL, DENSE, FIRST, Cost, MeasuredUnit, Measuring, Meter, Sum
from ralm.advice.sequential import FIRST_LOOK, SequentialGain, looks, sequential_gain, spending_bounds
from ralm.errors import BudgetError, UsageError
from ralm.evaluation.intervals import Estimate, Units, estimate
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.tokens import PassageDocuments
from ralm.records import DoubleArray
from ralm.retrieval.index import Index
from ralm.terminal import progress_bar
from ralm.validation import scores_given_texts

WorthVerdict = Literal["helps", "near duplicates", "no difference", "open", "harms"]
Stopped = Literal["certain", "budget", "measured"]

_NEGLIGIBLE: Final = 0.01
"""Nats per token: if the whole interval is nearer to 0, there is no difference that matters."""
_MOST_OF_IT: Final = 0.5
_MOST_VALUES: Final = 12
_LISTED: Final = 8
_OVERLAPS: Final = (("no shared words", 0.0), ("up to 10%", 0.1), ("up to half", 0.5), ("more than half", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GainPart:
    """Gains of a part of the tokens: their share of all, and the mean gain with its interval."""

    name: str
    share: float
    gain: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPart:
    """Strides whose first passage shares so much with the unit, with their part of the gain per token of all."""

    name: str
    share: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentGain:
    """What a document of the corpus gained, in nats, as the first passage of so many strides."""

    document_id: str
    gain: float
    strides: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The verdict on a corpus: the `gain` per token of the first passage that is no near duplicate, with an interval
    that keeps its level over all looks. `readings` have 95% intervals over units."""

    lm: str
    text: str
    noun: str
    most: int
    given: bool
    retriever: str
    verdict: WorthVerdict
    stopped: Stopped
    gain: SequentialGain
    with_duplicates: SequentialGain
    near_duplicates: float | None
    needed: int | None
    readings: Mapping[str, Estimate]
    overlaps: Sequence[OverlapPart]
    kinds: Sequence[GainPart]
    metadata: Mapping[str, Sequence[GainPart]]
    documents: Sequence[DocumentGain]
    standing_in: int
    skipped: int
    cost: Cost

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        gain, units = self.gain, f"{self.gain.units:,} {self.noun}"
        reach = f"{gain.low:+.3f} to {gain.high:+.3f} nats a token"
        if self.verdict == "helps":
            others = ""
            if self.near_duplicates is not None and self.near_duplicates > _MOST_OF_IT:
                others = f", without near duplicates, which give {self.near_duplicates:.0%} of what all passages gain"
            return f"The corpus helps: by {gain.low:.3f} to {gain.high:.3f} nats a token ({units}){others}."
        if self.verdict == "harms":
            return f"The corpus harms: by {-gain.high:.3f} to {-gain.low:.3f} nats a token ({units})."
        if self.verdict == "near duplicates":
            other = self.with_duplicates
            return (
                f"The corpus helps by near duplicates alone: by {other.low:.3f} to {other.high:.3f} nats a token with "
                f"them, and {reach} without ({units})."
            )
        if self.verdict == "no difference":
            return f"The corpus makes no difference above {_NEGLIGIBLE} nats a token: {reach} ({units})."
        more = "" if self.needed is None else f"; a gain of this size would need about {self.needed:,} {self.noun}"
        ended = " when the budget ended" if self.stopped == "budget" else ""
        return f"No difference can be shown{ended}: {reach} ({units}){more}."

    def as_json(self) -> dict[str, JsonValue]:
        """All figures, and the sentence."""
        return {"sentence": self.sentence, **asdict(self)}


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

    Raises UsageError if the model does not score given texts or there are too few units, BudgetError if the budget ends
    before two units are measured.
    """
    options = options or WorthOptions()
    meter = open_meter(index, model, options)
    _check_enough(held_out, held_out.most)
    measuring = Measuring(meter, held_out, options.budget)
    stopped = _measure(measuring, held_out.most)
    measured = measuring.found
    if stopped != "budget":
        _check_enough(held_out, len(measured))
    elif len(measured) < 2:
        raise BudgetError(f"the budget ended before two {held_out.noun} were measured: raise it.")
    bound = _bound(len(measured), held_out.most, last=stopped != "certain")
    gain, with_duplicates = (sequential_gain(*_sums(measured, name), bound) for name in (FIRST, ALL))
    verdict = _verdict(gain, with_duplicates)
    return Worth(
        lm=model.name,
        text=held_out.description,
        noun=held_out.noun,
        most=held_out.most,
        given=held_out.given,
        retriever="BM25" if index.bm25_options is not None else "dense",
        verdict=verdict,
        stopped=stopped,
        gain=gain,
        with_duplicates=with_duplicates,
        near_duplicates=max(0.0, 1 - gain.gain / with_duplicates.gain) if with_duplicates.low > 0 else None,
        needed=gain.needed(held_out.most) if verdict == "open" else None,
        readings={
            name: _mean_gain([one.gains.get(name, (0.0, 0)) for one in measured])
            for name in dict.fromkeys(name for one in measured for name in one.gains)
        },
        overlaps=_overlaps(measured),
        kinds=_parts([one.kinds for one in measured], sum(one.gains[FIRST][1] for one in measured)),
        metadata=_by_metadata(measured),
        documents=_document_gains(measured),
        standing_in=sum(any(hit.overlap > STANDS_IN for hit in one.hits) for one in measured),
        skipped=measuring.skipped,
        cost=meter.cost,
    )


def _check_enough(held_out: HeldOut, count: int) -> None:
    """Raise UsageError if so few units allow no verdict."""
    if count < FIRST_LOOK:
        raise UsageError(
            f"{held_out.description} has {count:,} {held_out.noun} that are long enough, too few for any verdict: it "
            f"needs {FIRST_LOOK}."
        )


def _measure(measuring: Measuring, most: int) -> Stopped:
    """Measure until the verdict is certain; return why no more units are measured."""
    with progress_bar("Measuring", total=most) as advance:
        for look in looks(most):
            if stop := measuring.until(look, advance):
                return stop
            gain = sequential_gain(*_sums(measuring.found, FIRST), _bound(look, most))
            if gain.spread and _verdict(gain) != "open":  # equal units say nothing of a rare gain
                return "certain"
    return "measured"


def _bound(units: int, most: int, *, last: bool = False) -> float:
    """Return the bound of the standardised mean after so many units; the `last` look spends the whole level."""
    return spending_bounds([*(look for look in looks(most) if look < units), units], most, last=last)[-1]


def _verdict(gain: SequentialGain, with_duplicates: SequentialGain | None = None) -> WorthVerdict:
    if gain.low > 0:
        return "helps"
    if gain.high < 0:
        return "harms"
    if with_duplicates is not None and with_duplicates.low > 0:
        return "near duplicates"
    return "no difference" if max(-gain.low, gain.high) < _NEGLIGIBLE else "open"


def _sums(measured: Sequence[MeasuredUnit], name: str) -> tuple[DoubleArray, DoubleArray]:
    """The sums of gains and counts of tokens of each unit."""
    pairs = np.array([one.gains.get(name, (0.0, 0)) for one in measured], dtype=np.float64)
    return pairs[:, 0], pairs[:, 1]


def _mean_gain(pairs: Sequence[Sum]) -> Estimate:
    """The mean gain of units that have tokens, with its interval."""
    nats_U, tokens_U = np.array(pairs, dtype=np.float64).T
    return estimate(Units(nats_U, tokens_U), "mean")


def _parts(kinds: Sequence[Mapping[str, Sum]], total: int) -> list[GainPart]:
    """Gains by the names of parts of so many tokens, the most frequent first."""
    by_name: defaultdict[str, list[Sum]] = defaultdict(list)
    for own in kinds:
        for name, pair in own.items():
            by_name[name].append(pair)
    parts = [
        GainPart(name=name, share=sum(tokens for _, tokens in pairs) / total, gain=_mean_gain(pairs))
        for name, pairs in by_name.items()
    ]
    return sorted(parts, key=lambda part: -part.share)


def _by_metadata(measured: Sequence[MeasuredUnit]) -> dict[str, list[GainPart]]:
    """Gains by the values of each key of metadata with several values, not too many."""
    found, total = {}, sum(one.gains[FIRST][1] for one in measured)
    for key in dict.fromkeys(key for one in measured for key in one.metadata):
        values = [str(one.metadata.get(key, "")) for one in measured]
        if 1 < len({*values}) <= _MOST_VALUES:
            gains = [{value: one.gains[FIRST]} for value, one in zip(values, measured, strict=True)]
            found[key] = _parts(gains, total)
    return found


def _overlaps(measured: Sequence[MeasuredUnit]) -> list[OverlapPart]:
    """The gain of first passages by what they share with the unit."""
    hits = [hit for one in measured for hit in one.hits]
    tokens = sum(one.gains[ALL][1] for one in measured)
    parts, lowest = [], -1.0
    for name, highest in _OVERLAPS:
        some = [hit for hit in hits if lowest < hit.overlap <= highest]
        gain = sum(hit.gain for hit in some) / tokens
        parts.append(OverlapPart(name=name, share=len(some) / max(1, len(hits)), gain=gain))
        lowest = highest
    return parts


def _document_gains(measured: Sequence[MeasuredUnit]) -> list[DocumentGain]:
    """The documents of the corpus that gained most, then those that harmed most."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for one in measured:
        for hit in one.hits:
            sums[hit.document_id].append(hit.gain)
    rows = [DocumentGain(document_id=name, gain=sum(own), strides=len(own)) for name, own in sums.items()]
    rows.sort(key=lambda row: -row.gain)
    return [row for place, row in enumerate(rows) if place < _LISTED or place >= len(rows) - _LISTED]
