"""Lucene's English analysis.

The chain of Lucene's EnglishAnalyzer: split into words by the Unicode standard (UAX #29) as StandardTokenizer does,
remove possessives, lower-case, drop the 33 stop words, apply the original Porter stemmer.
"""

from collections.abc import Callable
from typing import Final

import Stemmer

from ralm.retrieval.analysis.analyser import TermsOfRun
from ralm.retrieval.analysis.words import lower_case, words

STOP_WORDS: Final = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()
)
_APOSTROPHES: Final = "'\u2019\uff07"


def english_terms() -> TermsOfRun:
    """Makes the function that gives the terms of a run; stop words have none."""
    porter: Callable[[str], str] = Stemmer.Stemmer("porter", 0).stemWord

    def terms(run: str) -> tuple[str, ...]:
        plain = [lower_case(without_possessive(word)) for word in words(run)]
        return tuple([_stem(word, porter) for word in plain if word and word not in STOP_WORDS])

    return terms


def without_possessive(word: str) -> str:
    """The word without a final possessive 's."""
    return word[:-2] if len(word) >= 2 and word[-1] in "sS" and word[-2] in _APOSTROPHES else word


def _stem(word: str, porter: Callable[[str], str]) -> str:
    """Porter's stemmer as in Lucene. Words of one or two letters stay unchanged. The stemming library follows
    Porter's paper to the letter, so the two rules of step 2 that Porter added in his own later program are added
    here: BLI -> BLE, LOGI -> LOG."""
    if len(word) <= 2:
        return word
    stem = porter(word)
    if stem.endswith("logi") and _has_measure(stem[:-4]):
        return porter(stem[:-1])
    if stem.endswith("bli") and _has_measure(stem[:-3]):
        return porter(stem[:-1] + "e")
    return stem


def _has_measure(stem: str) -> bool:
    """Whether Porter's measure m is above 0, that is, whether some consonant follows a vowel."""
    vowel_before = False
    consonant_before = False
    for letter in stem:
        vowel = letter in "aeiou" or (letter == "y" and consonant_before)
        if vowel_before and not vowel:
            return True
        vowel_before = vowel_before or vowel
        consonant_before = not vowel
    return False
