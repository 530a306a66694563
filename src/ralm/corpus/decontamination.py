"""Keeping evaluation texts out of a corpus: by the titles of their articles, and by runs of words that both share.

Without this a passage may hold the very text that is to be predicted, and a gain says nothing. Titles remove whole
documents, as both papers' code does; shared words remove *passages*, since a passage is what is retrieved and read, so
a long document that quotes one evaluated sentence keeps its other passages. The rule is GPT-3's (a shared run of 13
words) with RETRO's measure, the share of a passage that is shared, as its threshold.

What it cannot see: a shared run that the border between two passages cuts in two, neither part of which has `ngram`
words; and passages of fewer words than that.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

from pydantic import JsonValue

from ralm.corpus.text import read_utf8
from ralm.errors import CorpusError, UsageError
from ralm.options import Option, check_options
from ralm.records import Document

BY_TITLE: Final = "forbidden title"
BY_OVERLAP: Final = "overlap with an evaluation text"
_NGRAM: Final = 13
_MAX_OVERLAP: Final = 0.0
_WORD: Final = re.compile(r"\w+")
_CLUE_WORDS: Final = 4
_ROWS_LISTED: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontamination:
    """What must not be in a corpus; made with `Decontamination.of`.

    `titles`: documents so titled are left out, compared as `normal_title` writes them. `ngram` and `max_overlap`: a
    passage is left out where more than this share of its runs of so many words stand in an evaluation text; 0 leaves
    out every passage that shares a single one. Words are compared in lower case and without punctuation.

    `hashes` has 8 bytes of BLAKE2 for every such run of the evaluation texts, the same in every process. `clues` has
    every run of a few words: all but few passages are cleared by looking up a handful of those.
    """

    titles: frozenset[str] = frozenset()
    ngram: Annotated[int, Option("Words in a row that count as overlap.")] = _NGRAM
    max_overlap: Annotated[
        float, Option("Leave a passage out only if more than this share of its runs of words is shared.", most=1)
    ] = _MAX_OVERLAP
    hashes: frozenset[int] = frozenset()
    clues: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_overlap == 1:
            raise UsageError("`max_overlap` must be below 1: no passage shares more than all of its runs of words.")

    @classmethod
    def of(
        cls,
        titles: Iterable[str] = (),
        texts: Iterable[str] = (),
        ngram: int = _NGRAM,
        max_overlap: float = _MAX_OVERLAP,
    ) -> "Decontamination":
        """Forbid these titles, and runs of `ngram` words of these evaluation texts.

        Raises UsageError where `ngram` is below 1, `max_overlap` is not from 0 up to but not including 1, or texts
        were given but none is as long as `ngram` words, so that nothing could ever be found.
        """
        options = cls(ngram=ngram, max_overlap=max_overlap)
        hashes: set[int] = set()
        clues: set[str] = set()
        lengths = [_take_in(text, ngram, hashes, clues) for text in texts]
        if lengths and not hashes:
            raise UsageError(f"`ngram` {ngram} is longer than the evaluation texts ({max(lengths)} words); lower it.")
        forbidden = frozenset(normal_title(title) for title in titles) - {""}
        return replace(options, titles=forbidden, hashes=frozenset(hashes), clues=frozenset(clues))

    @property
    def settings(self) -> dict[str, JsonValue]:
        """What was asked for, for a manifest."""
        return {
            "titles": len(self.titles),
            "ngram": self.ngram,
            "max_overlap": self.max_overlap,
            "evaluation_ngrams": len(self.hashes),
        }

    def forbids(self, document: Document) -> bool:
        """Whether the document's title is forbidden."""
        return bool(self.titles) and normal_title(document.title) in self.titles

    def overlaps(self, passage: str) -> bool:
        """Whether the passage has too much in common with the evaluation texts."""
        if not self.hashes:
            return False
        words = _words(passage)
        shared = self._shared(words)
        if self.max_overlap == 0:
            return next(shared, None) is not None
        return sum(1 for _ in shared) > self.max_overlap * self._runs(words)

    def overlap(self, passage: str) -> float:
        """The share, from 0 to 1, of the passage's runs of `ngram` words that stand in an evaluation text."""
        words = _words(passage)
        return sum(1 for _ in self._shared(words)) / self._runs(words)

    def _runs(self, words: Sequence[str]) -> int:
        """How many runs of `ngram` words there are, at least 1: too short a passage shares 0 of 1."""
        return max(1, len(words) - self.ngram + 1)

    def _shared(self, words: Sequence[str]) -> Iterator[int]:
        """Where the runs that stand in an evaluation text begin, each once.

        A run of n words holds n - c + 1 clues of c words, so exactly one of every (n - c + 1)th clue of the passage:
        only where that one stands in an evaluation text are the runs that hold it looked up.
        """
        n, c = self.ngram, _clue_words(self.ngram)
        step = n - c + 1
        for clue in range(0, len(words) - c + 1, step):
            if " ".join(words[clue : clue + c]) in self.clues:
                for begin in range(max(0, clue - step + 1), min(clue, len(words) - n) + 1):
                    if _hash(words[begin : begin + n]) in self.hashes:
                        yield begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was left out of one document: how many passages, and why."""

    reason: str
    document_id: str
    title: str
    passages: int


class Removals:
    """What was left out of a corpus, for its manifest: exact counts, and a list with a row per reason and title.

    The list has ten thousand rows at most, so that neither memory nor the manifest grows with the corpus.
    """

    def __init__(self) -> None:
        self._passages: Counter[str] = Counter()
        self._documents: Counter[str] = Counter()
        self._rows: dict[tuple[str, str, str], int] = {}

    def add(self, removed: Removed) -> None:
        """Count what was left out of a document."""
        self._passages[removed.reason] += removed.passages
        self._documents[removed.reason] += 1
        key = (removed.reason, removed.title, "" if removed.title else removed.document_id)
        if key in self._rows or len(self._rows) < _ROWS_LISTED:
            self._rows[key] = self._rows.get(key, 0) + removed.passages

    def count(self, reason: str) -> int:
        """How many passages were left out for this reason."""
        return self._passages[reason]

    def counts(self) -> dict[str, JsonValue]:
        """How many documents (wholly or in part) and passages were left out, by reason, for the manifest."""
        return {
            reason: {"documents": self._documents[reason], "passages": self._passages[reason]}
            for reason in sorted(self._documents)
        }

    @property
    def unlisted(self) -> int:
        """How many passages were left out that no row of `listed` counts, because there would be too many."""
        return self._passages.total() - sum(self._rows.values())

    def listed(self) -> list[JsonValue]:
        """A row per reason and title (or id, where there is no title), for the manifest: at most ten thousand."""
        return [
            {"reason": reason, "title": title, "document_id": identifier, "passages": count}
            for (reason, title, identifier), count in sorted(self._rows.items())
        ]


def normal_title(title: str) -> str:
    """A title as it is compared: without white space and quotation marks around it, in lower case.

    Nothing within it changes: neither underscores nor a qualifier in parentheses, which tells articles apart.
    """
    return title.strip("\"'\u201c\u201d\u2018\u2019 \t\r\n\f\v\u00a0").casefold()


def read_titles(path: Path) -> list[str]:
    """Forbidden titles from a file, one a line.

    Raises CorpusError where the file is missing, not UTF-8, or holds none.
    """
    return read_lines(path, "titles", normal_title)


def read_lines(path: Path, what: str, normal: Callable[[str], str] = str.strip) -> list[str]:
    """The lines of a file of which `normal` leaves something; `what` they are is said in messages.

    Raises CorpusError where the file is missing, not UTF-8, or has none.
    """
    lines = [line for line in read_utf8(path).splitlines() if normal(line)]
    if not lines:
        raise CorpusError(f"{path} holds no {what}; write one a line.")
    return lines


def _take_in(text: str, ngram: int, hashes: set[int], clues: set[str]) -> int:
    """Add the runs and the clues of an evaluation text; how many words it has."""
    words = _words(text)
    c = _clue_words(ngram)
    hashes.update(_hash(words[i : i + ngram]) for i in range(len(words) - ngram + 1))
    clues.update(" ".join(words[i : i + c]) for i in range(len(words) - c + 1))
    return len(words)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _clue_words(ngram: int) -> int:
    return min(_CLUE_WORDS, ngram)


def _hash(words: Sequence[str]) -> int:
    return int.from_bytes(blake2b(" ".join(words).encode(), digest_size=8).digest(), "little")
