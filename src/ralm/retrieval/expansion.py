"""Passages together with their neighbours in the document, read as one passage under the number of the hit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, Final, overload

from pydantic import JsonValue

from ralm.corpus.words import runs_of_words
from ralm.errors import UsageError
from ralm.records import BoolArray, Passage, Passages
from ralm.validation import MAX_COUNT

WHOLE: Final = "document"


def check_expansion(expand: str) -> int | None:
    """Return the number of neighbours on each side, None for the whole document; UsageError if it is neither."""
    if expand == WHOLE:
        return None
    if not (expand.isascii() and expand.isdigit() and 0 < int(expand) <= MAX_COUNT):
        raise UsageError(f"`expand` must be a number of neighbours from 1 on, or {WHOLE}, not {expand!r}.")
    return int(expand)


class ExpandedPassages(Sequence[Passage]):
    """Passages of an index, each with its neighbours in the document: `expand` on each side, or all.

    `splitting`: how the index says that its documents were split. Words that two passages share where one ends and the
    next begins are read once. `mask_N` (bool): the passages that may be read; neighbours end before others.
    """

    def __init__(
        self, passages: Passages, expand: str, splitting: JsonValue = None, mask_N: BoolArray | None = None
    ) -> None:
        self._passages = passages
        self._mask_N = mask_N
        self._neighbours = check_expansion(expand)
        recorded: Mapping[str, Any] = splitting if isinstance(splitting, dict) else {}
        self._overlap = int(recorded.get("overlap_words", 0))
        self._between = "\n" if "split" in recorded else " "

    def __len__(self) -> int:
        return len(self._passages)

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...

    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        """Return the passage with this number and its neighbours; a slice returns a list."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        hit = self._passages[number]
        most = len(self) if self._neighbours is None else self._neighbours
        before = range(hit.number - 1, max(-1, hit.number - 1 - most), -1)
        after = range(hit.number + 1, min(len(self), hit.number + 1 + most))
        text, last = list[str](), ""
        for passage in (*reversed(self._of_document(hit, before)), hit, *self._of_document(hit, after)):
            text += filter(None, [self._without_repeated(last, passage.text)])
            last = passage.text
        return replace(hit, text=self._between.join(text))

    def _of_document(self, hit: Passage, numbers: range) -> list[Passage]:
        """Return the passages with these numbers, up to the end of the hit's document or one that may not be read."""
        allowed = numbers if self._mask_N is None else takewhile(self._mask_N.item, numbers)
        passages = map(self._passages.__getitem__, allowed)
        return [*takewhile(lambda other: other.document_id == hit.document_id, passages)]

    def _without_repeated(self, before: str, following: str) -> str:
        """Return the text of a passage without the words at its beginning that end the passage before."""
        if not self._overlap or not before:
            return following
        last = [word[0] for word in runs_of_words(before, 1)][-self._overlap :]
        words = [*islice(runs_of_words(following, 1), self._overlap)]
        for count in range(min(len(last), len(words)), 0, -1):
            if last[-count:] == [word[0] for word in words[:count]]:
                return following[words[count - 1].end() :].lstrip()
        return following
