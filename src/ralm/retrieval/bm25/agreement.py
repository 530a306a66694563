"""Whether an analyser gives the terms that an index was built with.

A newer version of a stemming library may stem some words differently. Queries with such words would silently miss
passages, so the passages themselves are analysed again and compared with the postings.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ralm.records import Passage
from ralm.retrieval.analysis import Analysis
from ralm.retrieval.bm25.arrays import Arrays

SAMPLED: Final = 500
"""How many passages are compared at most; they are spread evenly, and have some ten thousand different words."""


def changed_word(passages: Sequence[Passage], arrays: Arrays, analysis: Analysis) -> str | None:
    """A word of some passage that the analyser gives other terms than the index has; None if there is none.

    Raises DamagedFolderError if the postings of a term are invalid.
    """
    terms_of_run, known = analysis.prepare(), set[str]()
    for number in range(0, len(passages), -(-len(passages) // SAMPLED)):
        new = set(passages[number].contents.split()) - known
        known |= new
        for run in sorted(new):
            if not all(_has(arrays, len(passages), term, number) for term in terms_of_run(run)):
                return run
    return None


def _has(arrays: Arrays, passages: int, term: str, number: int) -> bool:
    """Whether a passage has a term."""
    row = arrays.term(term)
    if row < 0:
        return False
    arrays.check_terms(np.array([row]), passages)
    numbers = arrays.passages[arrays.offsets[row] : arrays.offsets[row + 1]]
    at = int(np.searchsorted(numbers, number))
    return at < len(numbers) and int(numbers[at]) == number
