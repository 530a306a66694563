"""Sends requests to one server: JSON out, JSON in, and every failure as one sentence; or passes requests on.

No message contains the key, even if the server repeats it. Connections belong to one event loop, whose timeouts alone
bound the time of a whole answer: those of httpx2 are for single reads, maybe of a byte.
"""

import asyncio
import json
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

import httpx2
from pydantic import JsonValue

from ralm import __version__
from ralm.errors import ServerError, UsageError
from ralm.lm.api.endpoint import ApiOptions, Endpoint

JsonObject: TypeAlias = dict[str, JsonValue]
_HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"ralm/{__version__}",
}
_STORED: Final = "Run this again to continue; stored answers are not asked for twice."
_LONGEST: Final = 300
"""Characters of a server's message that an error repeats."""
_SECONDS_TO_CONNECT: Final = 10.0
_SECONDS_OPEN: Final = 60.0
"""Seconds that an idle connection is kept: another one, with new keys, takes several round trips."""
_SECONDS_TO_CHECK: Final = 5.0
_MAX_SECONDS_TO_RETRY: Final = 120.0
"""A server that asks for a longer wait is not asked again."""
_MESSAGES: Final = ("error", "message", "detail", "msg")
"""Fields of an error's body that may hold its message."""
_BYTES: Final = 1 << 20
_BYTES_A_LISTED_TOKEN: Final = 256
"""The maximum size of an answer: fixed bytes, and bytes for each token that may be listed at each position."""
_LISTED: Final = 20
"""Tokens listed at each position if the request names no larger number."""
_LISTING: Final = ("logprobs", "prompt_logprobs", "top_logprobs", "n_probs")
"""Fields in which requests name it."""
_BYTES_OF_OTHERS: Final = 16 << 20
"""The longest answer to a request that is not for tokens, such as the list of a provider's models."""
_BYTES_PASSED_ON: Final = 64 << 20
"""The longest answer that is passed on and is not a stream."""
_LEAST_STATUS, _MOST_STATUS = 200, 599
"""Statuses of whole answers that HTTP knows."""
_HEADERS_PASSED_ON: Final = ("retry-after", "x-request-id", "x-ratelimit-", "openai-")
"""Beginnings of the headers of an answer that are for its client; others are for browsers or about the connection."""
_BROKEN: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError)
"""Errors of connections; a host's name may be too long to encode."""


@dataclass(frozen=True, slots=True, eq=False)
class ApiRequest:
    """A POST; `parse` makes what the caller gets of an answer, or raises ServerError."""

    path: str
    body: Mapping[str, JsonValue]
    tokens: int
    max_new_tokens: int = 0
    retries: int | None = None
    parse: Callable[[JsonObject], Any] = lambda answer: answer

    @property
    def max_bytes(self) -> int:
        """The length of the longest answer that is read."""
        listed = max([_LISTED, *(value for name in _LISTING if isinstance(value := self.body.get(name), int))])
        return _BYTES + _BYTES_A_LISTED_TOKEN * listed * (self.tokens + self.max_new_tokens + 1)


class Http:
    """Connections to an endpoint, which send its key. UsageError if the proxies of the environment cannot be used."""

    def __init__(self, endpoint: Endpoint, seconds: float, headers: Mapping[str, str] = _HEADERS) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        key = {} if endpoint.key is None else {"Authorization": f"Bearer {endpoint.key}"}
        try:
            self._client = httpx2.AsyncClient(
                headers={**_HEADERS, **headers, **key},
                timeout=httpx2.Timeout(seconds, connect=min(seconds, _SECONDS_TO_CONNECT), pool=None),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_SECONDS_OPEN),
            )
        except (httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
            reason = str(error).removesuffix(".")
            raise UsageError(
                f"the proxy or the certificates that the environment names cannot be used: {reason}."
            ) from None

    async def open(self, method: str, path: str, content: bytes | None = None) -> httpx2.Response:
        """Return the answer to a request, once its headers are there; close it."""
        request = self._client.build_request(method, self.endpoint.address(path), content=content)
        return await self._client.send(request, stream=True)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class _Answer(NamedTuple):
    """The whole answer to one request."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Transport(Http):
    """Connections that send requests and retry them; `retried` is called for each retry of a POST."""

    def __init__(self, endpoint: Endpoint, options: ApiOptions, retried: Callable[[], None]) -> None:
        super().__init__(endpoint, options.timeout)
        self._retries = options.retries
        self._retried = retried
        self._stored = f" {_STORED}" if endpoint.model else ""

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, JsonValue] | None = None,
        *,
        max_bytes: int = _BYTES_OF_OTHERS,
        retries: int | None = None,
    ) -> JsonObject:
        """Return the answer to a request; ServerError if there is none."""
        place = self.endpoint.address(path)
        content = None if body is None else json.dumps(body).encode()
        begun, tries = time.monotonic(), 1
        most = 1 + (self._retries if retries is None else min(retries, self._retries))
        outcome = await self._once(method, path, content, max_bytes)
        while tries < most and (pause := _seconds_to_retry(outcome, tries)) is not None:
            await asyncio.sleep(pause)
            tries += 1
            if method == "POST":
                self._retried()
            outcome = await self._once(method, path, content, max_bytes)
        if isinstance(outcome, _Answer) and outcome.status < 300:
            return self._parsed(place, outcome.content)
        raise self._problem(outcome, place, tries, time.monotonic() - begun)

    async def _once(self, method: str, path: str, content: bytes | None, limit: int) -> "_Answer | Exception":
        """Return the whole answer, or what went wrong: as a value, since an error would carry the key along."""
        try:
            async with asyncio.timeout(self.seconds):
                response = await self.open(method, path, content)
                try:
                    return _Answer(response.status_code, response.headers, await read_content(response, limit))
                finally:
                    await response.aclose()
        except (*_BROKEN, TimeoutError, TooLongError) as error:
            return error

    def _parsed(self, place: str, content: bytes) -> JsonObject:
        """Return the JSON object in an answer, of a list the object with it as `data`; ServerError for others."""
        answer: Any = None
        with suppress(ValueError, RecursionError):
            answer = json.loads(content)
        if isinstance(answer, list) and answer and all(isinstance(entry, dict) for entry in answer):
            answer = {"data": answer}
        if not isinstance(answer, dict):
            text = content.decode(errors="replace")
            came = f"'{self._quote(text)}'" if text.strip() else "nothing"
            raise ServerError(
                f"{place} answered with {came}, not with a JSON object; check that it is the URL of an API.", 200
            )
        if (rejection := _rejection(answer)) is not None:
            raise ServerError(f"{self.endpoint.url} rejected a request ({self._quote(rejection)}).", 200)
        return answer

    def _problem(self, outcome: "_Answer | Exception", place: str, tries: int, seconds: float) -> ServerError:
        """Return what went wrong in one or two sentences."""
        url = self.endpoint.url
        tried = f"tried {tries:,} times over {seconds:,.0f} seconds" if tries > 1 else "tried once"
        if isinstance(outcome, TooLongError):
            return ServerError(f"{place} cannot be used: {outcome}.", 200)
        if isinstance(outcome, httpx2.TimeoutException | TimeoutError):
            return ServerError(f"{url} did not answer within {self.seconds:g} seconds; {tried}.{self._stored}")
        if isinstance(outcome, Exception):
            reason = self._quote(cause_of(outcome))
            return ServerError(f"{url} cannot be reached or broke off ({reason}); {tried}.{self._stored}")
        return ServerError(self._status(outcome, place, tried), outcome.status)

    def _status(self, answer: _Answer, place: str, tried: str) -> str:
        """Return the meaning of an HTTP status for the user."""
        url, variable = self.endpoint.url, self.endpoint.variable
        quoted = f"({answer.status}: {self._quote(_message(answer.content.decode(errors='replace')))})"
        match answer.status:
            case 401 | 403 if self.endpoint.key is None:
                return f"{url} needs a key {quoted}; put it into the environment variable {variable}."
            case 401 | 403:
                return f"{url} rejected the key in the environment variable {variable} {quoted}."
            case 404:
                lacking = f"no model {self.endpoint.model}, or " if self.endpoint.model else ""
                return f"{url} has {lacking}no {place} {quoted}."
            case 429:
                advice = f"Lower `requests_at_once` or wait a while.{self._stored}" if self._stored else "Wait a while."
                return f"{url} limits the rate of requests {quoted}; {tried}. {advice}"
            case status if status >= 500 or status in (408, 409):
                return f"{url} failed {quoted}; {tried}.{self._stored}"
            case status if status < 400:
                moved = self._quote(answer.headers.get("location", "")) or "another address"
                return f"{url} has moved to {moved} ({status}); name that URL."
            case _:
                return f"{url} rejected a request {quoted}."

    def _quote(self, text: str) -> str:
        """Return the first line of a server's message that is not blank, without the key, truncated."""
        if self.endpoint.key:
            text = text.replace(self.endpoint.key, "[key]")
        line = next((line for line in map(str.strip, text.splitlines()) if line), "")
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class Upstream(Http):
    """Connections that pass requests on, without retries, budget or store, and give the answers as they come."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        super().__init__(endpoint, seconds, {"Accept": "*/*", "Accept-Encoding": "identity"})

    async def send(self, method: str, path: str, content: bytes) -> "UpstreamAnswer":
        """Return the answer to a request, once its headers are there; close it. ServerError if there is none."""
        with self.errors():
            response = await self.open(method, path, content or None)
        status = response.status_code
        if response.is_redirect or not _LEAST_STATUS <= status <= _MOST_STATUS:
            await response.aclose()
            what = (
                f"has moved ({status}); name the new URL" if response.is_redirect else f"answered with status {status}"
            )
            raise ServerError(f"{self.endpoint.url} {what}.", 502)
        return UpstreamAnswer(response, self)

    async def is_reachable(self) -> bool:
        """Return whether the server answers, with no error of its own; it is asked for its models."""
        with suppress(*_BROKEN, TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_CHECK):
                response = await self.open("GET", "/models")
                await response.aclose()
            return response.status_code < 500
        return False

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of connections into a ServerError of one sentence."""
        try:
            yield
        except httpx2.TimeoutException:
            message = f"{self.endpoint.url} sent nothing within {self.seconds:g} seconds."
        except _BROKEN as error:
            message = f"{self.endpoint.url} cannot be reached or broke off ({cause_of(error)})."
        except TooLongError as error:
            raise ServerError(f"{self.endpoint.url} cannot be used: {error}.", 200) from None
        else:
            return
        raise ServerError(message)  # outside of the block, so that it does not carry the request with its key


class UpstreamAnswer:
    """The answer of a server: its status, the headers for clients, and its body, whole or in parts as they come."""

    def __init__(self, response: httpx2.Response, upstream: Upstream) -> None:
        self._response = response
        self._upstream = upstream
        self.close = response.aclose  # tells the server to stop, unless the whole body was read
        self.status = response.status_code
        ascii_ = {name: value for name, value in response.headers.items() if value.isascii()}
        told = {name: self.without_key(value.encode()).decode() for name, value in ascii_.items()}
        self.headers = {name: value for name, value in told.items() if name.startswith(_HEADERS_PASSED_ON)}
        self.kind = told.get("content-type", "application/json")

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of server-sent events."""
        return self.status < 400 and self.kind.startswith("text/event-stream")

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they come; ServerError if the server breaks off."""
        with self._upstream.errors():
            async for part in self._response.aiter_bytes():
                yield part

    async def content(self) -> bytes:
        """Return the whole body, without the key if the server repeats it; ServerError if it breaks off."""
        with self._upstream.errors():
            return self.without_key(await read_content(self._response, _BYTES_PASSED_ON))

    def without_key(self, content: bytes) -> bytes:
        """Return a part of the body without the key, which a server may repeat."""
        key = self._upstream.endpoint.key
        return content.replace(key.encode(), b"[key]") if key else content


class TooLongError(Exception):
    """A body is too long."""


async def read_content(response: httpx2.Response, limit: int) -> bytes:
    """Return the decompressed body; TooLongError if it has more bytes than `limit`."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise TooLongError(f"its answer has more than {limit:,} bytes, so that it cannot be one to the request")
    return b"".join(parts)


def _seconds_to_retry(outcome: _Answer | Exception, tries: int) -> float | None:
    """Return the seconds until a request is sent again after so many tries; None if the outcome stands."""
    if isinstance(outcome, TooLongError):
        return None
    if isinstance(outcome, _Answer):
        if outcome.status < 500 and outcome.status not in (408, 409, 429):
            return None
        named = _retry_after(outcome.headers)
        if named > _MAX_SECONDS_TO_RETRY:
            return None
        if named > 0:
            return named
    return min(0.5 * 2.0 ** min(tries - 1, 4), 8.0) * random.uniform(0.75, 1.0)  # noqa: S311


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait; 0 if it names none."""
    with suppress(KeyError, ValueError):
        if isfinite(seconds := float(headers["retry-after"])):
            return seconds
    return 0.0


def cause_of(error: BaseException) -> str:
    """Return the reason for a broken connection, by the operating system or the HTTP package."""
    reason, inner = "no reason given", error.__cause__ or error.__context__
    while inner is not None:
        number = getattr(inner, "errno", None) or 0
        if isinstance(inner, ssl.SSLError):
            return f"no encrypted connection: {inner.reason or inner}"
        reason = os.strerror(number) if number > 0 else str(inner) or reason
        inner = inner.__cause__ or inner.__context__
    return reason


def _rejection(answer: Mapping[str, JsonValue]) -> str | None:
    """Return the error in an answer with status 200, as some gateways send it, or None if there is none."""
    if answer.get("object") == "error":
        return _message(answer)
    choices = answer.get("choices")
    for part in (answer, *(choices if isinstance(choices, list) else ())):
        if isinstance(part, Mapping) and part.get("error"):
            return _message(part["error"])
    return None


def _message(body: object) -> str:
    """Return the message in the body of an error, a JSON value or its text."""
    with suppress(ValueError, RecursionError):
        body = json.loads(body) if isinstance(body, str) else body
    while isinstance(body, Mapping | list) and body:
        inner = body if isinstance(body, list) else [body[name] for name in _MESSAGES if name in body]
        body = inner[0] if inner else json.dumps(body)
    return str(body or "no reason given")
