"""Every analyser by name.

A user chooses an analyser by its name. An index records what decides its terms, so that queries are analysed as its
passages were. The code of an analyser is imported when it is used, so the names are cheap to import.
"""

from collections.abc import Callable
from typing import Final, Literal, get_args

from ralm.errors import UsageError
from ralm.retrieval.analysis.analyser import Analysis, TermsOfRun

AnalyserName = Literal["english", "standard"]


def _english() -> TermsOfRun:
    from ralm.retrieval.analysis.english import english_terms

    return english_terms()


def _standard() -> TermsOfRun:
    from ralm.retrieval.analysis.words import standard_terms

    return standard_terms


ENGLISH: Final = Analysis(name="english", recorded="lucene-english", prepare=_english)
STANDARD: Final = Analysis(name="standard", recorded="lucene-standard", prepare=_standard)
_BY_NAME: Final[dict[str, Callable[[], Analysis]]] = {"english": lambda: ENGLISH, "standard": lambda: STANDARD}


def analysis_named(name: str) -> Analysis:
    """The analyser with this name.

    Raises UsageError if there is none.
    """
    if name not in _BY_NAME:
        raise UsageError(f"`analyser` must be one of {', '.join(get_args(AnalyserName))}, not {name!r}.")
    return _BY_NAME[name]()


def analysis_recorded(recorded: str) -> Analysis | None:
    """The analyser that an index records as this; None if this version of ralm has none."""
    every = (make() for make in _BY_NAME.values())
    return next((analysis for analysis in every if analysis.recorded == recorded), None)
