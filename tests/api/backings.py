"""The models behind a scripted server: a local one, or a small random table. Works on token ids and their texts.

N tokens of a text, V vocabulary.
"""

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import torch

from ralm.lm.local.model import LocalLanguageModel
from ralm.protocols import Tokenizer
from ralm.records import FloatArray, IntArray, NextTokens, ScoringSequence, SpecialTokens


class SpecialTokenizer(Tokenizer, Protocol):
    """A tokenizer whose special tokens are known."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens that it adds to a text."""


class Backing(Protocol):
    """What a scripted server needs of a model."""

    @property
    def tokenizer(self) -> SpecialTokenizer:
        """The model's own tokenizer."""

    @property
    def max_length(self) -> int:
        """The most tokens that the model can read at once."""

    @property
    def vocabulary(self) -> int:
        """V."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The ids that end a text."""

    def log_probs(self, tokens: Sequence[int]) -> FloatArray:
        """The log-probabilities (float32, N x V): row i has those of the token after `tokens[: i + 1]`."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, which may be a part of a character."""


class OfModel:
    """A local model, read by one request at a time; the last few texts are kept."""

    def __init__(self, model: LocalLanguageModel, kept: int = 16) -> None:
        self.tokenizer = model.tokenizer
        self.max_length = model.max_length
        self.vocabulary = model.vocabulary
        self.end_tokens = model.end_tokens
        self._model = model
        self._kept = kept
        self._read: dict[tuple[int, ...], FloatArray] = {}
        self._lock = threading.Lock()
        self._special = {*model.tokenizer._tokenizer.all_special_ids}

    def log_probs(self, tokens: Sequence[int]) -> FloatArray:
        wanted = tuple(tokens)
        with self._lock:
            longer = next((read for read in self._read if read[: len(wanted)] == wanted), None)
            if longer is None:
                longer = wanted
                self._read[wanted] = self._compute(wanted)
                while len(self._read) > self._kept:
                    del self._read[next(iter(self._read))]
            return self._read[longer][: len(wanted)]

    def piece(self, token: int) -> bytes:
        spelling = self._model.tokenizer._tokenizer.convert_ids_to_tokens(token)
        if token in self._special or not set(spelling) <= _BYTE_OF.keys():
            return self.tokenizer.decode(np.array([token])).encode()
        return bytes(_BYTE_OF[character] for character in spelling)

    @torch.inference_mode()
    def _compute(self, tokens: tuple[int, ...]) -> FloatArray:
        logits_1NV = self._model.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        return np.asarray(logits_1NV[0].float().log_softmax(-1))


class CharacterTokenizer:
    """A token a character: the end of a text is 0, a BOS that may stand before it 1, then characters."""

    fingerprint = "characters"
    end_token: int | None = 0
    unknown_token: int | None = None

    def __init__(self, vocabulary: int, *, begins: bool = False) -> None:
        self.spellings = ["<|end|>", "<|begin|>", *_ASCII, *(chr(0xC0 + i) for i in range(vocabulary - _LEAST))]
        self._ids = {spelling: number for number, spelling in enumerate(self.spellings)}
        none = np.zeros(0, dtype=np.int64)
        self.special_tokens = SpecialTokens(np.array([1]) if begins else none, none, 1 if begins else None)

    def encode(self, text: str) -> IntArray:
        return np.array([self._ids[character] for character in text], dtype=np.int64)

    def decode(self, tokens: IntArray) -> str:
        return "".join(self.spellings[token] for token in tokens)

    def token_of(self, text: str) -> int | None:
        return self._ids.get(text)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        places = np.arange(len(text), dtype=np.int64)
        return self.encode(text), np.stack([places, places + 1], axis=1)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        return np.concatenate([self.special_tokens.before, self.encode(text)])[:max_tokens]


class OfTable:
    """A random model that knows the last three tokens: fast, the same every time, and another for every seed.

    It is a `WritingModel` too, so that a test can compare a server with the model behind it.
    """

    tier: Final = "all"

    def __init__(
        self, seed: int = 0, vocabulary: int = 128, *, begins: bool = False, max_length: int = 256, ends: bool = False
    ) -> None:
        self.name = f"table-{seed}"
        self.tokenizer = CharacterTokenizer(vocabulary, begins=begins)
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.end_tokens = frozenset({0}) if ends else frozenset()
        self.config = {"name": self.name, "vocabulary": vocabulary}
        self._seed = seed
        self._row = lru_cache(maxsize=50_000)(self._computed_row)

    def log_probs(self, tokens: Sequence[int]) -> FloatArray:
        return np.stack([self._row(*tokens[max(0, end - 3) : end]) for end in range(1, len(tokens) + 1)])

    def piece(self, token: int) -> bytes:
        return self.tokenizer.spellings[token].encode()

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        for one in passes:
            log_probs_NV = self.log_probs(one.tokens_N.tolist())
            yield log_probs_NV[one.targets_P - 1, one.tokens_N[one.targets_P]]

    def continuations(self) -> "OfTable":
        return self

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        return NextTokens(np.stack([self.log_probs(text.tolist())[-1] for text in texts]))

    def _computed_row(self, *context: int) -> FloatArray:
        logits_V = 2 * np.random.default_rng([self._seed, *context]).standard_normal(self.vocabulary)
        return np.asarray(logits_V - np.logaddexp.reduce(logits_V), dtype=np.float32)


def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_OF = _bytes_of_characters()
_ASCII = ["\n", *(chr(code) for code in range(32, 127))]
_LEAST = 2 + len(_ASCII)
