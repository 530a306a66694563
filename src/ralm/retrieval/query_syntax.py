"""Queries with "phrases", title:words, prefixes* and typing errors, for people who search.

The score of a passage is that of BM25 for all terms of the query. A phrase and what follows `title:` must occur.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.records import Hits, IntArray, Passage, Passages
from ralm.retrieval.analysis import Analyser
from ralm.retrieval.bm25.dictionary import terms_beginning_with, terms_near
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.search import BM25

Slot = tuple[str, ...]
"""The terms of which any stands for a word."""
_PART: Final = re.compile(r'(title:)?(?:"(?P<phrase>[^"]*)(?P<end>"?)|(?P<word>[^\s"]+)|(?=\s|$))')
_MAX_TERMS: Final = 1024
_EDITS: Final = {8: 2, 3: 1}
"""How many edits an unknown word of so many letters may be away."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """The words of a query, and those that must follow each other in a passage, or in its title."""

    words: tuple[Slot, ...]
    phrases: tuple[tuple[Slot, ...], ...] = ()
    titles: tuple[tuple[Slot, ...], ...] = ()

    @property
    def terms(self) -> list[str]:
        """All terms, in order."""
        return [term for slot in self.words for term in slot]


class QuerySearch:
    """BM25 for queries with this syntax; `bm25` may leave out passages. With `fuzzy`, a word that no passage has is
    replaced by the terms of the index with the fewest edits: one at most from 3 letters on, two from 8 on; `report`
    is called with it and them. With `syntax` false, the text of a query is plain."""

    def __init__(
        self,
        bm25: BM25,
        passages: Passages,
        *,
        syntax: bool = True,
        fuzzy: bool = False,
        report: Callable[[str, Slot], None] | None = None,
    ) -> None:
        self._bm25, self._passages = bm25, passages
        self._syntax, self._fuzzy, self._report = syntax, fuzzy, report
        self._analyse = Analyser(bm25.analysis)
        self._parsed: dict[str, ParsedQuery] = {}

    @property
    def config(self) -> dict[str, JsonValue]:
        """That of BM25, and how queries are read."""
        return {**self._bm25.config, "syntax": self._syntax, "fuzzy": self._fuzzy}

    @property
    def stable(self) -> int:
        """As for BM25."""
        return self._bm25.stable

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query; UsageError if one has a wrong syntax."""
        return Hits.from_pairs([self._retrieve(self.parse(query), k) for query in queries])

    def parse(self, query: str) -> ParsedQuery:
        """The words of a query; UsageError if its syntax is wrong."""
        if query not in self._parsed:
            self._parsed[query] = self._parse(query) if self._syntax else ParsedQuery(self._slots(query))
        return self._parsed[query]

    def _retrieve(self, query: ParsedQuery, k: int) -> list[tuple[int, float]]:
        forbidden = None
        if query.phrases or query.titles:
            others = np.setdiff1d(np.arange(len(self._passages)), self._allowed(query))
            forbidden = Forbidden.for_all(others, 1)
        return self._bm25.retrieve_words([query.terms], k, forbidden).of(0)

    def _allowed(self, query: ParsedQuery) -> IntArray:
        """The numbers (int64, rising) of the passages with all phrases and titles."""
        slots = dict.fromkeys(slot for phrase in (*query.phrases, *query.titles) for slot in phrase)
        both = reduce(np.intersect1d, map(self._bm25.passages_with, slots))
        if not query.titles and all(len(phrase) == 1 for phrase in query.phrases):
            return both
        return np.array([number for number in both.tolist() if self._fits(self._passages[number], query)], np.int64)

    def _fits(self, passage: Passage, query: ParsedQuery) -> bool:
        every, title = self._analyse(passage.contents), self._analyse(passage.title)
        return all([_has(every, one) for one in query.phrases] + [_has(title, one) for one in query.titles])

    def _parse(self, query: str) -> ParsedQuery:
        words: list[Slot] = []
        phrases: list[tuple[Slot, ...]] = []
        titles: list[tuple[Slot, ...]] = []
        for part in _PART.finditer(query):
            in_title, phrase, word = part[1], part["phrase"], part["word"]
            if phrase is not None and not part["end"]:
                raise _wrong(query, f"the quote before {phrase[:40]!r} has no end")
            if in_title and not (phrase or word):
                raise _wrong(query, "nothing follows `title:`; write title:word without a space")
            if phrase is None and not word:
                continue
            slots = self._slots(phrase) if word is None else self._word(query, word)
            words += slots
            if in_title or phrase is not None:
                if not slots:
                    raise _wrong(query, f"{part[0]} has no word that is indexed")
                (titles if in_title else phrases).append(slots)
        return ParsedQuery(tuple(words), tuple(phrases), tuple(titles))

    def _word(self, query: str, word: str) -> tuple[Slot, ...]:
        """The terms of a word, or of all words with a prefix."""
        if "*" not in word:
            return self._slots(word)
        from ralm.retrieval.analysis.analysers import lower_case, words

        prefix = word[:-1]
        if not word.endswith("*") or words(prefix) != [prefix]:
            raise _wrong(query, f"{word} must be letters or digits with one `*` at the end")
        found = dict.fromkeys([*terms_beginning_with(self._bm25.arrays, lower_case(prefix)), *self._analyse(prefix)])
        if len(found) > _MAX_TERMS:
            raise _wrong(query, f"{len(found):,} terms begin as {word}, and {_MAX_TERMS:,} at most are searched")
        return (tuple(term for term in found if self._is_known(term)),)

    def _slots(self, text: str) -> tuple[Slot, ...]:
        return tuple(self._known(term) for term in self._analyse(text))

    def _known(self, term: str) -> Slot:
        """A term, or those that replace it."""
        edits = next((edits for letters, edits in _EDITS.items() if len(term) >= letters), 0)
        if not self._fuzzy or not edits or self._is_known(term):
            return (term,)
        near = {one: count for one, count in terms_near(self._bm25.arrays, term, edits).items() if self._is_known(one)}
        found = tuple(one for one, count in near.items() if count == min(near.values()))
        if self._report:
            self._report(term, found)
        return found or (term,)

    def _is_known(self, term: str) -> bool:
        """Whether a passage has a term; those of removed passages stay in the dictionary until segments are merged."""
        return bool(self._bm25.terms([term]))


def _has(terms: Sequence[str], phrase: Sequence[Slot]) -> bool:
    """Whether terms follow each other as in a phrase."""
    places = range(len(terms) - len(phrase) + 1)
    return any(all(terms[place + at] in slot for at, slot in enumerate(phrase)) for place in places)


def _wrong(query: str, how: str) -> UsageError:
    return UsageError(f"the query {query!r} cannot be read: {how}. Without `syntax`, text is plain.")
