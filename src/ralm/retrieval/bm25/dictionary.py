"""The terms of an index: those that begin with given letters, and those that are a few typing errors away."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from ralm.retrieval.bm25.arrays import Arrays

_AFTER_ALL: Final = b"\xff"
"""Follows all that UTF-8 has, so a prefix with it stands after all terms with the prefix."""


def terms_beginning_with(segments: Sequence[Arrays], prefix: str) -> list[str]:
    """The terms of segments that begin with these letters, rising."""
    begin = prefix.encode("utf-8", "surrogatepass")
    return sorted(
        {
            arrays.text_at(place)
            for arrays in segments
            for place in range(arrays.place_of(begin), arrays.place_of(begin + _AFTER_ALL))
        }
    )


def terms_near(segments: Sequence[Arrays], word: str, edits: int) -> dict[str, int]:
    """The terms of segments that `edits` edits or fewer make of a word, rising, with the fewest edits for each. An edit
    adds, removes or replaces a letter, or swaps two neighbours, of which none is changed again."""
    return dict(sorted({found: count for arrays in segments for found, count in _near(arrays, word, edits)}.items()))


def _near(arrays: Arrays, word: str, edits: int) -> Iterator[tuple[str, int]]:
    """The sorted terms as a tree of letters: what begins with too many edits is skipped. Row i has the edits between
    the first i letters of a term and each beginning of the word."""
    rows = [list(range(len(word) + 1))]
    before, place = "", 0
    while place < len(arrays.term_ends):
        term = arrays.text_at(place)
        del rows[1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, term, strict=False))) :]
        while len(rows) <= len(term) and min(rows[-1]) <= edits:
            rows.append(_next_row(rows, term[: len(rows)], word))
        before = term[: len(rows) - 1]
        if min(rows[-1]) > edits:
            place = max(place + 1, arrays.place_of(before.encode("utf-8", "surrogatepass") + _AFTER_ALL))
        else:
            if rows[-1][-1] <= edits:
                yield term, rows[-1][-1]
            place += 1


def _next_row(rows: Sequence[Sequence[int]], begin: str, word: str) -> list[int]:
    """The row of the beginning of a term, from the rows of its shorter beginnings."""
    last = rows[-1]
    row = [last[0] + 1]
    for place, letter in enumerate(word):
        row.append(min(row[-1] + 1, last[place + 1] + 1, last[place] + (letter != begin[-1])))
        if place and begin[-2:] == letter + word[place - 1]:
            row[-1] = min(row[-1], rows[-2][place - 1] + 1)
    return row
