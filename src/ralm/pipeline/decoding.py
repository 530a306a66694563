"""Decoding: one token at a time for many texts, each drawn from the average of the predictions after its fronts.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

All fronts of all texts are read together. Works on token ids; knows nothing of retrieval.

Shapes: K fronts of a text, V vocabulary, C tokens that a model gives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ralm.errors import UsageError
from ralm.lm.shared import SharedCache
from ralm.pipeline.options import GenerationOptions
from ralm.pipeline.prompt_rows import PromptState
from ralm.protocols import WritingModel
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.pieces import GeneratedText, GeneratedToken
from ralm.reading.sampling import sample
from ralm.reading.stop import StoppedText
from ralm.records import FloatArray, IntArray


class Decoder:
    """Texts that are being continued; others may join and leave between steps.

    At most `max_length` tokens are read at once, the next one included. Every text draws with its own random generator,
    seeded with `seed` if none is given with the text.
    A `cache` shares what is read with scoring, and with decoders before.
    """

    def __init__(
        self, model: WritingModel, options: GenerationOptions, max_length: int, cache: SharedCache | None = None
    ) -> None:
        self._model = model
        self._options = options
        self._max_length = max_length
        self._continuations = (cache or SharedCache(model)).continuations
        self._going_on: dict[int, _Drawn] = {}
        self._added = 0

    @property
    def unfinished(self) -> Sequence[PromptState]:
        """The texts that have not ended; their fronts may be changed before a step."""
        return [one.state for one in self._going_on.values()]

    def add(self, state: PromptState, generator: np.random.Generator | None = None) -> int:
        """Add a text, to be continued from the next step on; returns its number. With its fronts it has at least one
        token."""
        self._going_on[self._added] = _Drawn(state, generator or np.random.default_rng(self._options.seed))
        self._added += 1
        return self._added - 1

    def end(self, number: int) -> None:
        """Stop continuing this text."""
        self._going_on.pop(number, None)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every unfinished text with the text's number, without those that end there."""
        going_on = list(self._going_on.items())
        if not going_on:
            return []
        texts = [text for _, one in going_on for text in self._texts(one.state)]
        given = self._continuations.next_tokens(texts)
        written, row = [], 0
        for number, one in going_on:
            fronts = slice(row, row := row + len(one.state.fronts))
            ids_KC = None if given.tokens_BC is None else given.tokens_BC[fronts]
            token = self._write(one, given.log_probs_BC[fronts], ids_KC)
            if token.token not in self._model.end_tokens:
                written.append((number, token))
            if token.token in self._model.end_tokens or one.state.written == self._options.new_tokens:
                self.end(number)
        return written

    def _texts(self, state: PromptState) -> list[IntArray]:
        """The texts to read: each front and the text, whose oldest tokens are dropped until both and the next token fit
        into the model."""
        fronts = [front.tokens for front in state.fronts]
        begins = [max(0, len(front) + len(state.text) + 1 - self._max_length) for front in fronts]
        return [np.concatenate([front, state.text[begin:]]) for front, begin in zip(fronts, begins, strict=True)]

    def _write(self, one: "_Drawn", log_probs_KC: FloatArray, ids_KC: IntArray | None) -> GeneratedToken:
        """Draw a token from the average of the distributions, and append it to the text."""
        options, fronts = self._options, one.state.fronts
        if ids_KC is not None:
            log_probs_KC, ids_KC = self._listed(log_probs_KC, ids_KC)
        log_weights_K = np.array([front.log_weight for front in fronts])
        log_probs_C = mixture(log_probs_KC, log_weights_K)
        drawn = sample(
            log_probs_C,
            one.generator,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )
        token = drawn if ids_KC is None else int(ids_KC[0, drawn])
        one.state.append(token)
        posteriors_K = posterior(log_probs_KC[:, [drawn]], log_weights_K)[0]
        passages_K = np.array([front.passage for front in fronts], dtype=np.int64)
        return GeneratedToken(token, float(log_probs_C[drawn]), passages_K, posteriors_K)

    def _listed(self, log_probs_KC: FloatArray, ids_KC: IntArray) -> tuple[FloatArray, IntArray]:
        """The tokens that a model gives, the likeliest ones only, in the order of their ids.

        Raises UsageError if other tokens are needed too: for an average, or for a draw from more tokens.
        """
        count = ids_KC.shape[1]
        if len(ids_KC) > 1:
            raise UsageError(
                f"{self._model.name} gives only its {count} likeliest next tokens, which cannot be averaged over "
                f"{len(ids_KC)} passages: read one passage."
            )
        if self._options.temperature > 0 and (self._options.top_k or count + 1) > count:
            raise UsageError(
                f"{self._model.name} gives only its {count} likeliest next tokens: set `top_k` to {count} or less, or "
                "`temperature` to 0."
            )
        order = np.argsort(ids_KC, axis=1)
        return np.take_along_axis(log_probs_KC, order, axis=1), np.take_along_axis(ids_KC, order, axis=1)


class Writes(Protocol):
    """What continues texts, one token each per step, such as a `Decoder`."""

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every text that goes on, with the text's number; empty once all have ended."""

    def end(self, number: int) -> None:
        """Stop continuing this text."""


def pieces_of(writer: Writes, texts: Sequence[StoppedText]) -> Iterator[tuple[int, GeneratedText]]:
    """What is written, piece by piece, each with the number of its text, up to the stop strings."""
    while written := writer.step():
        for number, token in written:
            for piece in texts[number].add(token):
                yield number, piece
            if texts[number].found:
                writer.end(number)
    for number, text in enumerate(texts):
        for piece in text.rest():
            yield number, piece


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A text and the random generator of its draws."""

    state: PromptState
    generator: np.random.Generator
