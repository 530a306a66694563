"""The data that the streams and lookups of one index share, and a background thread that prepares it.

The lexicon numbers the terms that queries have asked for. Most postings belong to a few hundred common terms, so these
are laid out such that one passage can be scored without reading a list of postings. For each common term and each block
of 16 passages, the layout holds the most that the term can add to a passage of the block, as a byte. For each word of
64 passages it holds bits for the passages with the term, and the number of the term's postings before the word.

Letters of shapes: V terms of the lexicon or of a segment, S segments, M common terms, B blocks, W words, C rows of the
code table.
"""

import atexit
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from threading import Event, Lock, Thread
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ralm.errors import RalmError, RalmWarning
from ralm.retrieval.bm25 import formula, kernels
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of
from ralm.retrieval.bm25.segments import Segment

_T = TypeVar("_T")

NO_TERM: Final = -1
_FIRST_ROOM: Final = 1 << 10
_MAX_ABSENT: Final = 1 << 16
"""Terms that are remembered as in no passage, so that they are not looked up again."""
BLOCK_BITS: Final = 4
WORD_BITS: Final = 6
STEP_BITS: Final = kernels.FRACTION_BITS - 6
"""Bounds are in steps of 1/64 of a score; a step is this many binary places of a fixed-point score."""
_STEPS: Final = 1 << kernels.FRACTION_BITS - STEP_BITS
_MAX_STEPS: Final = 21_000
"""The bound of a query, in steps: a third of what 16 bits hold, since bounds grow while terms change."""
COMMON_SHARE: Final = 48
"""A term is common if at least one in this many passages has it: its idf is then below 4."""
_MAX_IDF: Final = 3.95
"""With this idf, the steps of a term fit into a byte."""
PARTITION: Final = 1 << 17
"""Passages of a partition: 512 KiB of sums, which fit into a core's own cache."""


class BackgroundTask(Generic[_T]):
    """The result of `make`, which is called once in a background thread.

    `make` gets a function that it must call between its steps. When the interpreter exits, this function ends the
    thread by an error, so the program waits only for the current step. If memory runs out or a file is damaged, a
    RalmWarning is given and the result is never ready.
    """

    def __init__(self, make: Callable[[Callable[[], None]], _T]) -> None:
        self._make = make
        self._made: _T | None = None
        self._thread: Thread | None = None
        self._lock = Lock()
        self._stop = Event()

    def ready(self) -> _T | None:
        """The result, or None while it is being made; the first call starts the thread."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:  # another thread may have started it since the check without the lock
                    thread = Thread(target=self._run, name="ralm-background", daemon=True)
                    atexit.register(self._end)
                    thread.start()
                    self._thread = thread
        return self._made

    @property
    def is_started(self) -> bool:
        """Whether the result was requested."""
        return self._thread is not None

    def wait(self) -> None:
        """Wait for the thread, if it was started."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._made = self._make(self._check_stop)
        except _StoppedError:
            return
        except (MemoryError, OSError, RalmError) as error:
            warning = f"streams cannot be prepared ({error!r}); queries are scanned instead, which is slower."
            warnings.warn(warning, RalmWarning, stacklevel=2)
        atexit.unregister(self._end)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _end(self) -> None:
        self._stop.set()
        self.wait()


class _StoppedError(Exception):
    """The program is exiting."""


class Lexicon:
    """Numbers the terms of queries in the order in which they are first looked up; safe to use from several threads.

    A vocabulary is read only where a term is looked up, so opening an index reads none. Terms of the index are
    remembered for good; of other terms, which queries may have any number of, only the latest.

    `terms_SV` (int64): the number of each term in each segment, `NO_TERM` if the segment does not have it.
    `frequency_V` (int64): in how many passages it occurs. `idf_V` (float64): its weight. The arrays are replaced when
    they grow, so take them after all terms were looked up.
    """

    def __init__(self, segments: Sequence[Segment], with_terms: int) -> None:
        self._segments = segments
        self._with_terms = with_terms
        self._numbers: dict[str, int] = {}
        self._absent: deque[str] = deque()
        self._known = 0
        self._lock = Lock()
        self.terms_SV: NDArray[np.int64] = np.full((len(segments), _FIRST_ROOM), NO_TERM, np.int64)
        self.frequency_V: NDArray[np.int64] = np.zeros(_FIRST_ROOM, np.int64)
        self.idf_V: NDArray[np.float64] = np.zeros(_FIRST_ROOM)

    @property
    def max_idf(self) -> float:
        """The weight of a term that only one passage has: no term weighs more."""
        return float(formula.idf(np.ones(1, np.int64), self._with_terms)[0])

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
            frequency = sum(one.frequency(number) for one, number in zip(self._segments, terms, strict=True))
            number = self._known if frequency else NO_TERM
            if frequency:
                self._make_room()
                self.terms_SV[:, number] = terms
                self.frequency_V[number] = frequency
                self.idf_V[number] = formula.idf(np.array([frequency]), self._with_terms)[0]
                self._known += 1
            else:
                self._note_absent(term)
            self._numbers[term] = number
            return number

    def _note_absent(self, term: str) -> None:
        """Remember a term that is in no passage, and forget the oldest such term if there are too many."""
        self._absent.append(term)
        if len(self._absent) > _MAX_ABSENT:
            del self._numbers[self._absent.popleft()]

    def _make_room(self) -> None:
        room = len(self.idf_V)
        if self._known == room:
            more = np.full((len(self._segments), room), NO_TERM, np.int64)
            self.terms_SV = np.concatenate([self.terms_SV, more], axis=1)
            self.frequency_V = np.concatenate([self.frequency_V, np.zeros(room, np.int64)])
            self.idf_V = np.concatenate([self.idf_V, np.zeros(room)])


@dataclass(frozen=True, eq=False)
class CommonTerms:
    """The layout of the common terms of a segment.

    `row_V` (int32): the row of each term among the common ones, -1 for a rare one. `highest_MB` (uint8): the most that
    one occurrence of the term in the query adds to a passage of each block, in steps, rounded up. `present_MW`
    (uint64): a bit for each passage with the term. `before_MW` (uint32): the term's postings before each word. Four
    blocks make a word: B is 4 W.
    """

    row_V: NDArray[np.int32]
    highest_MB: NDArray[np.uint8]
    present_MW: NDArray[np.uint64]
    before_MW: NDArray[np.uint32]

    @cached_property
    def _most_M(self) -> NDArray[np.int64]:
        return self.highest_MB.max(axis=1, initial=0).astype(np.int64)

    def of_terms(self, terms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the words of terms of the segment begin (-1 for a rare or an absent one), and the most that one
        occurrence of a common one adds, in steps."""
        rows, most = np.full(len(terms), -1, np.int64), np.zeros(len(terms), np.int64)
        common = terms != NO_TERM
        common[common] = self.row_V[terms[common]] >= 0
        places = self.row_V[terms[common]].astype(np.int64)
        rows[common], most[common] = places * self.present_MW.shape[1], self._most_M[places]
        return rows, most


@dataclass(frozen=True, slots=True, eq=False)
class SearchedSegment:
    """A segment as it is searched: `first` is its first row in the index, `impact_C` the impact of each code,
    `first_word` where its bits begin (`Forbidden`)."""

    arrays: Arrays
    passages: int
    first: int
    impact_C: NDArray[np.float64]
    first_word: int = 0

    def postings_of(self, terms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the postings of terms begin and end; an empty range for a term that the segment does not have."""
        has = terms != NO_TERM
        self.arrays.check_terms(terms[has], self.passages)
        offsets = self.arrays.offsets
        return np.where(has, offsets[terms], 0), np.where(has, offsets[terms + 1], 0)


def find_common_terms(
    segment: SearchedSegment,
    idf_of: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    threads: int,
    before_each: Callable[[], None] | None,
) -> CommonTerms:
    """Lay out the common terms of a segment, which reads their postings once.

    `idf_of` gives the idf of its terms in the whole index. One thread is the caller's. `before_each` is called before
    every term; an exception from it ends the work.
    """
    arrays, passages, impact_C = segment.arrays, segment.passages, segment.impact_C
    terms = np.flatnonzero(np.diff(arrays.offsets) * COMMON_SHARE >= passages)
    idf_M = idf_of(terms)
    fits = idf_M <= _MAX_IDF  # a term may be common here and rare in the whole index
    terms, idf_M = terms[fits], idf_M[fits]
    row_V = np.full(len(arrays.offsets) - 1, -1, np.int32)
    row_V[terms] = np.arange(len(terms))
    words = -(-passages >> WORD_BITS)
    common = CommonTerms(
        row_V,
        np.zeros((len(terms), words << (WORD_BITS - BLOCK_BITS)), np.uint8),
        np.zeros((len(terms), words), np.uint64),
        np.zeros((len(terms), words), np.uint32),
    )

    def fill(row: int) -> None:
        arrays.check_terms(terms[row : row + 1], passages)
        if before_each:
            before_each()
        points_C = np.empty(len(impact_C), np.int32)
        kernels.fill_points(idf_M[row], impact_C, kernels.UNIT, points_C)
        begin, end = arrays.offsets[terms[row]], arrays.offsets[terms[row] + 1]
        rows = common.highest_MB[row], common.present_MW[row], common.before_MW[row]
        _lay_out(arrays.passages, arrays.posting_codes, begin, end, steps(points_C).astype(np.uint8), *rows)

    if threads == 1:
        for row in range(len(terms)):
            fill(row)
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(fill, range(len(terms))))
    return common


def steps(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Points as steps, rounded up."""
    return (points + ((1 << STEP_BITS) - 1)) >> STEP_BITS


@kernels.kernel
def _lay_out(
    passages: NDArray[np.int32],
    codes: PostingCodes,
    begin: int,
    end: int,
    steps_C: NDArray[np.uint8],
    highest_B: NDArray[np.uint8],
    present_W: NDArray[np.uint64],
    before_W: NDArray[np.uint32],
) -> None:
    """Lay out the postings of one term."""
    rows, escaped, escaped_rows = codes
    for posting in range(begin, end):
        passage = passages[posting]
        block, word = passage >> BLOCK_BITS, passage >> WORD_BITS
        highest_B[block] = max(highest_B[block], steps_C[row_of(rows, escaped, escaped_rows, posting)])
        present_W[word] |= np.uint64(1) << np.uint64(passage & 63)
        if word + 1 < len(before_W):
            before_W[word + 1] += np.uint32(1)
    for word in range(1, len(before_W)):
        before_W[word] += before_W[word - 1]


@dataclass(frozen=True, eq=False)
class Collection:
    """The data that streams and lookups share: the segments of an index, and the layout of the common terms of each."""

    lexicon: Lexicon
    segments: Sequence[SearchedSegment]
    common: Sequence[CommonTerms]

    def supports(self, queries: Sequence[Sequence[int]]) -> bool:
        """Whether a stream can hold the bounds of all queries (term numbers) in 16 bits."""
        sizes_Q = np.fromiter(map(len, queries), np.int64, len(queries))
        if sizes_Q.max(initial=0) * (self.max_steps + 1) <= _MAX_STEPS:
            return True
        terms = np.fromiter(chain.from_iterable(queries), np.int64, sizes_Q.sum())
        rows = np.repeat(np.arange(len(queries)), sizes_Q)
        idf_Q = np.bincount(rows, weights=self.lexicon.idf_V[terms], minlength=len(queries))
        return bool((idf_Q * _STEPS + sizes_Q <= _MAX_STEPS).all())

    @cached_property
    def max_steps(self) -> float:
        """The most that one occurrence of a term can add to a bound, in steps."""
        return self.lexicon.max_idf * _STEPS

    @cached_property
    def codes(self) -> int:
        """The rows of all code tables together, at least 1."""
        return max(1, sum(len(one.impact_C) for one in self.segments))
