"""How much text a token of a fast tokenizer stands for at most: a text of many bytes has at least so many tokens.

This is known only of byte-level BPE that leaves out and changes nothing: each byte of a text is then in one token, and
a token is as many bytes as its name has characters.
"""

from typing import Final

from transformers import PreTrainedTokenizerBase

from ralm.lm.local.cuts import stage_kinds

_SPLITS: Final = frozenset("ByteLevel Digits Punctuation Split".split())
"""Kinds of pre-tokenisation that keep every character, unless they say otherwise."""
_PRINTED: Final = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES: Final = {*map(chr, _PRINTED), *map(chr, range(0x100, 0x200 - len(_PRINTED)))}
"""The names of single bytes: a character that can be printed stands for itself, the others are numbered from U+0100."""


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
        and type(model).__name__ == "BPE"
        and not (model.end_of_word_suffix or model.continuing_subword_prefix)
        and tokenizer.get_vocab().keys() >= _BYTES
        # such tokens take the white space beside them
        and not any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values())
    )
