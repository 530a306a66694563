"""How texts become index terms: the registry of analysers by name.

A new analyser is a line in `_ANALYSES` and one in `analysers.terms_of_run`. An index records the name of its analyser,
so queries are analysed like its passages. `analysers.py` is imported on first use, so importing the names is cheap.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import Stemmer

from ralm.errors import UsageError

TermsOfRun: TypeAlias = Callable[[str], tuple[str, ...]]
"""Returns the index terms, in order, of a run of characters without white space."""

_CACHED_RUNS: Final = 1 << 17
"""How many runs of characters an analyser caches before it clears the cache; this bounds its memory."""
MAX_CACHED_TERMS: Final = 8
"""Runs with more terms are not cached: they rarely repeat. Most runs of languages without spaces, such as Chinese, have
more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """How texts become index terms; passages and queries must be analysed in the same way.

    `name`: the name for users. `recorded`: the name in indexes and in the configuration of retrievers; it changes
    whenever the terms of any text change.
    """

    name: str
    recorded: str

    @property
    def stemmer(self) -> str | None:
        """The name and version of the installed stemming library, if its versions differ in terms."""
        from importlib.metadata import version

        return f"PyStemmer {version('PyStemmer')}" if self.recorded.startswith(_SNOWBALL) else None

    def prepare(self) -> TermsOfRun:
        """The function that returns the terms of a run, which only one thread may use."""
        from ralm.retrieval.analysis.analysers import terms_of_run

        return terms_of_run(self.name)


class Analyser:
    """Turns texts into index terms. Words contain no white space, so each run of characters without white space is
    analysed once and cached; most runs of a text are repeated."""

    def __init__(self, analysis: Analysis) -> None:
        self._cache: dict[str, tuple[str, ...]] = {}
        self._terms_of_run = analysis.prepare()

    def __call__(self, text: str) -> list[str]:
        """The index terms of a text, in order."""
        return [term for run in text.split() for term in self._run(run)]

    def _run(self, run: str) -> tuple[str, ...]:
        """The terms of a run of characters without white space; cached."""
        terms = self._cache.get(run)
        if terms is None:
            terms = self._terms_of_run(run)
            if len(terms) <= MAX_CACHED_TERMS:
                if len(self._cache) >= _CACHED_RUNS:
                    self._cache.clear()
                self._cache[run] = terms
        return terms


_SNOWBALL: Final = "snowball-"
LANGUAGES: Final = tuple(sorted({*Stemmer.algorithms()} - {"english", "porter", "dutch_porter"}))
"""The languages that Snowball's stemmers are used for; older versions of the library have fewer."""
ENGLISH: Final = Analysis(name="english", recorded="lucene-english")
_ANALYSES: Final = (
    ENGLISH,
    Analysis(name="standard", recorded="lucene-standard"),
    Analysis(name="cjk", recorded="lucene-cjk"),
    *(Analysis(name=name, recorded=f"{_SNOWBALL}{name}") for name in LANGUAGES),
)


def analysis_by_name(name: str) -> Analysis:
    """The analyser with this name.

    Raises UsageError if there is none.
    """
    found = next((analysis for analysis in _ANALYSES if analysis.name == name), None)
    if found is None:
        names = ", ".join(analysis.name for analysis in _ANALYSES)
        raise UsageError(f"`analyser` must be one of {names}, not {name!r}.")
    return found


def analysis_as_recorded(recorded: str) -> Analysis | None:
    """The analyser that indexes record under this name; None if this version of ralm has none."""
    return next((analysis for analysis in _ANALYSES if analysis.recorded == recorded), None)
