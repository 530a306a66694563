"""Keeping evaluation texts out of a corpus: by the titles of their articles, and by runs of words that both share.

Without this a passage may hold the very text that is to be predicted, and a gain says nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.corpus.text import decode
from ralm.errors import CorpusError, UsageError
from ralm.records import Document

BY_TITLE: Final = "forbidden title"
BY_OVERLAP: Final = "overlap with an evaluation text"
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontamination:
    """What must not be in a corpus.

    `titles`: documents so titled are left out; compare with `normal_title`. `ngram`: a passage is left out where it
    shares a run of so many words, or a longer one, with one of the evaluation texts (13 as for GPT-3). Words are
    compared in lower case and without punctuation.
    """

    titles: frozenset[str] = frozenset()
    ngram: int = 13
    evaluation_ngrams: frozenset[tuple[str, ...]] = frozenset()
    evaluation_pairs: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, titles: Iterable[str] = (), texts: Iterable[str] = (), ngram: int = 13) -> "Decontamination":
        """Forbid these titles, and runs of `ngram` words of these evaluation texts.

        Raises UsageError where `ngram` is below 2.
        """
        if ngram < 2:
            raise UsageError(f"--ngram must be at least 2, not {ngram}.")
        ngrams: set[tuple[str, ...]] = set()
        pairs: set[tuple[str, str]] = set()
        for text in texts:
            words = _WORD.findall(text.lower())
            ngrams.update(zip(*(words[i:] for i in range(ngram)), strict=False))
            pairs.update(pairwise(words))
        return cls(
            titles=frozenset(normal_title(title) for title in titles) - {""},
            ngram=ngram,
            evaluation_ngrams=frozenset(ngrams),
            evaluation_pairs=frozenset(pairs),
        )

    def forbids(self, document: Document) -> bool:
        """Whether the document's title is forbidden."""
        return bool(self.titles) and normal_title(document.title) in self.titles

    def overlaps(self, passage: str) -> bool:
        """Whether the passage shares a run of `ngram` words with an evaluation text.

        Looks for runs of shared neighbours first: few passages have long ones, so few runs are looked up whole.
        """
        if not self.evaluation_ngrams:
            return False
        words = _WORD.findall(passage.lower())
        run = 1
        for i in range(1, len(words)):
            run = run + 1 if (words[i - 1], words[i]) in self.evaluation_pairs else 1
            if run >= self.ngram and tuple(words[i + 1 - self.ngram : i + 1]) in self.evaluation_ngrams:
                return True
        return False


@dataclass(slots=True)
class Removals:
    """What was left out of a corpus: how many passages of which document, and why."""

    passages: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, reason: str, document: Document, passages: int = 1) -> None:
        """Count passages of a document as left out."""
        key = (reason, document.title, "" if document.title else document.id)
        self.passages[key] = self.passages.get(key, 0) + passages

    def count(self, reason: str) -> int:
        """How many passages were left out for this reason."""
        return sum(count for key, count in self.passages.items() if key[0] == reason)

    def listed(self) -> list[JsonValue]:
        """A row per reason and title (or id, where there is no title), for the manifest."""
        return [
            {"reason": reason, "title": title, "document_id": identifier, "passages": count}
            for (reason, title, identifier), count in sorted(self.passages.items())
        ]


def normal_title(title: str) -> str:
    """A title as it is compared: without white space and quotation marks around it, in lower case."""
    return title.strip().strip("\"'\u201c\u201d").strip().casefold()


def read_titles(path: Path) -> list[str]:
    """Forbidden titles from a file, one a line.

    Raises CorpusError where the file is missing or holds none.
    """
    if not path.is_file():
        raise CorpusError(f"{path} does not exist.")
    titles = [line for line in decode(path.read_bytes(), str(path)).splitlines() if line.strip()]
    if not titles:
        raise CorpusError(f"{path} holds no titles.")
    return titles
