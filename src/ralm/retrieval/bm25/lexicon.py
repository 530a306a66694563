"""The terms that queries have asked for: one number for each, whatever its numbers in the segments.

A term is looked up in the vocabularies on its first use, so opening an index reads no vocabulary. Terms of the index
are remembered for good; of the others, which queries may have any number of, only the latest.

Letters of shapes: V terms asked for so far (and room for more), S segments.
"""

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.formula import idf
from ralm.retrieval.bm25.segments import Segment

NO_TERM: Final = -1
_FIRST_ROOM: Final = 1 << 10
_MOST_ABSENT: Final = 1 << 16
"""Terms that are remembered as in no passage, so that they are not looked up again."""


class Lexicon:
    """Numbers terms in the order in which they are asked for; safe to use from several threads.

    `terms_SV` (int64): the number of each term in each segment, `NO_TERM` if the segment does not have it.
    `frequency_V` (int64): in how many passages it occurs. `idf_V` (float64): its weight. Room for more terms is made by
    replacing the arrays, so take them after the terms that are needed were looked up. The segments `elsewhere` count in
    frequencies, and have no place in `terms_SV`.
    """

    def __init__(self, segments: Sequence[Segment], with_terms: int, elsewhere: Sequence[Segment] = ()) -> None:
        self._segments = segments
        self._elsewhere = elsewhere
        self._with_terms = with_terms
        self._numbers: dict[str, int] = {}
        self._absent: deque[str] = deque()
        self._known = 0
        self._lock = Lock()
        self.terms_SV: NDArray[np.int64] = np.full((len(segments), _FIRST_ROOM), NO_TERM, np.int64)
        self.frequency_V: NDArray[np.int64] = np.zeros(_FIRST_ROOM, np.int64)
        self.idf_V: NDArray[np.float64] = np.zeros(_FIRST_ROOM)

    @property
    def most_idf(self) -> float:
        """The weight of a term that only one passage has: no term weighs more."""
        return float(idf(np.ones(1, np.int64), self._with_terms)[0])

    def number(self, term: str) -> int:
        """The number of a term; `NO_TERM` if no passage has it."""
        known = self._numbers.get(term)
        return self._look_up(term) if known is None else known

    def _look_up(self, term: str) -> int:
        with self._lock:
            known = self._numbers.get(term)
            if known is not None:
                return known
            terms = [one.arrays.term(term) for one in self._segments]
            frequency = sum(one.frequency(its) for one, its in zip(self._segments, terms, strict=True))
            frequency += sum(one.frequency(one.arrays.term(term)) for one in self._elsewhere)
            number = self._known if frequency else NO_TERM
            if frequency:
                self._make_room()
                self.terms_SV[:, number] = terms
                self.frequency_V[number] = frequency
                self.idf_V[number] = idf(np.array([frequency]), self._with_terms)[0]
                self._known += 1
            else:
                self._note_absent(term)
            self._numbers[term] = number
            return number

    def _note_absent(self, term: str) -> None:
        """Note that a term is in no passage, and forget the oldest such term if there are too many."""
        self._absent.append(term)
        if len(self._absent) > _MOST_ABSENT:
            del self._numbers[self._absent.popleft()]

    def _make_room(self) -> None:
        room = len(self.idf_V)
        if self._known == room:
            more = np.full((len(self._segments), room), NO_TERM, np.int64)
            self.terms_SV = np.concatenate([self.terms_SV, more], axis=1)
            self.frequency_V = np.concatenate([self.frequency_V, np.zeros(room, np.int64)])
            self.idf_V = np.concatenate([self.idf_V, np.zeros(room)])
