"""Decoding: one token at a time for many texts, each drawn from the average of the predictions after its fronts.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

All fronts of all texts are read together. Works on token ids; knows nothing of retrieval.

Shapes: K fronts of a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ralm.errors import UsageError
from ralm.lm.shared import SharedCache
from ralm.pipeline.drawing import draw_token
from ralm.pipeline.options import GenerationOptions
from ralm.pipeline.prompt_rows import PromptState
from ralm.protocols import WritingModel
from ralm.reading.pieces import GeneratedText, GeneratedToken
from ralm.reading.stop import StoppedText
from ralm.records import DoubleArray, IntArray, NextTokens, TextsAhead


class Decoder:
    """Texts that are being continued; others may join and leave between steps.

    At most `max_length` tokens are read at once, the next one included. Every text draws with its own random generator,
    seeded with `seed` if none is given with the text.
    A `cache` shares what is read with scoring, and with decoders before.

    Raises UsageError if tokens are to be drawn at random from a model that answers messages.
    """

    def __init__(
        self, model: WritingModel, options: GenerationOptions, max_length: int, cache: SharedCache | None = None
    ) -> None:
        if options.temperature > 0 and getattr(model, "answers_only", False):
            raise UsageError(
                f"{model.name} answers messages, and an answer cannot be drawn token by token: set `temperature` to 0."
            )
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
        if len(state.fronts) > 1 and self._model.tier == "text":
            raise UsageError(
                f"{self._model.name} gives text alone, so that its predictions cannot be averaged over "
                f"{len(state.fronts)} passages: read one passage, several in one context, or let each passage answer."
            )
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
        texts = {number: self._texts(one.state) for number, one in going_on}
        self._read_ahead([(one.state, texts[number]) for number, one in going_on])
        given = self._continuations.next_tokens([text for some in texts.values() for text in some])
        written, row = [], 0
        for number, one in going_on:
            fronts = slice(row, row := row + len(one.state.fronts))
            token = self._write(one, texts[number], given.of(fronts))
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

    def _read_ahead(self, several: Sequence[tuple[PromptState, Sequence[IntArray]]]) -> None:
        """Tell the model what it will be asked for, if it wants to know."""
        read_ahead = getattr(self._continuations, "read_ahead", None)
        if read_ahead is not None and self._options.temperature == 0:
            read_ahead([self._ahead(state, texts) for state, texts in several])

    def _ahead(self, state: PromptState, texts: Sequence[IntArray]) -> TextsAhead:
        """The texts of an average, which only grow until they are retrieved for again or fill the model's length."""
        left = min(state.fronts_end, self._options.new_tokens) - state.written
        room = self._max_length - max(map(len, texts))
        return TextsAhead(texts, _log_weights(state), min(left, room), state.written)

    def _write(self, one: "_Drawn", texts: Sequence[IntArray], given: NextTokens) -> GeneratedToken:
        """Draw a token from the average of the distributions, and append it to the text."""

        def chosen(wanted: IntArray) -> NextTokens:
            return self._continuations.next_tokens(texts, wanted)

        drawn = draw_token(
            given,
            _log_weights(one.state),
            one.generator,
            self._options,
            chosen if self._model.tier == "chosen" else None,
        )
        one.state.append(drawn.token)
        passages_K = np.array([front.passage for front in one.state.fronts], dtype=np.int64)
        return GeneratedToken(
            drawn.token,
            drawn.log_prob,
            passages_K,
            drawn.posteriors_K,
            drawn.unlisted,
            drawn.certified,
            drawn.likeliest,
        )


def _log_weights(state: PromptState) -> DoubleArray:
    return np.array([front.log_weight for front in state.fronts], dtype=np.float64)


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
