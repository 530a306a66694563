"""Passages as token ids in front of a context: cut to a length, each encoded once.

Works on passages and tokenizers; knows nothing of models, or of how passages were found.
"""

from typing import Self

import numpy as np

from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading.beginning import first_tokens
from ralm.reading.plan import PlanOptions
from ralm.records import NO_PASSAGE, IntArray, Passage, Passages

NO_DOCUMENT: IntArray = np.zeros(0, dtype=np.int64)


class PassageDocuments:
    """Passages as token ids: title, newline, text, cut to `document_tokens`.

    Each begins with the special tokens `first` (int64), which count towards `document_tokens`. A row without a passage
    begins with them too. If `first` is None, passages are encoded with the special tokens that the tokenizer adds by
    default, and a row without a passage begins with nothing, as in the official code.

    Raises UsageError if `document_tokens` leaves no room for `first`.
    """

    def __init__(
        self, passages: Passages, tokenizer: Tokenizer, document_tokens: int, first: IntArray | None = None
    ) -> None:
        self._passages = passages
        self._tokenizer = full_tokenizer(tokenizer)
        self._document_tokens = document_tokens
        self._first = first
        self._encoded: dict[int, IntArray] = {NO_PASSAGE: NO_DOCUMENT if first is None else first}
        self._texts: dict[str, IntArray] = {}
        self._next: dict[str, IntArray] = {}
        if first is not None and len(first) > document_tokens:
            raise UsageError(
                f"`document_tokens` {document_tokens} leaves no room for the {len(first)} special tokens that come "
                'first: raise it, or give `bos="never"`.'
            )

    @classmethod
    def planned(cls, passages: Passages, tokenizer: Tokenizer, options: PlanOptions) -> Self:
        """Passages as the options of a plan say."""
        official = options.semantics == "official"
        first = None if official else first_tokens(tokenizer, options.bos)
        return cls(passages, tokenizer, options.document_tokens, first)

    def __getitem__(self, number: int) -> IntArray:
        """The token ids (int64) of a passage; for `NO_PASSAGE`, those that a row without a passage begins with."""
        if number not in self._encoded:
            self._encoded[number] = self._as_document(self._passages[number].contents)
        return self._encoded[number]

    def passage(self, number: int) -> Passage:
        """The passage itself."""
        return self._passages[number]

    def encode(self, text: str) -> IntArray:
        """The token ids (int64) of a text in front of a context."""
        if text not in self._texts:
            self._texts[text] = self._as_document(text)
        return self._texts[text]

    def encode_next(self, text: str) -> IntArray:
        """The token ids (int64) of a text that follows another one in the same front, without special tokens."""
        if text not in self._next:
            self._next[text] = self._tokenizer.encode(text)[: self._document_tokens]
        return self._next[text]

    def _as_document(self, text: str) -> IntArray:
        if self._first is None:
            return self._tokenizer.encode_document(text, self._document_tokens)
        return np.concatenate([self._first, self._tokenizer.encode(text)])[: self._document_tokens]
