"""Passes requests on to the server of a model, and gives its answers as they come, without retries, budget or store."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final, NoReturn

import httpx2
from pydantic import JsonValue

from ralm.errors import ServerError, UsageError
from ralm.lm.api import transport
from ralm.lm.api.endpoint import Endpoint
from ralm.protocols import UNLIMITED, Continuations, Tier
from ralm.records import FloatArray, IntArray, ScoringSequence

_PASSED: Final = ("retry-after", "x-request-id", "x-ratelimit-", "openai-")
"""Beginnings of the headers of an answer that are for its client; others are for browsers or about the connection."""
_SECONDS_OPEN: Final = 60.0
"""Seconds that an idle connection is kept: another one, with new keys, takes several round trips."""
_SECONDS_FRESH: Final = 5.0
"""Seconds for which the outcome of a check holds, and in which the server must answer it: anybody may ask for one."""
_MAX_BYTES: Final = 64 << 20
"""The longest answer that is not a stream."""


class Upstream:
    """Sends requests to one server with its own key; all methods belong to one event loop."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.endpoint = endpoint
        self._seconds = seconds
        headers = {**transport.HEADERS, "Accept": "*/*", "Accept-Encoding": "identity"}
        if endpoint.key is not None:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(seconds, connect=min(seconds, transport.SECONDS_TO_CONNECT), pool=None),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=_SECONDS_OPEN),
        )
        self._checking = asyncio.Lock()
        self._checked, self._answers = -inf, False

    async def send(self, path: str, body: Mapping[str, JsonValue]) -> "UpstreamAnswer":
        """The answer to a request, once its headers are there; close it. Raises ServerError if there is none."""
        content = json.dumps(body).encode()
        request = self._http.build_request("POST", self.endpoint.address(path), content=content)
        with self.errors():
            response = await self._http.send(request, stream=True)
        if response.is_redirect:
            await response.aclose()
            raise ServerError(f"{self.endpoint.url} has moved ({response.status_code}); name the new URL.", 502)
        return UpstreamAnswer(response, self)

    async def is_reachable(self) -> bool:
        """Whether the server answers, with no error of its own; it is asked for its models every few seconds."""
        async with self._checking:
            if time.monotonic() - self._checked >= _SECONDS_FRESH:
                try:
                    async with self._http.stream(
                        "GET", self.endpoint.address("/models"), timeout=_SECONDS_FRESH
                    ) as response:
                        self._answers = response.status_code < 500
                except (httpx2.HTTPError, httpx2.StreamError):
                    self._answers = False
                self._checked = time.monotonic()
            return self._answers

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of connections into a ServerError of one sentence."""
        try:
            yield
        except httpx2.TimeoutException:
            message = f"{self.endpoint.url} sent nothing within {self._seconds:g} seconds."
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            message = f"{self.endpoint.url} cannot be reached or broke off ({transport.cause_of(error)})."
        else:
            return
        raise ServerError(message)  # outside of the block, so that it does not carry the request with its key


class UpstreamAnswer:
    """The answer of a server: its status, the headers for clients, and its body, whole or in parts as they come."""

    def __init__(self, response: httpx2.Response, upstream: Upstream) -> None:
        self._response = response
        self._upstream = upstream
        self.status = response.status_code
        self.headers = {name: value for name, value in response.headers.items() if name.startswith(_PASSED)}
        self.kind = response.headers.get("content-type", "application/json")

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of server-sent events."""
        return self.status < 400 and self.kind.startswith("text/event-stream")

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body as they come. Raises ServerError if the server breaks off."""
        with self._upstream.errors():
            async for part in self._response.aiter_bytes():
                yield part

    async def content(self) -> bytes:
        """The whole body, without the key if the server repeats it. Raises ServerError."""
        try:
            with self._upstream.errors():
                content = await transport.read_content(self._response, _MAX_BYTES)
        except transport.TooLongError as error:
            raise ServerError(f"{self._upstream.endpoint.url} cannot be used: {error}.", 200) from None
        key = self._upstream.endpoint.key
        return content.replace(key.encode(), b"[key]") if key else content

    async def close(self) -> None:
        """Close the connection, which tells the server to stop, unless the whole body was read."""
        await self._response.aclose()


class UnreadTokenizer:
    """The tokenizer of a model to which requests are passed on: its tokens are not known."""

    def encode(self, text: str) -> IntArray:
        """Raise UsageError."""
        self._reject(text)

    def decode(self, tokens: IntArray) -> str:
        """Raise UsageError."""
        self._reject(tokens)

    def _reject(self, _: object) -> NoReturn:
        raise UsageError("this server passes requests on, so that the model's tokens are not known here.")


class ProxiedModel:
    """A `WritingModel` for a server that is only passed requests on: it reads and writes nothing by itself."""

    tier: Tier = "text"
    answers_only = True
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, name: str, endpoint: Endpoint, seconds: float, length: int | None) -> None:
        self.name = name
        self.endpoint = endpoint
        self.max_length = length or UNLIMITED
        self.tokenizer = UnreadTokenizer()
        self._seconds = seconds

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name and the address."""
        return {"name": self.name, "url": self.endpoint.url, "model": self.endpoint.model}

    def upstream(self) -> Upstream:
        """The server, for one event loop."""
        return Upstream(self.endpoint, self._seconds)

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Raise UsageError."""
        raise self._unread(sequences)

    def continuations(self) -> Continuations:
        """Raise UsageError."""
        raise self._unread()

    def _unread(self, *_: object) -> UsageError:
        return UsageError(f"requests to {self.name} are passed on: this needs a model that scores texts.")
