"""Prompts as token ids that fit into the model, and what was cut of them.

Works on texts and tokenizers; knows nothing of how passages are found or answers are drawn.
"""

from dataclasses import dataclass

import numpy as np

from ralm.answering.prompts import PromptText
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading.beginning import first_tokens
from ralm.records import IntArray


@dataclass(frozen=True, slots=True)
class Cut:
    """How many tokens of a prompt's parts were cut because it did not fit; the question itself is never cut."""

    demonstrations: int = 0
    documents: int = 0

    def __bool__(self) -> bool:
        return bool(self.demonstrations or self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A prompt as token ids (int64), special tokens first, and what was cut of it."""

    tokens: IntArray
    cut: Cut


class PromptEncoder:
    """Encodes prompts into at most `room` tokens; what is too much is cut at the beginning of the text.

    With `keep_first` the special tokens that the text begins with stay. In-Context RALM's code cuts them as well.
    """

    def __init__(self, tokenizer: Tokenizer, room: int, *, keep_first: bool = True) -> None:
        self._tokenizer = full_tokenizer(tokenizer)
        self._first = first_tokens(tokenizer, "auto")
        self._room = room
        self._keep_first = keep_first

    def encode(self, prompt: PromptText, demonstrations: str = "", name: str = "the question") -> Encoded:
        """The tokens of a prompt behind its demonstrations.

        Raises UsageError, naming the question, if the part of the prompt that asks it does not fit alone.
        """
        before, documents = len(demonstrations), len(demonstrations) + len(prompt.documents)
        ids, spans_N2 = self._tokenizer.encode_with_spans(demonstrations + str(prompt))
        kept_first = len(self._first) if self._keep_first else 0
        excess = len(self._first) + len(ids) - self._room
        if excess <= 0:
            return Encoded(np.concatenate([self._first, ids]), Cut())
        dropped = excess if self._keep_first else max(0, excess - len(self._first))
        first = self._first if self._keep_first else self._first[min(excess, len(self._first)) :]
        in_demonstrations = int(np.searchsorted(spans_N2[:, 1], before, side="right"))
        in_documents = int(np.searchsorted(spans_N2[:, 1], documents, side="right"))
        if dropped > in_documents:
            raise UsageError(
                f"{name} has {len(ids) - in_documents} tokens with its instructions, and only "
                f"{self._room - kept_first} fit into the model beside the answer: shorten it."
            )
        cut = Cut(min(dropped, in_demonstrations), max(0, dropped - in_demonstrations))
        return Encoded(np.concatenate([first, ids[dropped:]]), cut)
