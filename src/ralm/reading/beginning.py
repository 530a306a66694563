"""How a reading begins: which special tokens stand in front of everything, with a document and without.

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
"""`auto`: the special tokens that the tokenizer itself puts first. `always`: its BOS, even where it does not put one
there itself. `never`: none."""

BosOption = Annotated[
    Bos,
    Option(
        "Special tokens that every reading begins with, passages or none: those that the tokenizer itself puts first "
        "(auto), its BOS in any case (always), or none (never)."
    ),
]

_NOTHING: IntArray = np.zeros(0, dtype=np.int64)


def first_tokens(tokenizer: Tokenizer, bos: Bos) -> IntArray:
    """The token ids (int64) that every reading begins with; may be none.

    Raises ModelError if a BOS is asked for and the tokenizer has none.
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
    """The rest of a text that begins with the same special tokens, so that they do not stand there twice."""
    doubled = len(first) > 0 and np.array_equal(tokens[: len(first)], first)
    return tokens[len(first) :] if doubled else tokens
