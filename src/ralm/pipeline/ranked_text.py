"""A text as a ranking model reads it; its tokens may differ from those of the reading model (Table 3).

The whole text is tokenised once, so that the requests of neighbouring rows are prefixes of each other and share their
passes. The prefix of a row is all tokens that lie within its characters.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.records import IntArray, Request


@dataclass(frozen=True, slots=True, eq=False)
class RankedText:
    """A text in a ranking model's tokens (int64, N), with the character at which each ends (int64, N).

    The model reads at most `max_length` tokens; the beginning of its window advances `advance` tokens at a time.
    """

    tokens: IntArray
    ends_N: IntArray
    max_length: int
    advance: int

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, max_length: int, advance: int) -> Self:
        """Tokenise a text."""
        tokens, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(text)
        return cls(tokens, np.maximum.accumulate(spans_N2[:, 1]), max_length, advance)

    def tokens_within(self, characters: int) -> int:
        """How many tokens lie completely within the first `characters` characters."""
        return int(np.searchsorted(self.ends_N, characters, side="right"))

    def request(self, end: int, document: IntArray, rank_tokens: int) -> Request | None:
        """Score the last `rank_tokens` of the first `end` tokens behind a document; None if there is nothing to score.

        The first token of the text is never a target: without a document there is nothing before it.
        """
        if end < 2:
            return None
        block_end = -(-end // self.advance) * self.advance
        begin = max(end - rank_tokens, 1)
        context_begin = max(0, block_end + len(document) - self.max_length)
        return Request(document=document, context=self.tokens[context_begin:begin], targets=self.tokens[begin:end])
