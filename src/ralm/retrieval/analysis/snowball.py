"""Analysers for the languages that Snowball has a stemmer for: words are lower-cased and stemmed; stop words stay.

Before that, characters are composed (NFC) and apostrophes made straight, as the stemmers expect. A few languages have
rules of their own: articles that an apostrophe joins to the next word, the suffixes of Turkish names, the two letters i
of Turkish.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Final
from unicodedata import normalize

import Stemmer

from ralm.errors import UsageError
from ralm.retrieval.analysis import TermsOfRun, lucene

_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\uff07": "'"})
_ARTICLES: Final = {
    "catalan": "d l m n s t",
    "french": "c d j jusqu l lorsqu m n puisqu qu quoiqu s t",
    "irish": "b d m",
    "italian": "agl all c coll d dagl dall degl dell gl l m negl nell pell s sugl sull t un v",
}
"""The articles before an apostrophe, as in "l'avion"; the lists are those of Lucene's analysers."""
_CEDILLAS: Final = str.maketrans("\u0218\u0219\u021a\u021b", "\u015e\u015f\u0162\u0163")
"""Maps Romanian letters with a comma below to those with a cedilla, which every version of the stemmer accepts."""


def stemming_library() -> str:
    """The name and version of the library that stems; versions differ in the stems of some languages."""
    return f"PyStemmer {version('PyStemmer')}"


def snowball_terms(language: str) -> TermsOfRun:
    """Returns a function that returns the terms of a run in a language. A word of which the stemmer leaves nothing, as
    in Greek, stays whole.

    Raises UsageError if the installed version of the library lacks the language.
    """
    if language not in Stemmer.algorithms():
        raise UsageError(
            f"the analyser {language!r} needs a newer stemming library than {stemming_library()}: run "
            "`pip install --upgrade PyStemmer`."
        )
    stem: Callable[[str], str] = Stemmer.Stemmer(language, 0).stemWord
    plain = _plain(language)

    def terms(run: str) -> tuple[str, ...]:
        text = run if run.isascii() else normalize("NFC", run).translate(_APOSTROPHES)
        return tuple([stem(word) or word for found in lucene.words(text) if (word := plain(found))])

    return terms


def _plain(language: str) -> Callable[[str], str]:
    """The function that prepares the words of a language for the stemmer."""
    if language in _ARTICLES:
        lower = _lower_irish if language == "irish" else lucene.lower_case
        return partial(_without_article, frozenset(_ARTICLES[language].split()), lower)
    return {"romanian": _with_cedillas, "turkish": _plain_turkish}.get(language, lucene.lower_case)


def _without_article(articles: frozenset[str], lower: Callable[[str], str], word: str) -> str:
    article, apostrophe, rest = word.partition("'")
    return lower(rest if apostrophe and lucene.lower_case(article) in articles else word)


def _lower_irish(word: str) -> str:
    """Lower-case, with a hyphen between an initial n or t and a capital vowel: nAthair becomes n-athair."""
    prefixed = word[0] in "nt" and word[1:2] in tuple("AEIOU\u00c1\u00c9\u00cd\u00d3\u00da")
    return f"{word[0]}-{lucene.lower_case(word[1:])}" if prefixed else lucene.lower_case(word)


def _with_cedillas(word: str) -> str:
    return lucene.lower_case(word.translate(_CEDILLAS))


def _plain_turkish(word: str) -> str:
    """Lower-case with a dotless small i for the dotless capital, and without the suffixes of a name: Ankara'da."""
    return lucene.lower_case(word.partition("'")[0].replace("I", "\u0131"))
