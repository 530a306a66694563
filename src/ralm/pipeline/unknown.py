"""The parts of a text that its tokenizer does not know: no figure describes them."""

import warnings
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.errors import RalmWarning, TextError
from ralm.protocols import FullTokenizer
from ralm.records import IntArray

_TOO_MUCH: Final = 0.5


def count_unknown(text: str, tokens: IntArray, spans_N2: IntArray, tokenizer: FullTokenizer) -> int:
    """How many tokens of a text stand for something that the tokenizer does not know.

    Such a token is easy to predict, whatever it stands for, and text that the tokenizer leaves out is not predicted at
    all. So a RalmWarning says what share of the characters (without white space) is lost in one of these ways. Raises
    TextError if it is more than half: the figures would describe another text.
    """
    unknown_N = _unknown(text, tokens, spans_N2, tokenizer)
    lost = _characters_outside(text, spans_N2[~unknown_N])
    if lost:
        share = lost / _visible(text)
        said = f"{share:.1%} of the characters of the text are unknown to the tokenizer and lost"
        if share > _TOO_MUCH:
            raise TextError(f"{said}: the figures would describe another text. Take a model that knows its letters.")
        warnings.warn(f"{said}: this lowers the figures", RalmWarning, stacklevel=3)
    return int(unknown_N.sum())


def _unknown(text: str, tokens: IntArray, spans_N2: IntArray, tokenizer: FullTokenizer) -> NDArray[np.bool_]:
    """Which tokens (N) are the unknown token, except where the text itself contains its name."""
    unknown_N = np.zeros(len(tokens), dtype=np.bool_)
    unknown_token = tokenizer.unknown_token
    if unknown_token is None:
        return unknown_N
    name = tokenizer.decode(np.array([unknown_token])).strip()
    for at in np.flatnonzero(tokens == unknown_token).tolist():
        begin, end = spans_N2[at].tolist()
        unknown_N[at] = text[begin:end].strip() != name
    return unknown_N


def _characters_outside(text: str, spans_K2: IntArray) -> int:
    """How many characters, without white space, lie outside all spans."""
    ends = np.concatenate([[0], np.maximum.accumulate(spans_K2[:, 1])])
    begins = np.concatenate([spans_K2[:, 0], [len(text)]])
    gaps = np.flatnonzero(begins > ends)
    return sum(_visible(text[end:begin]) for end, begin in zip(ends[gaps].tolist(), begins[gaps].tolist(), strict=True))


def _visible(text: str) -> int:
    return len("".join(text.split()))
