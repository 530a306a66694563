"""An analyser as a value, and how it turns texts into index terms. Knows no analyser in particular."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

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
