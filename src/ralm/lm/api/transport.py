"""Sends one request to a server: JSON out, JSON in, and every failure as one sentence.

The package `openai` sends and retries. It reads OPENAI_* variables, but none of them is sent, since the server may be
anyone's. No message contains the key, even if the server repeats it.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import httpx2
from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    Omit,
    OpenAIError,
    Timeout,
    omit,
)
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from ralm.errors import ServerError, UsageError
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.version import __version__

JsonObject: TypeAlias = dict[str, JsonValue]
_STORED: Final = "Answers so far are stored; run this again to continue."
_LONGEST: Final = 300
"""Characters of a server's message that an error repeats."""
SECONDS_TO_CONNECT: Final = 10.0
HEADERS: Final = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"ralm/{__version__}",
}
_MESSAGES: Final = ("message", "error", "detail", "msg")
"""Fields of an error's body that may hold its message."""
_TRIES: Final = "x-stainless-retry-count"
"""The header in which `openai` counts earlier attempts of a request."""
_BYTES: Final = 1 << 20
_BYTES_A_LISTED_TOKEN: Final = 256
"""The maximum size of an answer: fixed bytes, and bytes for each token that may be listed at each position."""
_LISTED: Final = 20
"""Tokens listed at each position if the request names no larger number."""
_LISTING: Final = ("logprobs", "prompt_logprobs", "top_logprobs", "n_probs", "top_logprobs_num")
"""Fields in which requests name it."""
_BYTES_TO_GET: Final = 16 << 20
"""The longest answer to a request that is not for tokens, such as the list of a provider's models."""
_max_bytes: ContextVar[int] = ContextVar("max_bytes", default=_BYTES_TO_GET)
_OF_THE_BODY: Final = ("content-type", "content-encoding", "content-length", "transfer-encoding")
"""Headers that say how a body was sent; a charset that Python has may decode no text."""


@dataclass(frozen=True, slots=True, eq=False)
class ApiRequest:
    """A request: `body` goes to `path`, which is below the base URL, or from the server's root if it begins with `//`.

    `tokens` is the number of tokens in its prompt, `max_new_tokens` the maximum number to generate. `check` raises
    ServerError if an answer cannot be used.
    """

    path: str
    body: Mapping[str, JsonValue]
    tokens: int
    max_new_tokens: int = 0
    retries: int | None = None
    check: Callable[[JsonObject], object] = lambda _: None

    def checked(self, check: Callable[[JsonObject], object]) -> "ApiRequest":
        """The request with another `check`."""
        return replace(self, check=check)

    @property
    def max_bytes(self) -> int:
        """The length of the longest answer that is read."""
        listed = max([_LISTED, *(value for name in _LISTING if isinstance(value := self.body.get(name), int))])
        return _BYTES + _BYTES_A_LISTED_TOKEN * listed * (self.tokens + self.max_new_tokens + 1)


class Transport:
    """Sends requests to one endpoint, in one event loop; `retried` is called for each retry of a POST."""

    def __init__(self, endpoint: Endpoint, options: ApiOptions, retried: Callable[[], None]) -> None:
        async def count(request: Any) -> None:
            if request.method == "POST" and request.headers.get(_TRIES, "0") != "0":
                retried()

        try:
            http = _BoundedHttp(options.timeout, event_hooks={"request": [count]})
        except (httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
            reason = str(error).removesuffix(".")
            raise UsageError(
                f"the proxy or the certificates that the environment names cannot be used: {reason}."
            ) from None
        self._endpoint = endpoint
        self._timeout = options.timeout
        self._retries = options.retries
        self._headers = {"Authorization": omit} if endpoint.key is None else {}
        self._client = _OurHeaders(
            base_url=endpoint.url,
            api_key=endpoint.key or "none",
            max_retries=options.retries,
            timeout=Timeout(options.timeout, connect=min(options.timeout, SECONDS_TO_CONNECT)),
            http_client=http,
        )

    async def send(self, request: ApiRequest) -> JsonObject:
        """The answer to a request. Raises ServerError if there is none."""
        _max_bytes.set(request.max_bytes)
        return await self._answer(request.path, self._client.post, request.retries, body=dict(request.body))

    async def post(self, path: str, body: Mapping[str, JsonValue]) -> JsonObject:
        """The answer to a request that is not for tokens. Raises ServerError if there is none."""
        return await self._answer(path, self._client.post, None, body=dict(body))

    async def get(self, path: str) -> JsonObject:
        """The answer at a path. Raises ServerError if there is none."""
        return await self._answer(path, self._client.get, 1)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _answer(self, path: str, ask: Callable[..., Any], retries: int | None, **arguments: Any) -> JsonObject:
        begun = time.monotonic()
        options: dict[str, Any] = {"headers": self._headers, "follow_redirects": False}
        if retries is not None:
            options["max_retries"] = min(retries, self._retries)
        try:
            text = await ask(self._endpoint.address(path), cast_to=str, options=options, **arguments)
        except APIError as error:
            problem = self._problem(error, path, time.monotonic() - begun)
        except TooLongError as error:
            problem = ServerError(f"{self._endpoint.address(path)} cannot be used: {error}.", 200)
        except UnicodeEncodeError:
            problem = ServerError(
                f"the text for {self._endpoint.address(path)} has half a character, a lone surrogate, which cannot be "
                "sent: the tokenizer of this model is damaged or another one; name a `tokenizer`."
            )
        else:
            return self._object(path, text)
        raise problem  # outside of the block, so that it does not carry the request with its key

    def _object(self, path: str, text: str) -> JsonObject:
        """The JSON object in an answer; a list of objects becomes the `data` of one. Raises ServerError for others."""
        answer: Any = None
        with suppress(ValueError, RecursionError):
            answer = read_json(text)
        if isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
            answer = {"data": answer}
        if not isinstance(answer, dict):
            came = f"'{self._quote(text)}'" if text.strip() else "nothing"
            place = self._endpoint.address(path)
            raise ServerError(
                f"{place} answered with {came}, not with a JSON object; check that it is the URL of an API.", 200
            )
        if (rejection := _rejection(answer)) is not None:
            raise ServerError(f"{self._endpoint.url} rejected a request ({self._quote(rejection)}).", 200)
        return answer

    def _problem(self, error: APIError, path: str, seconds: float) -> ServerError:
        """The error in one or two sentences."""
        url = self._endpoint.url
        tries = int(error.request.headers.get(_TRIES, "0")) + 1
        tried = f"tried {tries:,} times over {seconds:,.0f} seconds" if tries > 1 else "tried once"
        if isinstance(error, APITimeoutError):
            return ServerError(f"{url} did not answer within {self._timeout:g} seconds; {tried}. {_STORED}")
        if not isinstance(error, APIStatusError):
            reason = self._quote(cause_of(error))
            return ServerError(f"{url} cannot be reached or broke off ({reason}); {tried}. {_STORED}")
        quoted = f"({error.status_code}: {self._quote(_message(error.body))})"
        return ServerError(self._status(error, path, quoted, tried), error.status_code)

    def _status(self, error: APIStatusError, path: str, quoted: str, tried: str) -> str:
        """The meaning of an HTTP status for the user."""
        url, variable = self._endpoint.url, self._endpoint.variable
        match error.status_code:
            case 401 | 403 if self._endpoint.key is None:
                return f"{url} needs a key {quoted}; put it into the environment variable {variable}."
            case 401 | 403:
                return f"{url} rejected the key in the environment variable {variable} {quoted}."
            case 404:
                return f"{url} has no model {self._endpoint.model}, or no {self._endpoint.address(path)} {quoted}."
            case 429:
                advice = "Lower `requests_at_once` or wait a while."
                return f"{url} limits the rate of requests {quoted}; {tried}. {advice} {_STORED}"
            case status if status >= 500 or status in (408, 409):
                return f"{url} failed {quoted}; {tried}. {_STORED}"
            case status if status < 400:
                place = self._quote(error.response.headers.get("location", "")) or "another address"
                return f"{url} has moved to {place} ({error.status_code}); name that URL."
            case _:
                return f"{url} rejected a request {quoted}."

    def _quote(self, text: str) -> str:
        """The first line of a server's message that is not blank, without the key, truncated."""
        if self._endpoint.key:
            text = text.replace(self._endpoint.key, "[key]")
        line = next((line for line in map(str.strip, text.splitlines()) if line), "")
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class _BoundedHttp(DefaultAsyncHttpxClient):
    """Reads a whole answer in bounded time and memory; the timeouts of httpx2 are for single reads, maybe of a byte."""

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """The answer, which is read and without the headers of its body."""
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **{**options, "stream": True})
                try:
                    content = await read_content(response, _max_bytes.get())
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole answer took too long", request=request) from None
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=headers, content=content, request=request)


async def read_content(response: httpx2.Response, limit: int) -> bytes:
    """The decompressed body. Raises TooLongError if it has more bytes than `limit`."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise TooLongError(f"its answer has more than {limit:,} bytes, so that it cannot be one to the request")
    return b"".join(parts)


class TooLongError(OpenAIError):
    """A body is too long; `openai` lets its own errors through without a retry."""


class _OurHeaders(AsyncOpenAI):
    """The client without its headers from environment variables and about the machine."""

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        return {**HEADERS}


def cause_of(error: BaseException) -> str:
    """The reason for a broken connection, by the operating system or the HTTP package."""
    reason, inner = "no reason given", error.__cause__ or error.__context__
    while inner is not None:
        number = getattr(inner, "errno", None) or 0
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {inner.verify_message}"
        if isinstance(inner, ssl.SSLError):
            return f"no encrypted connection: {inner.reason or inner}"
        reason = os.strerror(number) if number > 0 else str(inner) or reason
        inner = inner.__cause__ or inner.__context__
    return reason


def _rejection(answer: Mapping[str, JsonValue]) -> str | None:
    """The error in an answer with status 200, as some gateways send it, or None if there is none."""
    if answer.get("object") == "error":
        return _message(answer)
    choices = answer.get("choices")
    for one in (answer, *(choices if isinstance(choices, list) else ())):
        if isinstance(one, Mapping) and one.get("error"):
            return _message(one["error"])
    return None


def _message(body: object) -> str:
    """The message in the body of an error."""
    while isinstance(body, Mapping | list) and body:
        if isinstance(body, list):
            body = body[0]
        else:
            body = next((body[name] for name in _MESSAGES if body.get(name)), json.dumps(body))
    return str(body or "no reason given")


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text, as `json.loads`. pydantic is several times as fast, but rejects lone surrogates and
    deep nesting, which a server may send."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def write_json(answer: Any) -> bytes:
    """JSON that `read_json` reads as an equal answer."""
    try:
        return to_json(answer)
    except ValueError:
        return json.dumps(answer).encode()
