"""The prompt of a request, text or token ids, with its limits, and the names of tokens in responses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Tokenizer
from ralm.reading.tokens import first_tokens
from ralm.records import IntArray
from ralm.serving import errors, options
from ralm.serving.model import SharedModel

TOO_LONG: Final = "context_length_exceeded"
"""The code of errors about prompts that are too long."""
_MOST_IDS: Final = 2**31 - 1
_LONG: Final = 10**18
_BEFORE: Final = "a"
"""Text that is decoded before a token: some tokenizers write the space of a token only after other text."""


@dataclass(frozen=True, eq=False)
class ServedPrompt:
    """A prompt: its tokens (int64, N) as the client counts them, and its text if it was given as text."""

    tokens: IntArray
    given: str | None
    tokenizer: Tokenizer

    @cached_property
    def text(self) -> str:
        """The text."""
        return self.tokenizer.decode(self.tokens) if self.given is None else self.given

    def settings(self, settings: options.Settings) -> options.Settings:
        """The settings for this prompt: token ids without an index are read as they are, without a BOS."""
        if self.given is None and settings.index is None:
            return replace(settings, plan=replace(settings.plan, bos="never"))
        return settings

    def beginning(self, settings: options.Settings) -> int:
        """The number of leading special tokens, which are not part of the text.

        With an index, token ids may begin with the special tokens that the tokenizer puts first, or with one BOS or
        end-of-text token.
        """
        if self.given is not None or settings.index is None:
            return 0
        first = first_tokens(self.tokenizer, settings.plan.bos)
        if len(first) and np.array_equal(self.tokens[: len(first)], first):
            return len(first)
        full = full_tokenizer(self.tokenizer)
        return int(len(self.tokens) > 1 and int(self.tokens[0]) in (full.special_tokens.begin, full.end_token))


def check_size(texts: Iterable[str], model: SharedModel, most: int, param: str) -> None:
    """Raise RequestError if texts have more bytes than `most` tokens can stand for, so that they need not be tokenised.

    Accepts everything if the tokenizer does not know the length of its longest token.
    """
    if model.longest_token is None:
        return
    least = -(-sum(len(text.encode()) for text in texts) // model.longest_token)
    if least > most:
        raise errors.RequestError(
            f"the text of `{param}` has at least {least:,} tokens, and the limit is {most:,}: send less.",
            param=param,
            code=TOO_LONG,
        )


def read_prompt(
    given: str | Sequence[int], model: SharedModel, param: str = "prompt", most: int | None = None
) -> ServedPrompt:
    """The prompt that a request gives.

    Raises RequestError if it is empty, has a token that the model does not know, or is a text that has more than `most`
    tokens for sure.
    """
    if isinstance(given, str):
        if most is not None:
            check_size([given], model, most, param)
        tokens = model.tokenizer.encode(given)
    else:
        vocabulary = model.vocabulary or _MOST_IDS
        for token in given:
            if not 0 <= token < vocabulary:
                shown = f"{token:,}" if abs(token) < _LONG else "of more than 18 digits"
                raise errors.RequestError(
                    f"`{param}` has the token {shown}, and the model knows 0 to {vocabulary - 1:,}.", param=param
                )
        tokens = np.array(given, dtype=np.int64)
    if len(tokens) == 0:
        raise errors.RequestError(f"`{param}` is empty: give at least one word or token.", param=param)
    return ServedPrompt(tokens, given if isinstance(given, str) else None, model.tokenizer)


def check_room(prompt: ServedPrompt, new_tokens: int, most: int) -> None:
    """Raise RequestError if a prompt and its continuation have more than `most` tokens."""
    length = len(prompt.tokens)
    if length + new_tokens > most:
        raise errors.RequestError(
            f"the prompt has {length:,} tokens and `max_tokens` is {new_tokens:,}, together {length + new_tokens:,}; "
            f"the limit is {most:,}: send a prompt of at most {max(0, most - new_tokens):,} tokens, or lower "
            "`max_tokens`.",
            param="prompt",
            code=TOO_LONG,
        )


class TokenLabels:
    """The names of tokens in responses: their text, or `token_id:17` where the text does not identify the token."""

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
