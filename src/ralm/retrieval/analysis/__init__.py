"""How texts become index terms: the registry of analysers by name.

A new analyser is a line in `_ANALYSES` and one in `analysers.terms_of_run`. An index records the name of its analyser,
so queries are analysed like its passages. `analysers.py` is imported on first use, so importing the names is cheap.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import Stemmer

from ralm.errors import UsageError

if TYPE_CHECKING:
    from ralm.retrieval.analysis.analysers import PlacedWord

TermsOfRun: TypeAlias = Callable[[str], tuple[str, ...]]
"""Returns the index terms, in order, of a run of characters without white space."""

_CACHED_RUNS: Final = 1 << 17
"""How many runs of characters an analyser caches before it clears the cache; this bounds its memory."""
MAX_CACHED_TERMS: Final = 8
"""Runs with more terms are not cached: they rarely repeat. Most runs of languages without spaces, such as Chinese, have
more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """How texts become index terms, by the `name` for users and the `recorded` one in indexes.

    The recorded name changes whenever the terms of any text change.
    """

    name: str
    recorded: str

    @property
    def stemmer(self) -> str | None:
        """Return the name and version of the installed stemming library, if its versions differ in terms."""
        from importlib.metadata import version

        return f"PyStemmer {version('PyStemmer')}" if self.name.removeprefix(LUCENE) in LANGUAGES else None

    def prepare(self) -> TermsOfRun:
        """Return the function that returns the terms of a run, which only one thread may use."""
        from ralm.retrieval.analysis.analysers import terms_of_run

        return terms_of_run(self.name)

    def placed_words(self, text: str) -> "Iterator[PlacedWord]":
        """Return the words of a text, in order."""
        from ralm.retrieval.analysis.analysers import placed_words

        return placed_words(self.name, text)


class Analyser:
    """A function that turns texts into index terms; the terms of most runs without white space are cached."""

    def __init__(self, analysis: Analysis) -> None:
        self._cache: dict[str, tuple[str, ...]] = {}
        self._terms_of_run = analysis.prepare()

    def __call__(self, text: str) -> list[str]:
        """Return the index terms of a text, in order."""
        return [term for run in text.split() for term in self._run(run)]

    def _run(self, run: str) -> tuple[str, ...]:
        """Return the terms of a run of characters without white space; cached."""
        terms = self._cache.get(run)
        if terms is None:
            terms = self._terms_of_run(run)
            if len(terms) <= MAX_CACHED_TERMS:
                if len(self._cache) >= _CACHED_RUNS:
                    self._cache.clear()
                self._cache[run] = terms
        return terms


LUCENE: Final = "lucene-"
"""Begins the names of analysers that take text as it is."""
LANGUAGES: Final = tuple(sorted({*Stemmer.algorithms()} - {"english", "porter", "dutch_porter"}))
"""The languages that Snowball's stemmers are used for; older versions of the library have fewer."""
_NAMES: Final = ("english", "standard", "cjk", *LANGUAGES)
_ANALYSES: Final = (
    *(Analysis(name=name, recorded=f"plain-{name}") for name in _NAMES),
    *(Analysis(name=f"{LUCENE}{name}", recorded=f"{LUCENE}{name}") for name in _NAMES[:3]),
    *(Analysis(name=f"{LUCENE}{name}", recorded=f"snowball-{name}") for name in LANGUAGES),
)


def analysis_by_name(name: str) -> Analysis:
    """Return the analyser with this name, `lucene` being `lucene-english`; UsageError if there is none."""
    full_name = f"{LUCENE}english" if name == "lucene" else name
    analysis = next((analysis for analysis in _ANALYSES if analysis.name == full_name), None)
    if analysis is None:
        raise UsageError(
            f"`analyser` must be one of {', '.join(_NAMES)}, or one of them as in Lucene, such as {LUCENE}english, not "
            f"{name!r}."
        )
    return analysis


ENGLISH: Final = analysis_by_name("english")


def analysis_as_recorded(recorded: str) -> Analysis | None:
    """Return the analyser that indexes record under this name; None if this version of ralm has none."""
    return next((analysis for analysis in _ANALYSES if analysis.recorded == recorded), None)
