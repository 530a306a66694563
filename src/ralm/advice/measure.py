"""Measures what passages gain on held-out units, in nats over reading no passage.

Every example is read without a passage, with the retriever's first passage that is no near duplicate, with the first of
all passages, and with a random one; every fourth unit also with all candidates, for the best of them and an ensemble.

Letters of shapes: K candidates, T tokens of a continuation.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from ralm.advice.held_out import STANDS_IN, HeldOut, Unit, WorthOptions
from ralm.corpus.store import PassageStore
from ralm.errors import BudgetError
from ralm.lm.scoring import Scorer
from ralm.protocols import Retriever
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Hits
from ralm.retrieval.random import RandomRetriever
from ralm.terminal import Advance
from ralm.training.candidates import find_candidates, score_candidates
from ralm.training.examples import Example

FIRST: Final = "first passage"
ALL: Final = "first, near duplicates too"
DENSE: Final = "first of dense"
RANDOM: Final = "random passage"
BEST: Final = "best of {}"
ATTAINABLE: Final = "best of {}, knowing half"
ENSEMBLE: Final = "ensemble of {}"
_MORE: Final = 16
_AT_ONCE: Final = 4
_EVERY: Final = 4
_SAMPLED: Final = 4
"""Strides of such a unit that are read with all candidates."""
_LOWEST: Final = -100.0
"""Stands for the log-probability of an impossible token, so that all sums are finite."""

Sum: TypeAlias = tuple[float, int]
"""A sum of gains in nats, and the tokens that it is over."""


@dataclass(frozen=True, slots=True)
class HitGain:
    """The gain of the first of all passages, its document, and the share of its runs of 13 words in the unit."""

    document_id: str
    gain: float
    overlap: float


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredUnit:
    """The gains of a unit, by reading and by the kind of token, and its first hits."""

    metadata: Mapping[str, Any]
    gains: Mapping[str, Sum]
    kinds: Mapping[str, Sum]
    hits: Sequence[HitGain]


@dataclass(slots=True, eq=False)
class Cost:
    """Readings of strides so far, tokens of passages in them, and seconds without and with the first passage."""

    readings: int = 0
    passage_tokens: int = 0
    plain_seconds: float = 0.0
    passage_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Measures units with a retriever, and with others, by their names, over the passages of an index."""

    passages: PassageStore
    documents: PassageDocuments
    retriever: Retriever
    others: Mapping[str, Retriever]
    scorer: Scorer
    options: WorthOptions
    cost: Cost = field(default_factory=Cost)

    def measure(self, units: Sequence[Unit], first: int) -> list[MeasuredUnit]:
        """Return the gains of units, after `first` others: every fourth also with all candidates for some strides."""
        reads_of = [self._reads(unit, (first + place) % _EVERY == 0) for place, unit in enumerate(units)]
        examples, reads = [one for unit in units for one in unit.examples], [*chain(*reads_of)]
        begin = time.perf_counter()
        plain = score_candidates(examples, [[NO_PASSAGE]] * len(examples), self.documents, self.scorer)
        middle = time.perf_counter()
        firsts = [read.passages[FIRST] for read in reads]
        score_candidates(examples, [[number] for number in firsts], self.documents, self.scorer)
        self.cost.plain_seconds += middle - begin
        self.cost.passage_seconds += time.perf_counter() - middle
        self.cost.readings += len(examples)
        self.cost.passage_tokens += sum(len(self.documents[number]) - len(self.documents.first) for number in firsts)
        numbers_of = [read.numbers for read in reads]
        scored = score_candidates(examples, numbers_of, self.documents, self.scorer)
        gains = map(_gains, [base for [base] in plain], numbers_of, scored)
        return [
            self._unit_gains(unit, [(read, next(gains)) for read in of_unit])
            for unit, of_unit in zip(units, reads_of, strict=True)
        ]

    def _reads(self, unit: Unit, has_candidates: bool) -> list["_Read"]:
        def find(retriever: Retriever, count: int, examples: Sequence[Example] = unit.examples) -> Hits:
            return find_candidates(examples, unit.queries, retriever, self.passages, count, exclude=True)

        every = find(self.retriever, _MORE, [replace(one, runs=()) for one in unit.examples])
        copies = self._copies(unit, every)

        def find_clean(retriever: Retriever, count: int) -> list[list[tuple[int, float]]]:
            hits = find(retriever, count + (_MORE if copies else 0))
            rows = ([one for one in hits.of(row) if self._document(one[0]) not in copies] for row in range(len(hits)))
            return [row[:count] for row in rows]

        random = RandomRetriever(len(self.passages), self.options.seed)
        drawn = find_candidates(unit.examples[:1], [unit.name], random, self.passages, 1, exclude=True).of(0)
        clean = find_clean(self.retriever, self.options.candidates if has_candidates else 1)
        others = {name: find_clean(other, 1) for name, other in self.others.items()}
        return [
            _Read(
                {FIRST: _best(hits), ALL: _best(every.of(row)), RANDOM: _best(drawn)}
                | {name: _best(rows[row]) for name, rows in others.items()},
                hits if has_candidates and row < _SAMPLED else [],
            )
            for row, hits in enumerate(clean)
        ]

    def _document(self, number: int) -> str:
        return self.passages[number].document_id

    def _copies(self, unit: Unit, hits: Hits) -> set[str]:
        """Return the documents of which a passage stands in the unit: their other passages may go on with its text."""
        numbers = [number for number in np.unique(hits.numbers_QK).tolist() if number != NO_PASSAGE]
        overlap_of = {number: unit.overlap.overlap(self.passages[number].contents) for number in numbers}
        return {self._document(number) for number, overlap in overlap_of.items() if overlap > STANDS_IN}

    def _unit_gains(self, unit: Unit, rows: Sequence[tuple["_Read", Mapping[int, DoubleArray]]]) -> MeasuredUnit:
        sums: dict[str, Sum] = {}
        kinds: dict[str, Sum] = {}
        hits = []
        for row, (read, gain_of) in enumerate(rows):
            for name, number in read.passages.items():
                _add(sums, name, gain_of[number])
            first, every = read.passages[FIRST], read.passages[ALL]
            if every != NO_PASSAGE:
                overlap = unit.overlap.overlap(self.passages[every].contents)
                hits.append(HitGain(self._document(every), float(gain_of[every].sum()), overlap))
            self._add_kinds(kinds, unit, row, gain_of[first], first)
            if read.candidates:
                gains_KT = np.stack([gain_of[number] for number, _ in read.candidates])
                self._add_candidates(sums, gains_KT, np.array([score for _, score in read.candidates]))
        return MeasuredUnit(unit.metadata, sums, kinds, hits)

    def _add_candidates(self, sums: dict[str, Sum], gains_KT: DoubleArray, scores_K: DoubleArray) -> None:
        """What choosing among candidates gains, and reading several of them as an ensemble with similarity weights."""
        count, half = self.options.candidates, gains_KT.shape[1] // 2
        _add(sums, BEST.format(count), gains_KT[gains_KT.sum(axis=1).argmax()])
        if half:
            _add(sums, ATTAINABLE.format(count), gains_KT[gains_KT[:, :half].sum(axis=1).argmax(), half:])
        some_KT, scores_K = gains_KT[: self.options.documents], scores_K[: self.options.documents]
        mixed_T = mix(some_KT, similarity_log_weights(scores_K))
        _add(sums, ENSEMBLE.format(self.options.documents), mixed_T)

    def _add_kinds(self, kinds: dict[str, Sum], unit: Unit, row: int, gains_T: DoubleArray, passage: int) -> None:
        """Gains by kind of token, and by whether the passage holds the token."""
        tokens_T = unit.examples[row].continuation
        there = {*self.documents[passage].tolist()} if passage != NO_PASSAGE else set()
        for token, gain in zip(tokens_T.tolist(), gains_T, strict=True):
            text = self.scorer.tokenizer.decode(np.array([token]))
            for kind in (kind_of_token(text), "in the passage" if token in there else "not in the passage"):
                _add(kinds, kind, gain[None])


class Measuring:
    """Measures the units of a text in turn, for so many minutes (0: no limit); `skipped` ones were too short."""

    def __init__(self, meter: Meter, held_out: HeldOut, minutes: float) -> None:
        self.found: list[MeasuredUnit] = []
        self.skipped = 0
        self._meter = meter
        self._units = self._long_enough(held_out.units)
        self._ends = time.perf_counter() + 60 * minutes if minutes else math.inf

    def until(self, count: int, advance: Advance) -> Literal["measured", "budget"] | None:
        """Measure until there are so many units; why it stopped before."""
        while len(self.found) < count:
            if time.perf_counter() > self._ends:
                return "budget"
            units = [*islice(self._units, min(_AT_ONCE, count - len(self.found)))]
            if not units:
                return "measured"
            try:
                self.found += self._meter.measure(units, len(self.found))
            except BudgetError:
                return "budget"
            advance(len(units))
        return None

    def _long_enough(self, units: Iterator[Unit | None]) -> Iterator[Unit]:
        for unit in units:
            if unit is None:
                self.skipped += 1
            else:
                yield unit


class _Read(NamedTuple):
    """The passages that an example is read with, by reading, and the candidates for the best of them."""

    passages: Mapping[str, int]
    candidates: Sequence[tuple[int, float]]

    @property
    def numbers(self) -> list[int]:
        """The different passages."""
        numbers = dict.fromkeys([*self.passages.values(), *(number for number, _ in self.candidates)])
        return [number for number in numbers if number != NO_PASSAGE]


def _best(hits: Sequence[tuple[int, float]]) -> int:
    return hits[0][0] if hits else NO_PASSAGE


def _gains(base_T: FloatArray, numbers: Sequence[int], scored: Sequence[FloatArray]) -> dict[int, DoubleArray]:
    """Return the gain of each token after each passage."""
    base = np.maximum(base_T, _LOWEST).astype(np.float64)
    gains = {number: np.maximum(one, _LOWEST) - base for number, one in zip(numbers, scored, strict=True)}
    return {**gains, NO_PASSAGE: np.zeros(len(base))}


def _add(sums: dict[str, Sum], name: str, gains_T: DoubleArray) -> None:
    nats, tokens = sums.get(name, (0.0, 0))
    sums[name] = (nats + float(gains_T.sum()), tokens + len(gains_T))


def kind_of_token(text: str) -> str:
    """What kind of text a token stands for."""
    word = text.strip("▁Ġ \t\r\n")
    if any(sign.isdigit() for sign in word):
        return "numbers"
    if not any(sign.isalpha() for sign in word):
        return "signs and spaces"
    if word[0].isupper():
        return "capitalised words"
    return "words" if text[:1] in "▁Ġ \t\r\n" else "parts of words"
