"""Where a text may be cut so that a fast tokenizer reads both sides independently of each other.

A fast tokenizer works in four stages. A cut stands between a letter or digit and a single space, line end or Chinese or
Japanese sign, before another letter or digit; or at the beginning of a line (`ralm.lm.pieces`). There, each stage is
independent of the other side:

- *Added tokens* are searched for first, from the left. None may reach over the cut: the texts of a tokenizer with an
  added token that has white space inside are not cut at all, and a place next to an added token, which may take the
  space with it, is not a cut.
- *Normalisation* works on characters, on characters with their combining marks, or on runs of spaces. What it adds or
  removes at the ends of a text happens at the ends of a window, not at the cut.
- *Pre-tokenisation* works from the left on runs of letters, digits, signs and spaces. A pattern may also look at the
  characters around a match. The patterns of published language models look no further than the words beside a place,
  and this is assumed: a pattern that looks further than the overlap of two windows would not be noticed.
- *The model* works on one pre-token at a time, so the sides are independent if a new pre-token begins at the cut. If
  the whole text is one pre-token, as in LLaMA, they are independent for BPE if no token of the vocabulary holds the two
  characters beside the cut together: then no merge can join the sides. A Unigram model compares sums over the whole
  pre-token, and their rounding depends on what is before: there is no cut inside.

Texts are not cut if a stage is of another kind, such as pre-tokens of fixed length, or if BPE has dropout.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from ralm.lm.pieces import Window

_LOCAL: Final = frozenset(
    "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip StripAccents "
    "BertPreTokenizer CharDelimiterSplit Digits Metaspace Punctuation Split UnicodeScripts Whitespace "
    "WhitespaceSplit Removed".split()
)
_MODELS: Final = ("BPE", "Unigram", "WordLevel", "WordPiece")
_SPACES: Final = " \n\u2581\u0120\u010a"
"""A space and a line end as they are, as SentencePiece writes a space, and as byte-level BPE writes both."""
_SPACE_INSIDE: Final = re.compile(rf"[^\s{_SPACES}][\s{_SPACES}]+[^\s{_SPACES}]")


class Cuts:
    """The places at which the texts of a tokenizer can be cut."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def exist(self) -> bool:
        """Whether all stages of the tokenizer are of a kind that can be cut."""
        if not self._tokenizer.is_fast:
            return False
        backend = self._tokenizer.backend_tokenizer
        kinds = {kind for stage in (backend.normalizer, backend.pre_tokenizer) for kind in stage_kinds(stage)}
        return (
            kinds <= _LOCAL
            and type(backend.model).__name__ in _MODELS
            and not getattr(backend.model, "dropout", None)
            and not any(self._reaches_over_spaces(token.content) for token in self._added.values())
        )

    def separate(self, window: Window, place: int) -> bool:
        """Whether the tokens on the two sides of a place, which no token crosses, are independent of each other."""
        at = window.before(place)
        before, after = window.tokens[at - 1 : at + 1].tolist()
        if before in self._added or after in self._added:
            return False
        return window.word_of(at - 1) != window.word_of(at) or self._never_joined(before, after, window.text[place])

    def _reaches_over_spaces(self, added: str) -> bool:
        """Whether an added token has white space inside, as it is or normalised: it may be looked for in both forms."""
        normalizer = self._tokenizer.backend_tokenizer.normalizer
        forms = (added, added if normalizer is None else normalizer.normalize_str(added))
        return any(_SPACE_INSIDE.search(form) for form in forms)

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self._tokenizer.added_tokens_decoder)

    def _never_joined(self, before: int, after: int, character: str) -> bool:
        """Whether BPE never merges the last character of a token with the first of another, which is `character` or
        stands for a space."""
        model = self._tokenizer.backend_tokenizer.model
        if type(model).__name__ != "BPE" or model.end_of_word_suffix or model.continuing_subword_prefix:
            return False
        left, right = self._tokenizer.convert_ids_to_tokens([before, after])
        is_text = left != model.unk_token and left[-1].isalnum() and right[0] in _SPACES + character
        return is_text and left[-1] + right[0] not in self._vocabulary

    @cached_property
    def _vocabulary(self) -> str:
        """All tokens in one string, separated by a character that is in no pair."""
        return "\0".join(self._tokenizer.get_vocab())


def stage_kinds(stage: Any) -> Iterator[str]:
    """The kinds of the parts of a stage of a fast tokenizer; an empty name for a part that is written in Python, and
    `Removed` beside the kind of a part that leaves out what it splits at."""
    if stage is None:
        return
    try:
        state = stage.__getstate__()
    except Exception as error:
        if "Custom" not in str(error):  # what the library says of parts that are written in Python
            raise
        yield ""
    else:
        yield from _kinds_of(json.loads(state))


def _kinds_of(state: dict[str, Any]) -> Iterator[str]:
    if state["type"] != "Sequence":
        yield state["type"]
    if state.get("behavior") == "Removed":
        yield "Removed"
    for inner in state.get("normalizers") or state.get("pretokenizers") or ():
        yield from _kinds_of(inner)
