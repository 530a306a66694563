"""The data that the streams of one index share, and a background thread that prepares it.

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
from ralm.retrieval.bm25.arrays import Arrays, PostingCodes, row_of
from ralm.retrieval.bm25.formula import idf
from ralm.retrieval.bm25.kernels import FRACTION_BITS, UNIT, fill_points, kernel
from ralm.retrieval.bm25.segments import Segment

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """The result of `make`, which is called once, with a function that it must call between its steps.

    If memory runs out or a file is damaged, a RalmWarning is given and the result is never ready.
    """

    def __init__(self, make: Callable[[Callable[[], None]], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._thread: Thread | None = None
        self._lock = Lock()
        self._stop = Event()

    def ready(self) -> T | None:
        """The result, or None while it is being made; the first call starts making it."""
        if self._made is None and self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="ralm-beside", daemon=True)
                    atexit.register(self._end)
                    self._thread.start()
        return self._made

    @property
    def begun(self) -> bool:
        """Whether anyone has asked for the result."""
        return self._thread is not None

    def wait(self) -> None:
        """Wait until the result is ready, if it is being made."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._made = self._make(self._go_on)
        except _StoppedError:
            return
        except (MemoryError, OSError, RalmError) as error:
            why = f"streams cannot be prepared ({error!r}); queries are scanned instead, which is slower."
            warnings.warn(why, RalmWarning, stacklevel=2)
        atexit.unregister(self._end)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _end(self) -> None:
        self._stop.set()
        self.wait()


class _StoppedError(Exception):
    """The program is exiting."""


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


BLOCK_BITS: Final = 4
WORD_BITS: Final = 6
STEP_BITS: Final = FRACTION_BITS - 6
"""Bounds are given in steps of 1/64; this is the size of a step in binary places of a fixed-point score."""
_COMMON: Final = 48
"""A term is common if at least one in this many passages has it: its idf is then below 4."""
_MOST_IDF: Final = 3.95
"""With this idf, the steps of a term fit into a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonTerms:
    """`row_V` (int32): the row of each term among the common ones, -1 for a rare one. `highest_MB` (uint8): the most
    that a term which occurs once in the query adds to a passage of each block, in steps, rounded up. `present_MW`
    (uint64): which passages have the term. `before_MW` (uint32): how many of its postings come before each word.

    Four blocks make a word: B is 4 W.
    """

    row_V: NDArray[np.int32]
    highest_MB: NDArray[np.uint8]
    present_MW: NDArray[np.uint64]
    before_MW: NDArray[np.uint32]


def find_common_terms(
    arrays: Arrays,
    passages: int,
    idf_of: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    impact_C: NDArray[np.float64],
    threads: int = 1,
    before_each: Callable[[], None] | None = None,
) -> CommonTerms:
    """Read the postings of the common terms of a segment once. `idf_of` gives the idf of its terms in the whole index.
    With one thread, the work runs in the caller's thread. `before_each` is called before every term; an exception from
    it ends the work."""
    terms = np.flatnonzero(np.diff(arrays.offsets) * _COMMON >= passages)
    idf_M = idf_of(terms)
    fitting = idf_M <= _MOST_IDF  # a term may be common here and rare in the whole index
    terms, idf_M = terms[fitting], idf_M[fitting]
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
        fill_points(idf_M[row], impact_C, UNIT, points_C)
        begin, end = arrays.offsets[terms[row]], arrays.offsets[terms[row] + 1]
        rows = common.highest_MB[row], common.present_MW[row], common.before_MW[row]
        _fill(arrays.passages, arrays.posting_codes, begin, end, steps(points_C).astype(np.uint8), *rows)

    _each(fill, len(terms), threads)
    return common


def steps(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Points as steps, rounded up."""
    return (points + ((1 << STEP_BITS) - 1)) >> STEP_BITS


def _each(work: Callable[[int], None], count: int, threads: int) -> None:
    """Call `work` for each number below `count`, on several threads."""
    if threads == 1:
        for piece in range(count):
            work(piece)
        return
    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(work, range(count)))


@kernel
def _fill(
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


PARTITION: Final = 1 << 17
"""Passages of a partition: 512 KiB of sums, which fit into a core's own cache."""
_MAX_STEPS: Final = 21_000
_STEPS: Final = 1 << FRACTION_BITS - STEP_BITS


@dataclass(frozen=True, slots=True, eq=False)
class StreamSegment:
    """What streams share of one segment: its arrays and its passages, how many rows are `ahead` of it, the impacts of
    its code table's rows, and the layout of its common terms."""

    arrays: Arrays
    passages: int
    ahead: int
    impact_C: NDArray[np.float64]
    common: CommonTerms


@dataclass(frozen=True, eq=False)
class Collection:
    """What streams over one index share: the terms, and the parts of the index."""

    lexicon: Lexicon
    parts: tuple[StreamSegment, ...]

    def bears(self, queries: Sequence[Sequence[int]]) -> bool:
        """Whether a stream can hold the bounds of all queries in 16 bits, with a factor of three to spare while terms
        change."""
        sizes_Q = np.fromiter(map(len, queries), np.int64, len(queries))
        if sizes_Q.max(initial=0) * (self.most_steps + 1) <= _MAX_STEPS:
            return True
        terms = np.fromiter(chain.from_iterable(queries), np.int64, sizes_Q.sum())
        rows = np.repeat(np.arange(len(queries)), sizes_Q)
        idf_Q = np.bincount(rows, weights=self.lexicon.idf_V[terms], minlength=len(queries))
        return bool((idf_Q * _STEPS + sizes_Q <= _MAX_STEPS).all())

    @cached_property
    def most_steps(self) -> float:
        """The most that one occurrence of a term can add to a bound."""
        return self.lexicon.most_idf * _STEPS

    @cached_property
    def codes(self) -> int:
        """How many rows the code tables have together, at least 1."""
        return max(1, sum(len(part.impact_C) for part in self.parts))
