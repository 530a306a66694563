"""Token ids by the names that servers write for them: `token_id:17`, or the token's text.

Of texts that stand for several tokens, such as the parts of a character, no id is known.
"""

import re
from functools import cached_property
from typing import Final

import numpy as np

from ralm.protocols import Tokenizer

_BY_ID: Final = re.compile(r"token_id:(\d+)")
_BEFORE: Final = "a"
"""What stands before a token when it is decoded in a text: some tokenizers write its space only there."""


class TokenNames:
    """The tokens of a vocabulary of `size` ids by name."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size

    def id_of(self, name: str) -> int | None:
        """The id of the token that goes by a name; None if several do, or none."""
        by_id = _BY_ID.fullmatch(name)
        return int(by_id[1]) if by_id else self._by_text.get(name)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        before = self._tokenizer.encode(_BEFORE)
        indent = len(self._tokenizer.decode(before))
        found: dict[str, int] = {}
        twice = {"", "\N{REPLACEMENT CHARACTER}"}
        for token in range(self.size):
            alone = np.array([token], dtype=np.int64)
            texts = {self._tokenizer.decode(alone), self._tokenizer.decode(np.concatenate([before, alone]))[indent:]}
            twice |= {text for text in texts if text in found}
            found |= dict.fromkeys(texts, token)
        return {text: token for text, token in found.items() if text not in twice}
