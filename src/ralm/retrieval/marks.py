"""Finds the words of a query in the text of a hit, and the part of a long text that shows most of them."""

from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ralm.retrieval.analysis import Analysis

_CACHED_WORDS: Final = 1 << 16


class Mark(NamedTuple):
    """A term, and the first and one past the last character of the words that have it."""

    begin: int
    end: int
    term: str


class Marker:
    """A finder of the terms of an index in texts; without an analyser it finds none. Only one thread may use it."""

    def __init__(self, analysis: Analysis | None) -> None:
        self._analysis = analysis
        self._terms_of_word = lru_cache(_CACHED_WORDS)(analysis.prepare()) if analysis else lambda _: ()

    def terms(self, text: str) -> set[str]:
        """Return the terms of a text."""
        return {term for run in text.split() for term in self._terms_of_word(run)}

    def marks(self, text: str, terms: Container[str]) -> list[Mark]:
        """Return the words of a text that have these terms, in order; two words without a space may make one term."""
        marks: list[Mark] = []
        first, before = 0, ""
        for begin, end, word, follows in self._analysis.placed_words(text) if self._analysis else ():
            word_terms = self._terms_of_word(word)
            if follows:
                alone = {*self._terms_of_word(before), *word_terms}
                of_both = [term for term in self._terms_of_word(before + word) if term not in alone]
                marks += [Mark(first, end, term) for term in of_both if term in terms]
            marks += [Mark(begin, end, term) for term in word_terms if term in terms]
            first, before = begin, word
        return marks


def spans_of(marks: Iterable[Mark]) -> list[tuple[int, int]]:
    """Return the bounds of each marked part of a text; those that touch are one."""
    spans: list[tuple[int, int]] = []
    for begin, end, _ in marks:
        if spans and begin <= spans[-1][1]:
            begin, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((begin, end))
    return spans


def best_window(text: str, marks: Sequence[Mark], width: int) -> tuple[int, int]:
    """Return the bounds of at most `width` characters, cut at words, with most different terms, then most marks."""
    if len(text) <= width:
        return 0, len(text)
    first, last = _densest(marks, width)
    begin = max(0, min(first - max(0, width - (last - first)) // 2, len(text) - width))
    end = begin + width
    if begin:
        begin = max(begin, text.find(" ", begin - 1, first) + 1)
    if end < len(text):
        space = text.rfind(" ", max(last, begin + 1), end + 1)
        end = end if space < 0 else space
    return begin, end


def _densest(marks: Sequence[Mark], width: int) -> tuple[int, int]:
    """Return the first and one past the last character of the marks to show; both 0 without marks."""
    windows = (
        [mark, *(other for other in marks[first + 1 : first + width] if other.end - mark.begin <= width)]
        for first, mark in enumerate(marks)
    )
    best = max(windows, key=lambda inside: (len({mark.term for mark in inside}), len(inside)), default=[])
    return (best[0].begin, max(mark.end for mark in best)) if best else (0, 0)
