"""How texts become index terms.

named.py       every analyser by name: what users choose, and what an index records
analyser.py    an analyser as a value, and how it is used on texts
words.py       the words of a text by the Unicode standard, and lower case

english.py     Lucene's EnglishAnalyzer
cjk.py         Lucene's CJKAnalyzer: pairs of Chinese, Japanese and Korean characters
snowball.py    the languages that Snowball has a stemmer for
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from ralm.errors import UsageError

TermsOfRun: TypeAlias = Callable[[str], tuple[str, ...]]
"""Gives the index terms, in order, of a run of characters without white space."""

REMEMBERED: Final = 1 << 17
"""How many runs of characters an analyser caches before it clears the cache; this bounds its memory."""
MOST_TERMS_REMEMBERED: Final = 8
"""Runs with more terms are not cached: they hardly repeat, and where words have no white space between them, as in
Chinese, most runs are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """How texts become index terms; passages and queries must be analysed in the same way.

    `name`: what users call it. `recorded`: what the index and the configuration of a retriever record; it changes
    whenever the terms of any text change. `prepare`: makes the function that gives the terms of a run, which only one
    thread may use. `stemmer`: gives the name and version of the installed stemming library, if its versions differ in
    terms.
    """

    name: str
    recorded: str
    prepare: Callable[[], TermsOfRun]
    stemmer: Callable[[], str] | None = None


class Analyser:
    """Turns texts into index terms. No word crosses white space, so each run of characters between white space is
    analysed once and cached. Most of a text repeats such runs."""

    def __init__(self, analysis: Analysis) -> None:
        self._remembered: dict[str, tuple[str, ...]] = {}
        self._terms_of_run = analysis.prepare()

    def __call__(self, text: str) -> list[str]:
        """The index terms of a text, in order."""
        return [term for run in text.split() for term in self._run(run)]

    def _run(self, run: str) -> tuple[str, ...]:
        """The terms of a run of characters without white space; cached."""
        terms = self._remembered.get(run)
        if terms is None:
            terms = self._terms_of_run(run)
            if len(terms) <= MOST_TERMS_REMEMBERED:
                if len(self._remembered) >= REMEMBERED:
                    self._remembered.clear()
                self._remembered[run] = terms
        return terms


LANGUAGES: Final = (
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "esperanto", "estonian", "finnish", "french",
    "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian",
    "persian", "polish", "portuguese", "romanian", "russian", "serbian", "sesotho", "spanish", "swedish", "tamil",
    "turkish", "yiddish",
)  # fmt: skip
"""The languages that Snowball's stemmers are used for."""


def _english() -> TermsOfRun:
    from ralm.retrieval.analysis.lucene import english_terms

    return english_terms()


def _standard() -> TermsOfRun:
    from ralm.retrieval.analysis.lucene import standard_terms

    return standard_terms


def _cjk() -> TermsOfRun:
    from ralm.retrieval.analysis.lucene import cjk_terms

    return cjk_terms


def _snowball(language: str) -> TermsOfRun:
    from ralm.retrieval.analysis.snowball import snowball_terms

    return snowball_terms(language)


def _stemmer() -> str:
    from ralm.retrieval.analysis.snowball import stemming_library

    return stemming_library()


ENGLISH: Final = Analysis(name="english", recorded="lucene-english", prepare=_english)
_ALL: Final = (
    ENGLISH,
    Analysis(name="standard", recorded="lucene-standard", prepare=_standard),
    Analysis(name="cjk", recorded="lucene-cjk", prepare=_cjk),
    *(
        Analysis(name=language, recorded=f"snowball-{language}", prepare=partial(_snowball, language), stemmer=_stemmer)
        for language in LANGUAGES
    ),
)


def analysis_by_name(name: str) -> Analysis:
    """The analyser with this name.

    Raises UsageError if there is none.
    """
    found = next((analysis for analysis in _ALL if analysis.name == name), None)
    if found is None:
        names = ", ".join(analysis.name for analysis in _ALL)
        raise UsageError(f"`analyser` must be one of {names}, not {name!r}.")
    return found


def analysis_as_recorded(recorded: str) -> Analysis | None:
    """The analyser that an index records as this; None if this version of ralm has none."""
    return next((analysis for analysis in _ALL if analysis.recorded == recorded), None)
