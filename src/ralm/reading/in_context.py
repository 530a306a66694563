"""In-context reading: one document before the context of each stride (In-Context RALM, Eq. 4).

Works on token ids and plans; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from ralm.errors import UsageError
from ralm.protocols import Tokenizer
from ralm.reading.beginning import first_tokens
from ralm.reading.plan import Plan, PlanOptions
from ralm.records import NO_PASSAGE, IntArray, Passages, Request

NO_DOCUMENT: IntArray = np.zeros(0, dtype=np.int64)


class Documents:
    """Passages as they stand in the prompt: title, newline, text, as token ids cut to `document_tokens`.

    Each begins with the special tokens `first` (int64), which count among `document_tokens`, and so does what stands
    there without a passage. Where there is no `first`, passages are encoded with the special tokens that the tokenizer
    itself puts around them and without a passage there is nothing, as in the official code.

    Each passage is encoded once, however many strides read it. Raises UsageError where there is no room for `first`.
    """

    def __init__(
        self, passages: Passages, tokenizer: Tokenizer, document_tokens: int, first: IntArray | None = None
    ) -> None:
        self._passages = passages
        self._tokenizer = tokenizer
        self._document_tokens = document_tokens
        self._first = first
        self._encoded: dict[int, IntArray] = {NO_PASSAGE: NO_DOCUMENT if first is None else first}
        if first is not None and len(first) > document_tokens:
            raise UsageError(
                f"`document_tokens` {document_tokens} have no room for the {len(first)} special tokens that stand "
                'first: raise it, or give `bos="never"`.'
            )

    @classmethod
    def planned(cls, passages: Passages, tokenizer: Tokenizer, options: PlanOptions) -> Self:
        """Passages as the readings of a plan begin with them."""
        official = options.semantics == "official"
        first = None if official else first_tokens(tokenizer, options.bos)
        return cls(passages, tokenizer, options.document_tokens, first)

    def __getitem__(self, number: int) -> IntArray:
        """The token ids (int64) of a passage; of `NO_PASSAGE`, what stands there without one."""
        if number not in self._encoded:
            self._encoded[number] = self.encode(self._passages[number].contents)
        return self._encoded[number]

    def encode(self, text: str) -> IntArray:
        """The token ids (int64) of a text as it would stand in the prompt."""
        if self._first is None:
            return self._tokenizer.encode_document(text, self._document_tokens)
        return np.concatenate([self._first, self._tokenizer.encode(text)])[: self._document_tokens]


def stride_request(tokens: IntArray, plan: Plan, row: int, document: IntArray, before: int = 0) -> Request:
    """The request that scores the targets of one row read with one document, which may be empty.

    With `before`, so many tokens of the prefix are targets too, fewer where the text begins: token 0 never is.
    """
    context_begin = plan.context_begins(row, len(document))
    target_begin = max(1, int(plan.target_begin_R[row]) - before)
    return Request(
        document=document,
        context=tokens[context_begin:target_begin],
        targets=tokens[target_begin : int(plan.end_R[row])],
    )


def rows_with_targets(plan: Plan) -> Sequence[int]:
    """The rows that score something: all but a first stride that holds token 0 alone."""
    return np.flatnonzero(plan.target_begin_R < plan.end_R).tolist()
