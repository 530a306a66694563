"""Measures what passages gain on held-out units, in nats over reading no passage.

Every example is read without a passage, with the retriever's first passage that is no near duplicate, with the first of
all passages, and with a random one; every fourth unit also with all candidates, for the best of them and an ensemble.

Letters of shapes: K candidates, T tokens of a continuation.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ralm.advice.held_out import Unit, WorthOptions
from ralm.lm.scoring import Scorer
from ralm.protocols import Retriever
from ralm.reading.mixers import log_sum_exp
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Hits, IntArray, Passages
from ralm.retrieval.random import RandomRetriever
from ralm.training.candidates import find_candidates, score_candidates

FIRST: Final = "first passage"
ALL: Final = "first, near duplicates too"
DENSE: Final = "first of dense"
RANDOM: Final = "random passage"
BEST: Final = "best of {}"
ATTAINABLE: Final = "best of {}, knowing half"
ENSEMBLE: Final = "ensemble of {}"
_EVERY: Final = 4
_SAMPLED: Final = 4
"""Strides of a unit that are read with all candidates, unless all are to be."""
_LOWEST: Final = -100.0
"""Stands for the log-probability of an impossible token, so that all sums are finite."""

Sum = tuple[float, int]
"""A sum of gains in nats, and the tokens that it is over."""


@dataclass(frozen=True, slots=True)
class HitGain:
    """The first of all passages for a stride: what it gained, and the share of its runs of 13 words that stand in the
    unit."""

    passage: int
    gain: float
    tokens: int
    overlap: float


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredUnit:
    """The gains of a unit, by reading and by the kind of token, its first hits, and for the examples that were read
    with all candidates the numbers and gains of these."""

    name: str
    metadata: Mapping[str, Any]
    gains: Mapping[str, Sum]
    kinds: Mapping[str, Sum]
    hits: Sequence[HitGain]
    candidates: Sequence[tuple[Sequence[int], DoubleArray]]
    removed: int = 0
    """Examples whose first passage was a near duplicate."""


@dataclass(slots=True, eq=False)
class Cost:
    """What was read so far: readings (of a stride), tokens of passages in them, and wall-clock seconds without and with
    the first passage."""

    readings: int = 0
    passage_tokens: int = 0
    plain_seconds: float = 0.0
    passage_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Measures units with a retriever, and a dense one if there is one, over the passages of an index."""

    passages: Passages
    retriever: Retriever
    dense: Retriever | None
    scorer: Scorer
    options: WorthOptions
    cost: Cost = field(default_factory=Cost)
    documents: PassageDocuments = field(init=False)

    def __post_init__(self) -> None:
        made = PassageDocuments(self.passages, self.scorer.tokenizer, self.options.document_tokens, "auto")
        object.__setattr__(self, "documents", made)

    def measure(self, units: Sequence[Unit], first: int, *, all_candidates: bool = False) -> list[MeasuredUnit]:
        """The gains of some units, of which `first` were measured before."""
        found = [self._found(unit, all_candidates or (first + place) % _EVERY == 0) for place, unit in enumerate(units)]
        examples = [one for unit in units for one in unit.examples]
        begin = time.perf_counter()
        plain = score_candidates(examples, [[NO_PASSAGE]] * len(examples), self.documents, self.scorer)
        middle = time.perf_counter()
        firsts = [_first(one, row) for one in found for row in range(len(one.clean))]
        score_candidates(examples, [[number] for number in firsts], self.documents, self.scorer)
        self.cost.plain_seconds += middle - begin
        self.cost.passage_seconds += time.perf_counter() - middle
        self.cost.readings += len(examples)
        self.cost.passage_tokens += sum(len(self.documents[number]) - len(self.documents.first) for number in firsts)
        numbers_of = [numbers for one in found for numbers in one.numbers(all_candidates=all_candidates)]
        scored = iter(score_candidates(examples, numbers_of, self.documents, self.scorer))
        bases, numbers = iter(plain), iter(numbers_of)
        return [
            self._gains(unit, one, [(next(bases)[0], next(numbers), next(scored)) for _ in unit.examples])
            for unit, one in zip(units, found, strict=True)
        ]

    def _found(self, unit: Unit, with_candidates: bool) -> "_Found":
        k = self.options.candidates if with_candidates else 1

        def find(retriever: Retriever, count: int, examples: Sequence[Any] = unit.examples) -> Hits:
            return find_candidates(examples, unit.queries, retriever, self.passages, count, exclude=True)

        random = RandomRetriever(len(self.passages), self.options.seed)
        drawn = find_candidates(unit.examples[:1], [unit.name], random, self.passages, 1, exclude=True).of(0)
        return _Found(
            clean=find(self.retriever, k),
            every=find(self.retriever, 1, [replace(one, runs=()) for one in unit.examples]),
            dense=None if self.dense is None else find(self.dense, 1),
            random=drawn[0][0] if drawn else NO_PASSAGE,
            has_candidates=with_candidates,
        )

    def _gains(
        self, unit: Unit, found: "_Found", rows: Sequence[tuple[FloatArray, Sequence[int], Sequence[FloatArray]]]
    ) -> MeasuredUnit:
        sums: dict[str, Sum] = {}
        kinds: dict[str, Sum] = {}
        hits, candidates = [], []
        removed = 0
        for row, (base, numbers, scored) in enumerate(rows):
            base_T = np.maximum(base, _LOWEST).astype(np.float64)
            gain_of = {number: np.maximum(one, _LOWEST) - base_T for number, one in zip(numbers, scored, strict=True)}
            gain_of[NO_PASSAGE] = np.zeros(len(base_T))
            first, every = _first(found, row), _number(found.every, row)
            read = {FIRST: first, ALL: every, RANDOM: found.random}
            if found.dense is not None:
                read[DENSE] = _number(found.dense, row)
            for name, number in read.items():
                _add(sums, name, gain_of[number])
            removed += first != every
            if every != NO_PASSAGE:
                overlap = unit.overlap.overlap(self.passages[every].contents)
                hits.append(HitGain(every, float(gain_of[every].sum()), len(base_T), overlap))
            self._add_kinds(kinds, unit, row, gain_of[first], first)
            here = [number for number, _ in found.clean.of(row)]
            if found.has_candidates and here and all(number in gain_of for number in here):
                gains_KT = np.stack([gain_of[number] for number in here])
                candidates.append((here, gains_KT.sum(axis=1)))
                self._add_candidates(sums, gains_KT, np.array([score for _, score in found.clean.of(row)]))
        return MeasuredUnit(unit.name, unit.metadata, sums, kinds, hits, candidates, removed)

    def _add_candidates(self, sums: dict[str, Sum], gains_KT: DoubleArray, scores_K: DoubleArray) -> None:
        """What choosing among candidates gains, and reading several of them as an ensemble with similarity weights."""
        count, half = self.options.candidates, gains_KT.shape[1] // 2
        _add(sums, BEST.format(count), gains_KT[gains_KT.sum(axis=1).argmax()])
        if half:
            _add(sums, ATTAINABLE.format(count), gains_KT[gains_KT[:, :half].sum(axis=1).argmax(), half:])
        some_KT, scores_K = gains_KT[: self.options.documents], scores_K[: self.options.documents]
        weights_K = scores_K - log_sum_exp(scores_K)
        _add(sums, ENSEMBLE.format(self.options.documents), log_sum_exp(weights_K[:, None] + some_KT, axis=0))

    def _add_kinds(self, kinds: dict[str, Sum], unit: Unit, row: int, gains_T: DoubleArray, passage: int) -> None:
        """Gains by kind of token, and by whether the passage holds the token."""
        tokens_T = unit.examples[row].continuation
        there = {*self.documents[passage].tolist()} if passage != NO_PASSAGE else set()
        for token, gain in zip(tokens_T.tolist(), gains_T, strict=True):
            text = self.scorer.tokenizer.decode(np.array([token]))
            for kind in (kind_of_token(text), "in the passage" if token in there else "not in the passage"):
                _add(kinds, kind, gain[None])


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The passages of the examples of a unit."""

    clean: Hits
    every: Hits
    dense: Hits | None
    random: int
    has_candidates: bool

    def numbers(self, *, all_candidates: bool) -> list[list[int]]:
        """The different passages that each example is read with."""
        found = []
        for row in range(len(self.clean)):
            wanted = [_first(self, row), _number(self.every, row), self.random]
            if self.dense is not None:
                wanted.append(_number(self.dense, row))
            if self.has_candidates and (all_candidates or row < _SAMPLED):
                wanted += [number for number, _ in self.clean.of(row)]
            found.append([number for number in dict.fromkeys(wanted) if number != NO_PASSAGE])
        return found


def _number(hits: Hits, row: int) -> int:
    return int(hits.numbers_QK[row, 0])


def _first(found: _Found, row: int) -> int:
    return _number(found.clean, row)


def _add(sums: dict[str, Sum], name: str, gains_T: DoubleArray | IntArray) -> None:
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
