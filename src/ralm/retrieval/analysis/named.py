"""Every analyser by name.

A user chooses an analyser by its name. An index records what decides its terms, so that queries are analysed as its
passages were. The code of an analyser is imported when it is used, so the names are cheap to import.
"""

from functools import partial
from typing import Final

from ralm.errors import UsageError
from ralm.retrieval.analysis.analyser import Analysis, TermsOfRun

LANGUAGES: Final = (
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "esperanto", "estonian", "finnish", "french",
    "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian",
    "persian", "polish", "portuguese", "romanian", "russian", "serbian", "sesotho", "spanish", "swedish", "tamil",
    "turkish", "yiddish",
)  # fmt: skip
"""The languages that Snowball's stemmers are used for."""


def _english() -> TermsOfRun:
    from ralm.retrieval.analysis.english import english_terms

    return english_terms()


def _standard() -> TermsOfRun:
    from ralm.retrieval.analysis.words import standard_terms

    return standard_terms


def _cjk() -> TermsOfRun:
    from ralm.retrieval.analysis.cjk import cjk_terms

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


def analysis_named(name: str) -> Analysis:
    """The analyser with this name.

    Raises UsageError if there is none.
    """
    found = next((analysis for analysis in _ALL if analysis.name == name), None)
    if found is None:
        names = ", ".join(analysis.name for analysis in _ALL)
        raise UsageError(f"`analyser` must be one of {names}, not {name!r}.")
    return found


def analysis_recorded(recorded: str) -> Analysis | None:
    """The analyser that an index records as this; None if this version of ralm has none."""
    return next((analysis for analysis in _ALL if analysis.recorded == recorded), None)
