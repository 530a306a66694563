"""How a reading begins: the special tokens that come first, with a document and without.

Works on tokenizers and token ids; knows nothing of plans, passages or models.
"""

from typing import Annotated, Literal

import numpy as np

from ralm.errors import ModelError
from ralm.lm.tokenizer import full_tokenizer
from ralm.options import Option
from ralm.protocols import Tokenizer
from ralm.records import IntArray

Bos = Literal["auto", "always", "never"]
"""`auto`: the special tokens that the tokenizer puts first by default. `always`: its BOS, even if the tokenizer does
not add it by default. `never`: none."""

BosOption = Annotated[
    Bos,
    Option(
        "Special tokens that every reading begins with, with passages or without: those that the tokenizer puts first "
        "by default (auto), its BOS in any case (always), or none (never)."
    ),
]

_NOTHING: IntArray = np.zeros(0, dtype=np.int64)


def first_tokens(tokenizer: Tokenizer, bos: Bos) -> IntArray:
    """The token ids (int64) that every reading begins with; may be empty.

    Raises ModelError if `bos` is always and the tokenizer has no BOS.
    """
    if bos == "never":
        return _NOTHING
    special = full_tokenizer(tokenizer).special_tokens
    own = special.before
    if bos == "auto":
        return own
    begin = special.begin
    if begin is None:
        raise ModelError('`bos="always"`: the tokenizer of this model has no BOS token; leave `bos` out.')
    return own if begin in own else np.append(begin, own).astype(np.int64)


def without_first(tokens: IntArray, first: IntArray) -> IntArray:
    """The text without these special tokens if it begins with them, so that they do not come twice."""
    doubled = len(first) > 0 and np.array_equal(tokens[: len(first)], first)
    return tokens[len(first) :] if doubled else tokens
