"""Measures what passages gain on held-out units, in nats over reading no passage, within a time.

Each example is read without a passage, with the retriever's first passage that is no near duplicate, and with the first
of all passages. Units are in random order, so those that are read before the time ends stand for all.

Letters of shapes: E examples of a unit, T tokens of a continuation.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import numpy as np

from ralm.corpus.store import PassageStore
from ralm.errors import BudgetError
from ralm.lm.scoring import Scorer
from ralm.protocols import Retriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Request
from ralm.training.candidates import find_candidates
from ralm.training.examples import Example
from ralm.worth.held_out import HeldOut, Unit

_LOWEST: Final = -100.0
"""Stands for the log-probability of an impossible token, so that all sums are finite."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUnit:
    """The tokens of a unit, and the gains of its first passages in nats, without near duplicates and with them."""

    tokens: int
    gain: float
    with_duplicates: float
    with_passage: int = 0
    is_duplicated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Measures what the first passages of an index gain; passages of a unit's own document are not found."""

    passages: PassageStore
    documents: PassageDocuments
    retriever: Retriever
    scorer: Scorer

    def measure(self, unit: Unit, end: float = math.inf) -> MeasuredUnit:
        """Read a unit passage by passage, each stride with the one before; BudgetError if the clock is at its end."""
        clean_E = self._first(unit, unit.examples)
        every_E = self._first(unit, [replace(example, runs=()) for example in unit.examples])
        rows = [(NO_PASSAGE, *numbers) for numbers in zip(clean_E, every_E, strict=True)]
        nats: dict[tuple[int, int], float] = {}
        for number in dict.fromkeys(chain.from_iterable(rows)):
            if time.perf_counter() >= end:
                raise BudgetError("the time is over")
            before = self.documents[number] if unit.prompts is None else unit.prompts(self.passages, number)
            read = {place: unit.examples[place] for place, row in enumerate(rows) if number in row}
            requests = [Request(before, example.prefix, example.continuation) for example in read.values()]
            for place, log_probs_T in zip(read, self.scorer.log_probs(requests), strict=True):
                nats[place, number] = float(np.maximum(log_probs_T, _LOWEST).sum(dtype=np.float64))
        alone = sum(nats[place, NO_PASSAGE] for place in range(len(rows)))
        tokens_E = [len(example.continuation) for example in unit.examples]
        return MeasuredUnit(
            tokens=sum(tokens_E),
            gain=sum(nats[row] for row in enumerate(clean_E)) - alone,
            with_duplicates=sum(nats[row] for row in enumerate(every_E)) - alone,
            with_passage=sum(tokens for tokens, row in zip(tokens_E, rows, strict=True) if row[1] != NO_PASSAGE),
            is_duplicated=clean_E != every_E,
        )

    def _first(self, unit: Unit, examples: Sequence[Example]) -> list[int]:
        """Return the first passage of each example that shares none of its runs of words."""
        hits = find_candidates(examples, unit.queries, self.retriever, self.passages, 1)
        numbers_E: list[int] = hits.numbers_QK[:, 0].tolist()
        return numbers_E


def measure_units(meter: Meter, held_out: HeldOut, minutes: float) -> Iterator[MeasuredUnit]:
    """Measure units in turn for so many minutes (0: no limit), and log how long that takes; BudgetError at the end."""
    most, noun, limit = held_out.most, held_out.noun, f" for {minutes:g} minutes or" if minutes else ""
    _LOG.info(f"reads{limit} until the verdict is certain: at most {most:,} {noun}, with a passage and without")
    begin = time.perf_counter()
    end = begin + (60 * minutes or math.inf)
    for place, unit in enumerate(islice(held_out.units, most)):
        measured = meter.measure(unit, end)
        if place == 0:
            seconds = time.perf_counter() - begin
            _LOG.info(
                f"the first took {seconds:.1f} seconds here: {most:,} take about {most * seconds / 60:.1f} minutes"
            )
        yield measured
