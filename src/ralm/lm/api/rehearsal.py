"""Dry runs: a job asks as always, nothing is sent, and what would have been sent is counted.

Answers that are kept are used. All others are made up: a text never ends, and every token is equally likely. So the
requests of generation are counted at their most, and results mean nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from ralm.lm.api.client import Asked, Client
from ralm.lm.api.model import ApiModel
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.store import JsonObject
from ralm.lm.api.ways.way import Way
from ralm.protocols import Tokenizer
from ralm.records import IntArray

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
