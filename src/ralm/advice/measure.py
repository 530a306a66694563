"""Measures what passages gain on held-out units, in nats over reading no passage, within a time.

First come the readings that decide the verdict: every example without a passage, with the retriever's first passage
that is no near duplicate, and with the first of all passages. The time that is left is for a quarter of the units, with
a random passage and the first one of dense retrieval, then with all candidates, for the best of them and an ensemble.
Units are in random order, so those that are read first stand for all.

Letters of shapes: K candidates, T tokens of a continuation.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from ralm.advice.held_out import SEQUENCE, HeldOut, Unit, WorthOptions
from ralm.answering.likelihoods import NO_TOKENS
from ralm.corpus.store import PassageStore
from ralm.errors import BudgetError
from ralm.evaluation.intervals import MIN_UNITS
from ralm.evaluation.passages_read import COPY
from ralm.lm.scoring import Scorer, split_by_tokens
from ralm.protocols import Retriever
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, DoubleArray, Hits, Request
from ralm.retrieval.random import RandomRetriever
from ralm.terminal import Advance
from ralm.training.candidates import find_candidates
from ralm.training.examples import Example

FIRST: Final = "first passage"
ALL: Final = "first, near duplicates too"
DENSE: Final = "first of dense"
RANDOM: Final = "random passage"
BEST: Final = "best of {}"
ATTAINABLE: Final = "best of {}, knowing half"
ENSEMBLE: Final = "ensemble of {}"
_MORE: Final = 16
_EVERY: Final = 4
"""Of so many units, one is read with all candidates."""
_SAMPLED: Final = 4
"""Strides of such a unit that are read with all candidates."""
_VERDICT_SHARE: Final = 0.75
"""Of the time, for the readings that decide the verdict."""
_UNITS_AT_ONCE: Final = 16
_PIECE_SECONDS: Final = 2.0
_PIECES: Final = 20
"""A piece takes two seconds, and at most this part of the time."""
_GROWTH: Final = 4
_LOWEST: Final = -100.0
"""Stands for the log-probability of an impossible token, so that all sums are finite."""
_LOG: Final = logging.getLogger(__name__)

Sum: TypeAlias = tuple[float, int]
"""A sum of gains in nats, and the tokens that it is over."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredUnit:
    """The gains of a unit by reading, its strides, those with a first passage, and whether a copy of it was found."""

    gains: Mapping[str, Sum]
    strides: int = 1
    with_passage: int = 1
    has_copy: bool = False


class Row(NamedTuple):
    """The passages that an example is read with, by reading, and the candidates with their scores."""

    passages: Mapping[str, int]
    candidates: Sequence[tuple[int, float]] = ()

    @property
    def numbers(self) -> dict[int, None]:
        """The different passages, after no passage."""
        return dict.fromkeys([NO_PASSAGE, *self.passages.values(), *(number for number, _ in self.candidates)])


class PacedScorer:
    """Reads requests in pieces, so that the time is passed by one piece at most; `scorer` keeps the results.

    The first piece is one text: a request, with those that begin it. Each further piece has up to four times the tokens
    of the one before, as many as the time of a piece and the time that is left allow at its speed.
    """

    def __init__(self, scorer: Scorer, minutes: float) -> None:
        self.scorer = scorer
        self.seconds = 60 * minutes or math.inf
        self.tokens_a_second = 0.0
        self.piece_tokens = 0.0
        self._begin = time.perf_counter()

    def tokens(self, requests: Sequence[Request]) -> int:
        """Return the tokens of requests; those of a text count once."""
        return sum(map(_length, self._texts(requests)))

    def read(self, requests: Sequence[Request], share: float = 1.0) -> None:
        """Read requests; BudgetError when this share of the time has passed."""
        texts, place = self._texts(requests), 0
        while place < len(texts):
            seconds = share * self.seconds - (time.perf_counter() - self._begin)
            if seconds <= 0:
                raise BudgetError("the time is over")
            most = min(self.piece_tokens, self.tokens_a_second * seconds)
            piece = next(split_by_tokens(texts[place:], max(1, int(most)), _length))
            begin = time.perf_counter()
            self.scorer.log_probs([*chain.from_iterable(piece)])
            self._pace(sum(map(_length, piece)), time.perf_counter() - begin)
            place += len(piece)

    def _pace(self, tokens: int, seconds: float) -> None:
        self.tokens_a_second = tokens / max(seconds, 1e-9)
        allowed = self.tokens_a_second * min(_PIECE_SECONDS, self.seconds / _PIECES)
        self.piece_tokens = min(allowed, _GROWTH * tokens)

    def _texts(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Requests in order, each together with those before it that begin it, if the model merges them."""
        texts: list[list[Request]] = []
        before_N = NO_TOKENS
        for request in requests:
            tokens_N = np.concatenate([request.document, request.context, request.targets])
            begins = len(before_N) and np.array_equal(tokens_N[: len(before_N)], before_N)
            if begins and self.scorer.traits.merges_prefixes:
                texts[-1].append(request)
            else:
                texts.append([request])
            before_N = tokens_N
        return texts


def _length(text: Sequence[Request]) -> int:
    return len(text[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Finds the passages of units in an index, with a retriever and with others by the names of their readings, and
    adds up what they gain."""

    passages: PassageStore
    documents: PassageDocuments
    retriever: Retriever
    others: Mapping[str, Retriever]
    scorer: Scorer
    options: WorthOptions

    def first_rows(self, unit: Unit) -> list[Row]:
        """The first passage of each example, without near duplicates and among all."""
        every = self._find_all(unit)
        clean = self._find_clean(unit, self.retriever, 1, self._copies(unit, every))
        return [Row({FIRST: _best(hits), ALL: _best(every.of(row))}) for row, hits in enumerate(clean)]

    def other_rows(self, unit: Unit) -> list[Row]:
        """A random passage, the same for all examples, and the first one of the other retrievers."""
        random = RandomRetriever(len(self.passages), self.options.seed)
        drawn = find_candidates(unit.examples[:1], [unit.name], random, self.passages, 1).of(0)
        copies = self._copies(unit, self._find_all(unit)) if self.others else set()
        others = {name: self._find_clean(unit, other, 1, copies) for name, other in self.others.items()}
        return [
            Row({RANDOM: _best(drawn)} | {name: _best(rows[row]) for name, rows in others.items()})
            for row in range(len(unit.examples))
        ]

    def candidate_rows(self, unit: Unit) -> list[Row]:
        """All candidates of the first examples."""
        copies = self._copies(unit, self._find_all(unit))
        candidates = self._find_clean(unit, self.retriever, self.options.candidates, copies)
        return [Row({}, hits if row < _SAMPLED else ()) for row, hits in enumerate(candidates)]

    def _find_all(self, unit: Unit) -> Hits:
        """Return the best passages of other documents, near duplicates too."""
        examples = [replace(example, runs=()) for example in unit.examples]
        return find_candidates(examples, unit.queries, self.retriever, self.passages, _MORE)

    def _find_clean(
        self, unit: Unit, retriever: Retriever, count: int, copies: Collection[str]
    ) -> list[list[tuple[int, float]]]:
        """Return the best passages that are no near duplicates, without those of copies of the unit, which may go on
        with its text."""
        more = _MORE if copies else 0
        hits = find_candidates(unit.examples, unit.queries, retriever, self.passages, count + more)
        rows = ([hit for hit in hits.of(row) if self._document(hit[0]) not in copies] for row in range(len(hits)))
        return [row[:count] for row in rows]

    def _copies(self, unit: Unit, hits: Hits) -> set[str]:
        """Return the documents of which a passage stands in the unit."""
        numbers = [number for number in np.unique(hits.numbers_QK).tolist() if number != NO_PASSAGE]
        return {self._document(number) for number in numbers if self._overlap(unit, number) > COPY}

    def _document(self, number: int) -> str:
        return self.passages[number].document_id

    def _overlap(self, unit: Unit, number: int) -> float:
        return 0.0 if number == NO_PASSAGE else unit.overlap.overlap(self.passages[number].contents)

    def requests(self, unit: Unit, rows: Sequence[Row]) -> list[Request]:
        """What the model reads, one passage after the other: a stride begins with the one before."""
        numbers = dict.fromkeys(number for row in rows for number in row.numbers)
        return [
            self._request(unit, example, number)
            for number in numbers
            for example, row in zip(unit.examples, rows, strict=True)
            if number in row.numbers
        ]

    def _request(self, unit: Unit, example: Example, number: int) -> Request:
        if unit.prompts is None:
            return Request(self.documents[number], example.prefix, example.continuation)
        return Request(unit.prompts(self.passages, number), NO_TOKENS, example.continuation)

    def gains(self, unit: Unit, rows: Sequence[Row]) -> dict[str, Sum]:
        """Return the sum of the gains of each reading, whose requests were read."""
        sums: dict[str, Sum] = {}
        for example, row in zip(unit.examples, rows, strict=True):
            scored = self.scorer.log_probs([self._request(unit, example, number) for number in row.numbers])
            base_T, *_ = log_probs = [np.maximum(read, _LOWEST).astype(np.float64) for read in scored]
            gain_of = {number: read - base_T for number, read in zip(row.numbers, log_probs, strict=True)}
            for name, number in row.passages.items():
                _add(sums, name, gain_of[number])
            if row.candidates:
                gains_KT = np.stack([gain_of[number] for number, _ in row.candidates])
                self._add_candidates(sums, gains_KT, np.array([score for _, score in row.candidates]))
        return sums

    def _add_candidates(self, sums: dict[str, Sum], gains_KT: DoubleArray, scores_K: DoubleArray) -> None:
        """What choosing among candidates gains, and reading several of them as an ensemble with similarity weights."""
        count, half, documents = self.options.candidates, gains_KT.shape[1] // 2, self.options.documents
        _add(sums, BEST.format(count), gains_KT[gains_KT.sum(axis=1).argmax()])
        if half:
            _add(sums, ATTAINABLE.format(count), gains_KT[gains_KT[:, :half].sum(axis=1).argmax(), half:])
        weights_K = similarity_log_weights(scores_K[:documents])
        _add(sums, ENSEMBLE.format(documents), mix(gains_KT[:documents], weights_K))

    def measure(self, unit: Unit, rows: Sequence[Row]) -> MeasuredUnit:
        """The unit with the gains of the readings that decide, whose requests were read."""
        with_passage = sum(row.passages[FIRST] != NO_PASSAGE for row in rows)
        has_copy = any(self._overlap(unit, row.passages[ALL]) > COPY for row in rows)
        return MeasuredUnit(self.gains(unit, rows), len(rows), with_passage, has_copy)


class Measuring:
    """Measures the units of a text in turn, for so many minutes (0: no limit); `skipped` ones were too short."""

    def __init__(self, meter: Meter, held_out: HeldOut, minutes: float) -> None:
        self.measured: list[MeasuredUnit] = []
        self.skipped = 0
        self._meter = meter
        self._held_out = held_out
        self._units: list[Unit] = []
        self._long_enough = self._pull(held_out.units)
        self._paced = PacedScorer(meter.scorer, minutes)
        self._unit_tokens = math.inf
        self._announce()

    def until(self, count: int, advance: Advance) -> Literal["measured", "budget"] | None:
        """Measure until there are so many units; why it stopped before."""
        while len(self.measured) < count:
            at_once = int(min(_UNITS_AT_ONCE, self._paced.piece_tokens / self._unit_tokens))
            units = [*islice(self._long_enough, min(max(1, at_once), count - len(self.measured)))]
            if not units:
                return "measured"
            try:
                rows_of = self._read(units, self._meter.first_rows, _VERDICT_SHARE)
            except BudgetError:
                return "budget"
            self.measured += map(self._meter.measure, units, rows_of)
            self._units += units
            advance(len(units))
        return None

    def read_others(self, advance: Advance) -> None:
        """Add the other readings to units, evenly spread, as far as the time goes."""
        places = range(0, len(self._units), max(1, min(_EVERY, len(self._units) // MIN_UNITS)))
        for rows_of, place in product((self._meter.other_rows, self._meter.candidate_rows), places):
            unit, measured = self._units[place], self.measured[place]
            try:
                [rows] = self._read([unit], rows_of)
            except BudgetError:
                return
            self.measured[place] = replace(measured, gains={**measured.gains, **self._meter.gains(unit, rows)})
            advance(places.step)

    def _read(self, units: Sequence[Unit], rows_of: Callable[[Unit], list[Row]], share: float = 1.0) -> list[list[Row]]:
        """Read units with their passages; BudgetError when the time is over."""
        rows = [rows_of(unit) for unit in units]
        requests = [
            request for unit, own in zip(units, rows, strict=True) for request in self._meter.requests(unit, own)
        ]
        if not self.measured:
            self._paced.read(requests[: len(rows[0]) + 1], share)
            self._estimate(self._paced.tokens(requests))
        self._paced.read(requests, share)
        self._unit_tokens = self._paced.tokens(requests) / len(units)
        return rows

    def _announce(self) -> None:
        """Say what is read at most."""
        most, noun, options = self._held_out.most, self._held_out.noun, self._meter.options
        strides = 1 if noun == "questions" else options.strides
        text = "the question" if noun == "questions" else f"up to {SEQUENCE} tokens"
        others = strides * (1 + len(self._meter.others)) + min(strides, _SAMPLED) * options.candidates
        limit = f" for {options.budget:g} minutes or" if options.budget else ""
        _LOG.info(
            f"reads{limit} until the verdict is certain: at most {most:,} {noun}, without a passage and with the first "
            f"({2 * most * strides:,} readings of {text} and a passage), then a quarter of them with other passages "
            f"({math.ceil(most / _EVERY) * others:,} readings)"
        )

    def _estimate(self, tokens: float) -> None:
        """Say how long a verdict takes here, by the tokens of the first unit and the speed at its beginning."""
        most, noun, seconds = self._held_out.most, self._held_out.noun, tokens / self._paced.tokens_a_second
        limit = _VERDICT_SHARE * self._paced.seconds
        fit = "" if most * seconds < limit else f"; there is time for about {max(1, int(limit / seconds)):,}"
        _LOG.info(
            f"reads {self._paced.tokens_a_second:,.0f} tokens a second: {most:,} {noun} of {tokens:,.0f} tokens take "
            f"about {most * seconds / 60:.1f} minutes{fit}"
        )

    def _pull(self, units: Iterator[Unit | None]) -> Iterator[Unit]:
        for unit in units:
            if unit is None:
                self.skipped += 1
            else:
                yield unit


def _best(hits: Sequence[tuple[int, float]]) -> int:
    return hits[0][0] if hits else NO_PASSAGE


def _add(sums: dict[str, Sum], name: str, gains_T: DoubleArray) -> None:
    nats, tokens = sums.get(name, (0.0, 0))
    sums[name] = (nats + float(gains_T.sum()), tokens + len(gains_T))
