"""In-context reading: one document before the context of each stride (In-Context RALM, Eq. 4).

Works on token ids and plans; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence

import numpy as np

from ralm.protocols import Tokenizer
from ralm.reading.plan import Plan
from ralm.records import NO_PASSAGE, IntArray, Passages, Request

NO_DOCUMENT: IntArray = np.zeros(0, dtype=np.int64)


class Documents:
    """Passages as they stand in the prompt: title, newline, text, as token ids cut to `document_tokens`.

    Each passage is encoded once, however many strides read it.
    """

    def __init__(self, passages: Passages, tokenizer: Tokenizer, document_tokens: int) -> None:
        self._passages = passages
        self._tokenizer = tokenizer
        self._document_tokens = document_tokens
        self._encoded: dict[int, IntArray] = {NO_PASSAGE: NO_DOCUMENT}

    def __getitem__(self, number: int) -> IntArray:
        """The token ids (int64) of a passage; of `NO_PASSAGE`, none."""
        if number not in self._encoded:
            contents = self._passages[number].contents
            self._encoded[number] = self._tokenizer.encode_document(contents, self._document_tokens)
        return self._encoded[number]


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
