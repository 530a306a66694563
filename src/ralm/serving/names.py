"""What tokens are called in answers: their text, or `token_id:17` where that does not tell which token it is.

Works on a tokenizer; knows nothing of answers.
"""

from typing import Final

import numpy as np

from ralm.protocols import Tokenizer

_BEFORE: Final = "a"
"""What stands before a token when it is decoded: some tokenizers write its space only there."""


class NamesByToken:
    """The names of tokens. A part of a character has no text of its own, and is called by its id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(_BEFORE)
        self._indent = len(tokenizer.decode(self._before))
        self._known: dict[int, str] = {}

    def of(self, token: int, *, as_id: bool = False) -> str:
        """The name of a token; with `as_id` always by its id."""
        if as_id:
            return f"token_id:{token}"
        if token not in self._known:
            ids = np.concatenate([self._before, np.array([token], dtype=np.int64)])
            text = self._tokenizer.decode(ids)[self._indent :]
            unclear = not text or "\N{REPLACEMENT CHARACTER}" in text
            self._known[token] = f"token_id:{token}" if unclear else text
        return self._known[token]
