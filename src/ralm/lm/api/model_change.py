"""A server that changes its model in between: noticed, so that no figure is made of the answers of two models.

An answer may say which system and which model it comes from. If it says something new, a known text is continued again:
the same greedy tokens mean the same model, and what the answer says is accepted from then on. Hosted models change
their system often, and mean the same model by it. Where answers say nothing, that is done every now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from pydantic import JsonValue

from ralm.errors import BudgetError, ServerError
from ralm.lm.api.store import AnswerStore
from ralm.lm.api.transport import Asked, JsonObject

_UNTOLD: Final = 200
"""Answers between two checks that say nothing of where they come from. A check is one short request, so that it adds
at most half a percent; and so many answers at most come from another model before it is noticed."""
_TRIES: Final = 3
"""Times to ask for the known text: a server that computes in batches may choose the other of two tokens that are about
as likely."""
_MOST: Final = 20
"""Origins to accept: a server that names more of them means nothing by it."""

Ask: TypeAlias = Callable[[Asked], Awaitable[JsonObject]]


class Origin(NamedTuple):
    """Where an answer says that it comes from."""

    system: JsonValue
    model: JsonValue


def origin_of(answer: JsonObject) -> Origin:
    """The system (`system_fingerprint`) and the model that an answer names."""
    return Origin(answer.get("system_fingerprint"), answer.get("model"))


@dataclass(frozen=True, slots=True, eq=False)
class KnownText:
    """The request to continue a known text, and whether an answer to it is that of the model that was found."""

    asked: Asked
    is_same: Callable[[JsonObject], bool]


class Watch:
    """Keeps the answers of one model in a store, and notices another one. All methods belong to one event loop.

    `said` is what the model says of itself so far, if it was asked anything. Without a known text, another name of the
    model is all that tells it from another.
    """

    def __init__(self, url: str, store: AnswerStore, known: KnownText | None, said: Origin | None) -> None:
        self._url = url
        self._store = store
        self._known = known
        self._accepted = set[Origin]() if said is None else {said}
        self._untold: list[bytes] = []
        self._turn = asyncio.Lock()
        self._other: ServerError | None = None

    async def keep(self, key: bytes, answer: JsonObject, ask: Ask) -> None:
        """Keep an answer by its key, once it is known to be that of the model; `ask` sends a request.

        Raises ServerError if it may be that of another one. What says nothing of its origin is then forgotten, back to
        the last time that the known text was continued.
        """
        origin = origin_of(answer)
        if origin.system is not None and origin in self._accepted:
            self._store.put(key, answer)
            return
        async with self._turn:
            if self._other is not None:
                raise self._other
            if origin not in self._accepted and len(self._accepted) < _MOST:
                await self._check(origin, ask)
                self._accepted.add(origin)
            self._store.put(key, answer)
            if origin.system is None or origin not in self._accepted:
                self._untold.append(key)
            if len(self._untold) >= _UNTOLD:
                with suppress(BudgetError):
                    await self._check(origin, ask)

    async def _check(self, origin: Origin, ask: Ask) -> None:
        if not await self._is_same(origin, ask):
            self._store.drop(self._untold)
            self._other = ServerError(
                f"{self._url} changed its model in between: a known text goes on in another way than before, or the "
                "model has another name. What is sure to come from the model before is kept; run this again to begin "
                "with the new one."
            )
            raise self._other
        self._untold.clear()

    async def _is_same(self, origin: Origin, ask: Ask) -> bool:
        if self._known is None:
            return not self._accepted or origin.model in {one.model for one in self._accepted}
        for _ in range(_TRIES):
            if self._known.is_same(await ask(self._known.asked)):
                return True
        return False
