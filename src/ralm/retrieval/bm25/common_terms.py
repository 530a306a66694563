"""The commonest terms of a segment, laid out so that one passage can be scored without reading a list of postings.

Most postings belong to a few hundred terms. For each of them and each block of 16 passages, this holds the most that
the term can add to a passage of the block, as a byte. For each word of 64 passages it holds bits for the passages with
the term, and the number of the term's postings before the word. One pass over those postings computes it.

Letters of shapes: V terms of the segment, M common terms, B blocks, W words, C rows of the code table.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.bm25.arrays import Arrays
from ralm.retrieval.bm25.codes import PostingCodes, row_of
from ralm.retrieval.bm25.compiled import kernel
from ralm.retrieval.bm25.points import FRACTION_BITS, UNIT, fill_points

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
