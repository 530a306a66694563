"""Lucene's analysis of Chinese, Japanese and Korean: pairs of neighbouring characters.

The chain of Lucene's CJKAnalyzer: split into words by the Unicode standard (UAX #29) as StandardTokenizer does, replace
full-width Latin and half-width katakana, lower-case, replace Han, hiragana, katakana and Hangul characters that stand
directly side by side by all pairs of neighbours, drop stop words. A character without neighbours stays alone, and words
in other scripts stay as they are.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from unicodedata import normalize

import regex

from ralm.retrieval.analysis.english import STOP_WORDS
from ralm.retrieval.analysis.words import lower_case, placed_words

_CJK_STOP_WORDS: Final = (STOP_WORDS | {"s", "t", "www"}) - {"an"}

_IDEOGRAPH: Final = r"[\p{Script=Han}\p{Script=Hiragana}--\p{WB=ALetter}]"
_MARK: Final = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]"
_IDEOGRAPHS: Final = regex.compile(rf"{_IDEOGRAPH}+(?!{_MARK})", regex.V1)
"""Characters that are words of their own whatever stands around them; most of a text needs no more than this."""
_PAIRED: Final = regex.compile(
    rf"{_IDEOGRAPH}{_MARK}*|(?:\p{{WB=Katakana}}{_MARK}*)+|(?:[\p{{Script=Hangul}}&&\p{{WB=ALetter}}]{_MARK}*)+",
    regex.V1,
)
"""Words whose characters are paired with their neighbours."""

_VOICING_MARKS: Final = {0xFF9E: "\u3099", 0xFF9F: "\u309a"}
_WIDTHS: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    code: normalize("NFKC", chr(code)) for code in range(0xFF65, 0xFF9E)
}
_VOICED: Final = re.compile("[\u30a6-\u30fd][\uff9e\uff9f]")


class _Part(NamedTuple):
    """Part of a run, from `begin` to `end`: a word, or characters that are paired with their neighbours."""

    begin: int
    end: int
    characters: str
    paired: bool


def cjk_terms(run: str) -> tuple[str, ...]:
    """The terms of a run of characters without white space; stop words have none."""
    found: list[str] = []
    neighbours, end = "", 0
    for part in _parts(run):
        if neighbours and not (part.paired and part.begin == end):
            found += _pairs(neighbours)
            neighbours = ""
        if part.paired:
            neighbours += part.characters
            end = part.end
        else:
            found.append(lower_case(part.characters))
    found += _pairs(neighbours)
    return tuple([term for term in found if term not in _CJK_STOP_WORDS])


def _parts(run: str) -> Iterator[_Part]:
    begin = 0
    for ideographs in () if run.isascii() else _IDEOGRAPHS.finditer(run):
        yield from _words(run, begin, ideographs.start())
        begin = ideographs.end()
        yield _Part(ideographs.start(), begin, ideographs.group(), paired=True)
    yield from _words(run, begin, len(run))


def _words(run: str, begin: int, end: int) -> Iterator[_Part]:
    """The words in a part of a run."""
    if begin < end:
        for position, word in placed_words(run[begin:end]):
            first = begin + position
            yield _Part(first, first + len(word), _in_one_width(word), paired=_PAIRED.fullmatch(word) is not None)


def _pairs(neighbours: str) -> list[str]:
    """All pairs of neighbours; a single character stays alone."""
    return [neighbours[i : i + 2] for i in range(len(neighbours) - 1)] or list(neighbours)


def _in_one_width(word: str) -> str:
    """Replace full-width ASCII by ASCII, and half-width katakana by katakana, which a voicing mark becomes part of."""
    if word.isascii():
        return word
    wide = _VOICED.sub(lambda pair: normalize("NFC", pair[0].translate(_VOICING_MARKS)), word.translate(_WIDTHS))
    return wide.translate(_VOICING_MARKS)
