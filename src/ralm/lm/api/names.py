"""Token ids by the names that servers write for them: `token_id:17`, or the token's text.

Of texts that stand for several tokens, such as the parts of a character, no id is known.
"""

import re
from functools import cached_property
from typing import Final

import numpy as np

from ralm.protocols import Tokenizer

_BY_ID: Final = re.compile(r"token_id:(\d+)")
_PART: Final = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character is decoded as."""
_BEFORE: Final = "a"
"""What stands before a token when it is decoded in a text: some tokenizers write its space only there."""


class TokensByName:
    """The tokens of a vocabulary of `size` ids by name."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size

    def id_of(self, name: str) -> int | None:
        """The id of the token that goes by a name; None if several do, or none."""
        by_id = _BY_ID.fullmatch(name)
        return int(by_id[1]) if by_id else self._by_text.get(name)

    def id_of_whole(self, name: str) -> int | None:
        """The same of a server that may leave the parts of characters out of names: None also if the name could be that
        of a token that has such a part."""
        return None if name in self._texts_beside_parts else self.id_of(name)

    @cached_property
    def _texts_beside_parts(self) -> frozenset[str]:
        """What is left of the texts of tokens that have parts of characters."""
        alone = (self._tokenizer.decode(np.array([token], dtype=np.int64)) for token in range(self.size))
        return frozenset(text.replace(_PART, "") for text in alone if _PART in text)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        before = self._tokenizer.encode(_BEFORE)
        indent = len(self._tokenizer.decode(before))
        found: dict[str, int] = {}
        twice = {"", _PART}
        for token in range(self.size):
            alone = np.array([token], dtype=np.int64)
            texts = {self._tokenizer.decode(alone), self._tokenizer.decode(np.concatenate([before, alone]))[indent:]}
            twice |= {text for text in texts if text in found}
            found |= dict.fromkeys(texts, token)
        return {text: token for text, token in found.items() if text not in twice}
