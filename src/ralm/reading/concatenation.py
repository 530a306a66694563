"""Concatenation: several documents one after the other before the context of each stride (In-Context RALM, section 8).

The paper leaves open in what order and with what between them. Both published codes that read several documents at once
(In-Context RALM's question answering, REPLUG without ensemble) put the best first; REPLUG's joins them with a newline.
So it is here. REPLUG's cuts what it joined, so that the best may leave no room for the others; here that is a choice.

Works on token ids; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ralm.options import Option, check_options
from ralm.protocols import Tokenizer
from ralm.reading.in_context import Documents
from ralm.reading.plan import PlanOptions
from ralm.records import IntArray, Passages


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenationOptions:
    """A context that begins with the first `documents` hits of a row, the best first; the papers' answers read 2.

    Each is cut to the plan's `document_tokens`, or with `cut_together` all of them as one, as REPLUG's code does.

    Raises UsageError where there would be none.
    """

    documents: Annotated[int, Option("Passages that are read together.")] = 2
    cut_together: Annotated[
        bool, Option("Concatenation: cut all passages together to `document_tokens` (REPLUG's code).")
    ] = False

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def hits(self) -> int:
        """How many passages must be retrieved for a row."""
        return self.documents

    def check(self, plan: PlanOptions) -> None:
        """Raise UsageError where the documents leave no room in a plan for what must stand after them."""
        plan.check_documents(1 if self.cut_together else self.documents)


class JoinedDocuments:
    """Passages as they stand in the prompt one after the other, each cut to `document_tokens`, or `cut_together`.

    The first is encoded as one alone would be, with the special tokens that stand before it; each further one without
    them and behind a newline, which counts as part of it. Cut together, they are one text with newlines between them.
    """

    def __init__(
        self, passages: Passages, tokenizer: Tokenizer, options: PlanOptions, *, cut_together: bool = False
    ) -> None:
        self._passages = passages
        self._tokenizer = tokenizer
        self._document_tokens = options.document_tokens
        self._cut_together = cut_together
        self._first = Documents.planned(passages, tokenizer, options)
        self._further: dict[int, IntArray] = {}
        self._together: dict[tuple[int, ...], IntArray] = {}

    def __getitem__(self, numbers: Sequence[int]) -> IntArray:
        """The token ids (int64) of at least one passage; of `NO_PASSAGE` alone, what stands there without one."""
        if self._cut_together and len(numbers) > 1:
            return self._as_one(tuple(numbers))
        return np.concatenate([self._first[numbers[0]], *(self._after_another(number) for number in numbers[1:])])

    def _as_one(self, numbers: tuple[int, ...]) -> IntArray:
        if numbers not in self._together:
            text = "\n".join(self._passages[number].contents for number in numbers)
            self._together[numbers] = self._first.encode(text)
        return self._together[numbers]

    def _after_another(self, number: int) -> IntArray:
        if number not in self._further:
            contents = self._tokenizer.encode("\n" + self._passages[number].contents)
            self._further[number] = contents[: self._document_tokens]
        return self._further[number]
