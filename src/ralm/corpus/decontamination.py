"""Keeps evaluation texts out of a corpus, by article title and by shared runs of words (n-grams).

Titles remove whole documents, as in the code of both papers. Shared words remove *passages*, by GPT-3's rule (a shared
run of 13 words) and RETRO's measure (the share of a passage that is shared). A run that stands in several passages of a
document removes all of them. Words are those of `bare_words`, so layout, quotes, dashes and hyphens do not matter.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.corpus.files import whole_text
from ralm.corpus.sources import read_texts
from ralm.corpus.words import bare_words, placed_bare_words, plain_text, readings_of
from ralm.errors import CorpusError, InputError, UsageError
from ralm.options import Option, check_options
from ralm.records import Document
from ralm.validation import check_strings

BY_TITLE: Final = "forbidden title"
BY_OVERLAP: Final = "overlap with an evaluation text"
NGRAM: Final = 13
"""Words in a row that count as overlap, as for GPT-3."""
_MAX_OVERLAP: Final = 0.0
_CLUE_WORDS: Final = 4
_ROWS_LISTED: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontamination:
    """What must not be in a corpus; create it with `Decontamination.of`.

    Documents with these `titles` are removed. A passage is removed if more than the share `max_overlap` of its runs of
    `ngram` words, in lower case and without punctuation, is in an evaluation text. `hashes` are those of every such run
    of the evaluation texts; `clues` are their runs of a few words, which clear most passages.
    """

    titles: frozenset[str] = frozenset()
    ngram: Annotated[int, Option("Words in a row that count as overlap.")] = NGRAM
    max_overlap: Annotated[
        float, Option("Leave a passage out only if more than this share of its runs of words is shared.", maximum=1)
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
        ngram: int = NGRAM,
        max_overlap: float = _MAX_OVERLAP,
    ) -> "Decontamination":
        """Forbid these titles, and the runs of words of these evaluation texts.

        Args:
            titles: Titles of documents that are removed, whatever their case and quotation marks.
            texts: Evaluation texts; passages that share runs of words with them are removed.
            ngram: Words in a row that count as overlap.
            max_overlap: Share of a passage's runs that may be in the texts, from 0 to below 1.

        Raises:
            UsageError: If `ngram` or `max_overlap` is out of range, or all texts have fewer than `ngram` words, so that
                no overlap could ever be found.
        """
        check_strings("titles", titles)
        check_strings("texts", texts)
        options = cls(ngram=ngram, max_overlap=max_overlap)
        hashes, clues, lengths = set[int](), set[str](), list[int]()
        for text in texts:
            for joined in readings_of(text):
                words = bare_words(text, joined=joined)
                hashes.update(map(run_hash, runs_of(words, ngram)))
                clues.update(runs_of(words, min(_CLUE_WORDS, ngram)))
                lengths.append(len(words))
        if lengths and not hashes:
            raise UsageError(f"`ngram` {ngram} is longer than the evaluation texts ({max(lengths)} words); lower it.")
        forbidden = frozenset(normal_title(title) for title in titles) - {""}
        return replace(options, titles=forbidden, hashes=frozenset(hashes), clues=frozenset(clues))

    @property
    def settings(self) -> dict[str, JsonValue]:
        """The settings for a manifest."""
        return {
            "titles": len(self.titles),
            "ngram": self.ngram,
            "max_overlap": self.max_overlap,
            "evaluation_ngrams": len(self.hashes),
        }

    def forbids(self, document: Document) -> bool:
        """Return whether the document's title is forbidden."""
        return bool(self.titles) and normal_title(document.title) in self.titles

    def overlap(self, passage: str) -> float:
        """Return the share, from 0 to 1, of the passage's runs of `ngram` words that are in an evaluation text."""
        readings = [bare_words(passage, joined=joined) for joined in readings_of(passage)]
        return max(len(self._shared_runs(words)) / max(1, len(words) - self.ngram + 1) for words in readings)

    def overlaps(self, text: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return which passages of a text share too much with the evaluation texts.

        The runs of a passage are those with a word of it, so one that straddles two passages is in both.

        Args:
            text: The whole document.
            spans: The first and one past the last character of each passage.
        """
        every = [False] * len(spans)
        for joined in readings_of(text):
            if not self._shared_runs(bare_words(text, joined=joined)):
                continue
            begins, ends, words = zip(*placed_bare_words(text, joined=joined), strict=True)
            shared, runs = self._shared_runs(words), len(words) - self.ngram + 1
            for place, (begin, end) in enumerate(spans):
                first, last = bisect_right(ends, begin), bisect_left(begins, end)
                with_passage = range(max(0, first - self.ngram + 1), min(last, runs))
                count = bisect_left(shared, with_passage.stop) - bisect_left(shared, with_passage.start)
                every[place] |= first < last and count > self.max_overlap * max(1, len(with_passage))
        return every

    def _shared_runs(self, words: Sequence[str]) -> list[int]:
        """Return at which words a run begins that is in an evaluation text.

        A run of n words contains n - c + 1 clues of c words, so it contains exactly one of every (n - c + 1)th clue.
        Only if that clue is in an evaluation text are the runs that contain it looked up.
        """
        n, c = self.ngram, min(_CLUE_WORDS, self.ngram)
        step, shared = n - c + 1, list[int]()
        for clue in range(0, len(words) - c + 1, step):
            if " ".join(words[clue : clue + c]) in self.clues:
                first = max(0, clue - step + 1)
                runs = enumerate(runs_of(words[first : clue + n], n), first)
                shared += [begin for begin, run in runs if run_hash(run) in self.hashes]
        return shared


class Removals:
    """Counts what decontamination removed, and lists it for a manifest; the list alone has at most 10,000 rows."""

    def __init__(self) -> None:
        self._passages: Counter[str] = Counter()
        self._documents: Counter[str] = Counter()
        self._rows: dict[tuple[str, str, str], int] = {}

    def add(self, reason: str, document_id: str, title: str, passages: int) -> None:
        """Count removed passages of a document, for `reason`, such as a forbidden title."""
        self._passages[reason] += passages
        self._documents[reason] += 1
        key = (reason, title, "" if title else document_id)
        if key in self._rows or len(self._rows) < _ROWS_LISTED:
            self._rows[key] = self._rows.get(key, 0) + passages

    def count(self, reason: str) -> int:
        """Return the number of passages removed for this reason."""
        return self._passages[reason]

    def counts(self) -> dict[str, JsonValue]:
        """Return the number of documents (fully or partly) and passages removed, by reason, for the manifest."""
        return {
            reason: {"documents": self._documents[reason], "passages": self._passages[reason]}
            for reason in sorted(self._documents)
        }

    @property
    def not_listed(self) -> int:
        """The number of removed passages that `listed` does not count, because the list is full."""
        return self._passages.total() - sum(self._rows.values())

    def listed(self) -> list[JsonValue]:
        """Return one row per reason and title (or id, without a title), for the manifest: at most ten thousand rows."""
        return [
            {"reason": reason, "title": title, "document_id": identifier, "passages": count}
            for (reason, title, identifier), count in sorted(self._rows.items())
        ]


def normal_title(title: str) -> str:
    """Return a title for comparison: plain, case-folded, without quotes around; qualifiers in parentheses stay."""
    return plain_text(title).strip("\"'\u201c\u201d\u2018\u2019 \t\r\n\f\v\u00a0").casefold()


def read_decontamination(titles: Path | None, texts: Sequence[Path], ngram: int, max_overlap: float) -> Decontamination:
    """Return the decontamination by files; raises what `Decontamination.of` raises, CorpusError or TextError."""
    return Decontamination.of(
        titles=[] if titles is None else read_titles(titles),
        texts=[text for path in texts for text in read_texts(path, Fields())],
        ngram=ngram,
        max_overlap=max_overlap,
    )


def read_titles(path: Path) -> list[str]:
    """Return forbidden titles from a file, one per line; CorpusError if there are none."""
    return read_lines(path, "titles", normal_title)


def read_lines(path: Path, what: str, normal: Callable[[str], str] = str.strip) -> list[str]:
    """Return the lines of a file that are not empty after `normal`; CorpusError, naming `what`, if there are none."""
    lines = [line for line in whole_text(path, InputError).splitlines() if normal(line)]
    if not lines:
        raise CorpusError(f"{path} holds no {what}; write one per line.")
    return lines


def runs_of(words: Sequence[str], length: int) -> Iterator[str]:
    """Return the runs of so many words in a row."""
    return (" ".join(words[begin : begin + length]) for begin in range(len(words) - length + 1))


def run_hash(run: str) -> int:
    """Return a 64-bit hash of a run of words, the same in every process."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "little")
