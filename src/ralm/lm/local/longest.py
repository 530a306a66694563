"""How much text a token of a fast tokenizer stands for at most: a text of many bytes has at least so many tokens.

This is known only of byte-level BPE that leaves out and changes nothing: each byte of a text is then in one token, and
a token is as many bytes as its name has characters.
"""

from typing import Final

from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from ralm.lm.local.cuts import stage_kinds

_SPLITS: Final = frozenset("ByteLevel Digits Punctuation Split".split())
"""Kinds of pre-tokenisation that keep every character, unless they say otherwise."""


def longest_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The most bytes of a text (UTF-8) that one token stands for; None if that is not known for sure."""
    if not tokenizer.is_fast or not _keeps_bytes(tokenizer):
        return None
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return max(*map(len, tokenizer.get_vocab()), *(len(content.encode()) for content in added), 1)


def _keeps_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether each byte of a text is in one token."""
    backend = tokenizer.backend_tokenizer
    kinds = set(stage_kinds(backend.pre_tokenizer))
    model = backend.model
    return (
        backend.normalizer is None
        and "ByteLevel" in kinds
        and kinds <= _SPLITS
        and isinstance(model, models.BPE)
        and not (model.end_of_word_suffix or model.continuing_subword_prefix)
        and tokenizer.get_vocab().keys() >= set(pre_tokenizers.ByteLevel.alphabet())
        # such tokens take the white space beside them
        and not any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values())
    )
