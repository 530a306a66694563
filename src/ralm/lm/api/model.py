"""A language model behind an API, as the language model that every part of ralm expects.

Works on token ids; what a server can tell decides what it can do (`ralm.lm.api.ways`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, cast

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.api.backends import END, Way, ended, odd
from ralm.lm.api.capabilities import Capabilities
from ralm.lm.api.client import Client
from ralm.lm.api.continuations import ApiContinuations
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.transport import Asked, JsonObject
from ralm.protocols import UNLIMITED, FullTokenizer, LanguageModel, Tier, Tokenizer
from ralm.records import FloatArray, IntArray, ScoringSequence


class ApiModel:
    """A `WritingModel` behind an API, as `way` asks it; see `ralm.lm.api.probe`.

    Scores are exact if the server tells the log-probabilities of prompts or of chosen tokens. If it lists its likeliest
    tokens only, `score` refuses, and `bounds` are models that give lower and upper bounds.
    """

    def __init__(
        self, name: str, client: Client, way: Way, tokenizer: FullTokenizer, capabilities: Capabilities
    ) -> None:
        self.name = name
        self.client = client
        self.way = way
        self.tokenizer = tokenizer
        self.capabilities = capabilities

    @property
    def config(self) -> dict[str, JsonValue]:
        """The address and name of the model, how it is asked, and what the probe found out about it."""
        return {
            "name": self.name,
            "url": self.client.endpoint.url,
            "model": self.client.endpoint.model,
            **self.way.settings,
            "identity": self.capabilities.identity,
            "tokenizer": getattr(self.tokenizer, "fingerprint", None),
        }

    @property
    def max_length(self) -> int:
        """The most tokens that the model can read at once."""
        return self.capabilities.max_length or UNLIMITED

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokenizer's end-of-text token, and the one that stands for an end without a name."""
        end = self.tokenizer.end_token
        return frozenset({END} if end is None else {END, end})

    @property
    def tier(self) -> Tier:
        """What the server tells of the next token; `chosen` also if it tells the log-probabilities of prompts, unless
        it takes text, which any chosen token behind it may change into other tokens."""
        if self.way.likeliest == 0:
            return "text"
        chosen = self.way.chooses > 0 or (self.way.reads_prompts and self.way.takes_ids)
        return "chosen" if chosen else "likeliest"

    @cached_property
    def bounds(self) -> tuple[LanguageModel, LanguageModel] | None:
        """The models that give lower and upper bounds of log-probabilities, if the server lists its likeliest tokens
        only; None if `score` is exact, or nothing is told."""
        listed = self.way.likeliest > 0 and not self._exact
        return (_Bound(self, "lower"), _Bound(self, "upper")) if listed else None

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """For each pass, in order and as soon as known, the natural log-probability (float32) of each of its targets.

        Raises UsageError if the server does not tell them, and what `Client.answers` raises.
        """
        if not self._exact:
            told = f"lists {self.way.likeliest} next tokens" if self.way.likeliest else "gives text alone"
            raise UsageError(
                f"{self.name} {told}, so that the log-probability of a given text is not known: use a server that "
                "tells it (`ralm probe` says what a server tells)."
            )
        return self._read(passes) if self.way.reads_prompts else self._chosen(passes)

    @property
    def answers_only(self) -> bool:
        """Whether it answers messages, so that nothing can be read as the continuation of a text."""
        return not self.way.goes_on

    def continuations(self) -> ApiContinuations:
        """A new state for continuing texts."""
        return ApiContinuations(self.client, self.way, self.name, self.max_length, self.tokenizer.end_token)

    @property
    def _exact(self) -> bool:
        return self.way.reads_prompts or self.way.chooses > 0

    def _read(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        answers = self.client.answers(self.way.scoring(one.tokens_N) for one in passes)
        for one, answer in zip(passes, answers, strict=True):
            yield np.array(self.way.scored(answer, one.tokens_N, one.targets_P), dtype=np.float32)

    def _chosen(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        places = ((one.tokens_N, place) for one in passes for place in one.targets_P)
        asked = (self.way.choosing(tokens[:place], [int(tokens[place])]) for tokens, place in places)
        answers = self.client.answers(asked)
        for one in passes:
            targets = one.tokens_N[one.targets_P].tolist()
            found_P = np.array([self.way.chosen(next(answers), [token])[0] for token in targets], dtype=np.float32)
            if np.isnan(found_P).any():
                raise odd(f"{self.name} does not tell how likely the end of a text is, so that it cannot be scored")
            yield found_P


class _Bound:
    """The lower or upper bounds of the log-probabilities of a model that lists its likeliest tokens."""

    def __init__(self, model: ApiModel, bound: Literal["lower", "upper"]) -> None:
        self._model = model
        self.bound = bound
        self.name = model.name
        self.max_length = model.max_length
        self.tokenizer = model.tokenizer

    @property
    def config(self) -> dict[str, JsonValue]:
        return {**self._model.config, "bound": self.bound}

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        client, way = self._model.client, self._model.way
        places = [(one.tokens_N[:place], int(one.tokens_N[place])) for one in passes for place in one.targets_P]
        kept = [way.keeps(text) for text, _ in places]
        answers = client.answers(way.writing(text, 1) for (text, _), told in zip(places, kept, strict=True) if told)
        found = (
            self._of(next(answers) if told else None, len(text), token)
            for (text, token), told in zip(places, kept, strict=True)
        )
        for one in passes:
            yield np.array([*islice(found, len(one.targets_P))], dtype=np.float32)

    def _of(self, answer: JsonObject | None, length: int, token: int) -> float:
        """The bound of a token behind a text; nothing is known if the server splits the text into other tokens."""
        way = self._model.way
        counts = way.goes_on  # a chat template adds tokens
        if answer is None or (counts and way.counted(answer) not in (None, length)):
            prediction = ended()
        else:
            prediction = way.next_token(answer)
        listed = prediction.listed(token)
        if listed is not None:
            return listed
        return prediction.rest if self.bound == "upper" else -np.inf


_MADE_UP: Final[JsonObject] = {"made_up": True}
_LOG_PROB: Final = -1.0


def rehearsed(model: ApiModel) -> ApiModel:
    """The same model, of which nothing is asked; `client.spent` counts what would be. The model's client is closed."""
    model.client.close()
    unlimited = replace(model.client.options, max_requests=None, max_cost=None)
    client = RehearsalClient(model.client.endpoint, unlimited)
    client.identity = model.client.identity
    way = cast("Way", _RehearsedWay(model.way, model.tokenizer))
    return ApiModel(model.name, client, way, model.tokenizer, model.capabilities)


class RehearsalClient(Client):
    """A client that sends nothing: what is not kept gets a made-up answer, and counts at its worst."""

    async def _send(self, asked: Asked) -> JsonObject:  # noqa: ARG002
        return _MADE_UP

    async def _keep(self, key: bytes, answer: JsonObject) -> None:
        """Made-up answers are not kept."""


class _RehearsedWay:
    """A way that also reads made-up answers."""

    def __init__(self, way: Way, tokenizer: Tokenizer) -> None:
        self._way = way
        self._token = int(tokenizer.encode("a")[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._way, name)

    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        return [_made_up(self._token)] * most if answer is _MADE_UP else self._way.written(answer, most)

    def next_token(self, answer: JsonObject) -> Prediction:
        return _made_up(self._token) if answer is _MADE_UP else self._way.next_token(answer)

    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        if answer is _MADE_UP:
            return [_made_up(int(token)) for token in (*tokens[begin:], self._token)]
        return self._way.read(answer, tokens, begin)

    def scored(self, answer: JsonObject, tokens: IntArray, places: IntArray) -> list[float]:
        return [_LOG_PROB] * len(places) if answer is _MADE_UP else self._way.scored(answer, tokens, places)

    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        return [_LOG_PROB] * len(tokens) if answer is _MADE_UP else self._way.chosen(answer, tokens)

    def counted(self, answer: JsonObject) -> int | None:
        return None if answer is _MADE_UP else self._way.counted(answer)


def _made_up(token: int) -> Prediction:
    one = np.array([token], dtype=np.int64)
    return Prediction(token, _LOG_PROB, one, np.full(1, _LOG_PROB, dtype=np.float32), _LOG_PROB)
