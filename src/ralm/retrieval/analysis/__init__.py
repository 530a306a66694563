"""How texts become index terms: the registry of analysers by name; where the terms of a query are in a text.

A new analyser is a line in `_ANALYSES` and one in `analysers.terms_of_run`. An index records the name of its analyser,
so queries are analysed like its passages. `analysers.py` is imported on first use, so importing the names is cheap.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import Stemmer

from ralm.errors import UsageError

if TYPE_CHECKING:
    from ralm.retrieval.analysis.analysers import PlacedWord

TermsOfRun: TypeAlias = Callable[[str], tuple[str, ...]]
"""Returns the index terms, in order, of a run of characters without white space."""

_CACHED_RUNS: Final = 1 << 17
"""How many runs of characters an analyser caches before it clears the cache; this bounds its memory."""
_MAX_CACHED_TERMS: Final = 8
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
        terms: list[str] = []
        for run in text.split():
            run_terms = self._cache.get(run)
            if run_terms is None:
                run_terms = self._terms_of_run(run)
                if len(run_terms) <= _MAX_CACHED_TERMS:
                    if len(self._cache) >= _CACHED_RUNS:
                        self._cache.clear()
                    self._cache[run] = run_terms
            terms += run_terms
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


class Mark(NamedTuple):
    """A term, and the first and one past the last character of the words that have it."""

    begin: int
    end: int
    term: str


class Marker:
    """A finder of the terms of an index in texts; without an analyser it finds none. Only one thread may use it."""

    def __init__(self, analysis: Analysis | None) -> None:
        self._analysis = analysis
        self._analyser = Analyser(analysis) if analysis else None

    def terms(self, text: str) -> set[str]:
        """Return the terms of a text."""
        return {*self._analyser(text)} if self._analyser else set()

    def marks(self, text: str, terms: Container[str]) -> list[Mark]:
        """Return the words of a text that have these terms, in order; two words without a space may make one term."""
        marks: list[Mark] = []
        if self._analysis is None or self._analyser is None:
            return marks
        first, before = 0, ""
        for begin, end, word, follows in self._analysis.placed_words(text):
            word_terms = self._analyser(word)
            if follows:
                alone = {*self._analyser(before), *word_terms}
                of_both = [term for term in self._analyser(before + word) if term not in alone]
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
