"""Concatenation: several documents one after the other before the context of each stride (In-Context RALM, section 8).

The paper leaves open in what order and with what between them. Both published codes that read several documents at once
(In-Context RALM's question answering, REPLUG without ensemble) put the best first; REPLUG's joins them with a newline.
So it is here.

Works on token ids; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ralm.bounds import check_count
from ralm.protocols import Tokenizer
from ralm.reading.in_context import Documents
from ralm.records import IntArray, Passages


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenationOptions:
    """A context that begins with the first `documents` hits of a row, the best first; the papers' answers read 2.

    Raises UsageError where there would be none.
    """

    documents: int = 2

    def __post_init__(self) -> None:
        check_count("--documents", self.documents)

    @property
    def hits(self) -> int:
        """How many passages must be retrieved for a row."""
        return self.documents


class JoinedDocuments:
    """Passages as they stand in the prompt one after the other, each cut to `document_tokens`.

    The first is encoded as one alone would be, with the special tokens that the tokenizer adds by itself; each further
    one without them and behind a newline, which counts as part of it.
    """

    def __init__(self, passages: Passages, tokenizer: Tokenizer, document_tokens: int) -> None:
        self._passages = passages
        self._tokenizer = tokenizer
        self._document_tokens = document_tokens
        self._first = Documents(passages, tokenizer, document_tokens)
        self._further: dict[int, IntArray] = {}

    def __getitem__(self, numbers: Sequence[int]) -> IntArray:
        """The token ids (int64) of at least one passage; of `NO_PASSAGE` alone, none."""
        return np.concatenate([self._first[numbers[0]], *(self._after_another(number) for number in numbers[1:])])

    def _after_another(self, number: int) -> IntArray:
        if number not in self._further:
            contents = self._tokenizer.encode("\n" + self._passages[number].contents)
            self._further[number] = contents[: self._document_tokens]
        return self._further[number]
