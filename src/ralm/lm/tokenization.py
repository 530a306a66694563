"""A language model's own tokenizer, with the two ways in which In-Context RALM encodes.

Works on text and token ids; knows nothing of the model's weights.
"""

import hashlib
from functools import cached_property

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ralm.lm.hub import check_tokenizer, loading_errors
from ralm.records import IntArray, SpecialTokens

_SAMPLE = " Hello,  World!\n\tIt's 3.14 o'clock: \u00e9\u4e2d\U0001f600 </s> <|endoftext|> "


class ModelTokenizer:
    """The tokenizer of a model: text without special tokens, documents with the ones it adds by itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.model_max_length = int(1e30)  # lengths are the plan's business: no warnings, no cuts
        self.fingerprint = _fingerprint(tokenizer)

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, where there is one."""
        return self._tokenizer.eos_token_id

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """What the tokenizer puts around a text by itself, and its BOS: read off a text of one letter, since without
        any nothing would tell what stands before it from what stands after it."""
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        bos = self._tokenizer.bos_token_id
        places = [place for place in range(len(whole)) if bare and whole[place : place + len(bare)] == bare]
        begin = places[0] if places else whole.index(bos) + 1 if bos in whole else 0
        return SpecialTokens(
            before=np.array(whole[:begin], dtype=np.int64),
            after=np.array(whole[begin + len(bare) :], dtype=np.int64),
            begin=bos,
        )

    def token_of(self, text: str) -> int | None:
        """The id of the token that is written exactly so, else of the unknown token; None where there is neither."""
        return self._tokenizer.convert_tokens_to_ids(text)

    def encode(self, text: str) -> IntArray:
        """Token ids (int64) of a text, without special tokens."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The same ids (int64, N), and the first and one past the last character of each (int64, N x 2).

        Tokens that share a character, as its bytes do, share its span.
        """
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans_N2 = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return np.array(encoded["input_ids"], dtype=np.int64), spans_N2

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Token ids (int64) of a document as it stands in the prompt: with the special tokens that the tokenizer adds
        by itself, cut to `max_tokens` of which those are part, as the official code does."""
        ids = self._tokenizer.encode(text, truncation=True, max_length=max_tokens)
        return np.array(ids, dtype=np.int64)

    def decode(self, tokens: IntArray) -> str:
        """The text of token ids, special tokens written out; spaces cleaned up where the tokenizer itself does so."""
        return str(self._tokenizer.decode(tokens.tolist()))


def load_model_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, by hub name or folder.

    Raises ModelError where there is none.
    """
    check_tokenizer(name)
    with loading_errors("tokenizer", name):
        return ModelTokenizer(AutoTokenizer.from_pretrained(name))


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of the vocabulary and of what is done with a text that shows every way of cutting it up."""
    digest = hashlib.sha256()
    for token, number in sorted(tokenizer.get_vocab().items()):
        digest.update(f"{number} {token}\n".encode())
    digest.update(str(tokenizer.encode(_SAMPLE)).encode())
    return digest.hexdigest()[:16]
