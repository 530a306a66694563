"""A text as the stages see it: its tokens and its plan."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ralm.errors import ModelError, TextError
from ralm.lm.pieces import chunks_of, join_pieces, pieces_of_tokens
from ralm.lm.tokenizer import full_tokenizer
from ralm.pipeline.unknown import count_unknown
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.reading.plan import Plan, PlanOptions, make_plan
from ralm.records import IntArray

_SPARE: Final = 8
"""How many more tokens are read: what is read may end with white space, and some tokenizers drop it at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedText:
    """A text, its tokens (int64, N), the first and one past the last character of each (int64, N x 2), and its plan.

    In rolling windows the first token is an end-of-text token before the text, and the tokenizer's special tokens are
    around the text; all these have empty spans. `unknown_tokens` is how many tokens stand for something that the
    tokenizer does not know.
    """

    text: str
    tokens: IntArray
    spans_N2: IntArray
    plan: Plan
    unknown_tokens: int = 0

    def characters_before(self, row: int) -> int:
        """How many complete characters of the text the prefix of a row holds."""
        begin = int(self.plan.begin_R[row])
        if begin == 0:
            return 0
        return min(int(self.spans_N2[begin - 1, 1]), int(self.spans_N2[begin, 0]))

    def token_texts(self, positions_T: IntArray) -> tuple[str, list[str]]:
        """The text before the first of some consecutive tokens, and what each of them adds to it.

        A character of several tokens comes with the first of them, and text between two tokens with the second.
        """
        ends_N = np.concatenate([[0], np.maximum.accumulate(self.spans_N2[:, 1])]).tolist()
        before = self.text[: ends_N[int(positions_T[0])]]
        return before, [self.text[ends_N[at] : ends_N[at + 1]] for at in positions_T.tolist()]


def prepare_text(
    text: str, tokenizer: Tokenizer, options: PlanOptions, *, limit_tokens: int | None = None
) -> PreparedText:
    """Tokenise a text and plan it; with `limit_tokens`, only its first tokens, up to the last complete character.

    Warns (RalmWarning) if the tokenizer does not know some of the text. Raises TextError if that is most of it, or if
    the text is too short, ModelError if the plan needs a token before the text and the tokenizer has none.
    """
    tokenizer = full_tokenizer(tokenizer)
    tokens, spans_N2 = join_pieces(pieces_of_tokens(tokenizer.encode_pieces(chunks_of(text)), limit_tokens))
    if limit_tokens is not None and limit_tokens < len(tokens):
        whole = _tokens_of_whole_characters(spans_N2, limit_tokens)
        tokens, spans_N2 = tokens[:whole], spans_N2[:whole]
        text = text[: int(spans_N2[:, 1].max(initial=0))]
    unknown_tokens = count_unknown(text, tokens, spans_N2, tokenizer)
    if options.begins_with_end_token:
        if len(tokens) == 0:
            raise TextError("the text is empty, and there is nothing to score: give a longer text.")
        special = tokenizer.special_tokens
        before = np.append(_end_of_text(tokenizer), special.before).astype(np.int64)
        tokens = np.concatenate([before, tokens, special.after])
        end = int(spans_N2[:, 1].max(initial=0))
        spans_N2 = np.concatenate([_nowhere(0, len(before)), spans_N2, _nowhere(end, len(special.after))])
    plan = make_plan(len(tokens), options)
    return PreparedText(text=text, tokens=tokens, spans_N2=spans_N2, plan=plan, unknown_tokens=unknown_tokens)


def read_beginning(chunks: Iterable[str], tokenizer: Tokenizer, limit_tokens: int | None) -> str:
    """As much of the text that some chunks make up as its first `limit_tokens` need; all of it without a limit.

    `prepare_text` gives the same for it as for the whole text. If the tokenizer can cut texts, no more chunks are read
    than that takes.
    """
    if limit_tokens is None:
        return "".join(chunks)
    pieces = full_tokenizer(tokenizer).encode_pieces(chunks)
    return "".join(piece.text for piece in pieces_of_tokens(pieces, limit_tokens + _SPARE))


def _tokens_of_whole_characters(spans_N2: IntArray, limit: int) -> int:
    """The largest number of tokens, at most `limit`, that ends with a complete character."""
    ends_N = np.maximum.accumulate(spans_N2[: limit + 1, 1])
    while limit > 0 and spans_N2[limit, 0] < ends_N[limit - 1]:
        limit -= 1
    return limit


def _end_of_text(tokenizer: FullTokenizer) -> int:
    """The token that REPLUG's code puts before a text: <|endoftext|>, whatever the model, else the unknown token.

    If the tokenizer has neither, REPLUG's code fails; here the tokenizer's own end-of-text token is used.
    """
    token = tokenizer.token_of("<|endoftext|>")
    token = tokenizer.end_token if token is None else token
    if token is None:
        raise ModelError(
            '`windows="rolling"` begin with the token <|endoftext|>, the unknown token, or an end-of-text token, but '
            "the tokenizer of this model has none of them; use other windows."
        )
    return token


def _nowhere(character: int, tokens: int) -> IntArray:
    """Empty spans, for tokens that stand for no character."""
    return np.full((tokens, 2), character, dtype=np.int64)
