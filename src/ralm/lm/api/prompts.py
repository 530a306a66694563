"""Prompts as a server takes them: as token ids, or as text that it tokenises itself."""

from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError
from ralm.protocols import FullTokenizer
from ralm.records import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptForm:
    """How a prompt is sent: as token ids, or else as text, before which a server may put the token `begin` (a BOS)."""

    tokenizer: FullTokenizer
    as_ids: bool
    begin: int | None = None

    def sent(self, tokens: IntArray) -> JsonValue:
        """A prompt of these tokens.

        Raises ServerError if the server would put a BOS before a text that has none.
        """
        if self.as_ids:
            return tokens.tolist()
        return self.tokenizer.decode(self._behind_bos(tokens))

    def keeps(self, tokens: IntArray) -> bool:
        """Whether a server reads these tokens as they are: it may split a text into others, and wants one at all."""
        if self.as_ids:
            return True
        behind = self._behind_bos(tokens)
        return len(behind) > 0 and np.array_equal(self.tokenizer.encode(self.tokenizer.decode(behind)), behind)

    def _behind_bos(self, tokens: IntArray) -> IntArray:
        """The tokens without the BOS that the server puts before them."""
        if self.begin is None:
            return tokens
        if len(tokens) == 0 or tokens[0] != self.begin:
            raise ServerError(
                "the server takes text and puts a BOS before it, and this prompt has none: read with `bos` always."
            )
        return tokens[1:]
