"""Sends one request to a server: JSON out, JSON in, and every failure as one sentence.

The package `openai` sends and retries. It reads OPENAI_* variables, but none of them is sent, since the server may be
anyone's. No message contains the key, even if the server repeats it.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    Omit,
    Timeout,
    omit,
)
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from ralm.errors import ServerError, UsageError
from ralm.lm.api.budget import Tokens
from ralm.lm.api.endpoint import ApiOptions, Endpoint
from ralm.version import __version__

JsonObject: TypeAlias = dict[str, JsonValue]
_STORED: Final = "Answers so far are stored; run this again to continue."
_LONGEST: Final = 300
"""Characters of a server's message that an error repeats."""
_SECONDS_TO_CONNECT: Final = 10.0
_MESSAGES: Final = ("message", "error", "detail", "msg")
"""Fields of an error's body that may hold its message."""
_TRIES: Final = "x-stainless-retry-count"
"""The header in which `openai` counts earlier attempts of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class ApiRequest:
    """A request: `body` goes to `path`, which is below the base URL, or from the server's root if it begins with `//`.

    `tokens` is the number of tokens in its prompt, `max_new_tokens` the maximum number to generate. The budget counts
    these until the server reports its own numbers.
    """

    path: str
    body: Mapping[str, JsonValue]
    tokens: int
    max_new_tokens: int = 0
    retries: int | None = None

    @property
    def worst(self) -> Tokens:
        """The maximum number of tokens that it can cost."""
        return Tokens(self.tokens, self.max_new_tokens)


class Transport:
    """Sends requests to one endpoint; all its methods belong to one event loop.

    `retried` is called for each retry of `post`. Raises UsageError if the environment names a proxy
    or certificates that cannot be used.
    """

    def __init__(self, endpoint: Endpoint, options: ApiOptions, retried: Callable[[], None]) -> None:
        async def count(request: Any) -> None:
            if request.method == "POST" and request.headers.get(_TRIES, "0") != "0":
                retried()

        try:
            http = DefaultAsyncHttpxClient(event_hooks={"request": [count]})
        except (ImportError, OSError, ValueError) as error:
            raise UsageError(
                f"the proxy or the certificates that the environment names cannot be used: {error}"
            ) from None
        self._endpoint = endpoint
        self._timeout = options.timeout
        self._retries = options.retries
        self._headers = {"Authorization": omit} if endpoint.key is None else {}
        self._client = _OurHeaders(
            base_url=endpoint.url,
            api_key=endpoint.key or "none",
            max_retries=options.retries,
            timeout=Timeout(options.timeout, connect=min(options.timeout, _SECONDS_TO_CONNECT)),
            http_client=http,
        )

    async def post(self, path: str, body: Mapping[str, JsonValue], retries: int | None = None) -> JsonObject:
        """The answer to a request, with at most `retries` retries (None: those of the options).

        Raises ServerError if there is none.
        """
        return await self._answer(path, self._client.post, retries, body=dict(body))

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
        else:
            answer = _object(text)
            rejection = None if answer is None else _rejection(answer)
            if answer is not None and rejection is None:
                return answer
            problem = self._not_json(path, text) if answer is None else self._rejected(rejection or "")
        raise problem  # outside of the block, so that it does not carry the request with its key

    def _problem(self, error: APIError, path: str, seconds: float) -> ServerError:
        """The error in one or two sentences."""
        tries = int(error.request.headers.get(_TRIES, "0")) + 1
        tried = f"tried {tries:,} times over {seconds:,.0f} seconds" if tries > 1 else "tried once"
        if not isinstance(error, APIStatusError):
            return ServerError(f"{self._unreached(error)}; {tried}. {_STORED}")
        quoted = f"({error.status_code}: {self._quote(_message(error.body))})"
        return ServerError(self._status(error, path, quoted, tried), error.status_code)

    def _unreached(self, error: APIError) -> str:
        url = self._endpoint.url
        if isinstance(error, APITimeoutError):
            return f"{url} did not answer within {self._timeout:g} seconds"
        return f"{url} cannot be reached or broke off ({self._quote(_cause(error))})"

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

    def _rejected(self, message: str) -> ServerError:
        return ServerError(f"{self._endpoint.url} rejected a request ({self._quote(message)}).", 200)

    def _not_json(self, path: str, text: str) -> ServerError:
        came = f"'{self._quote(text)}'" if text.strip() else "nothing"
        place = self._endpoint.address(path)
        return ServerError(
            f"{place} answered with {came}, not with a JSON object; check that it is the URL of an API.", 200
        )

    def _quote(self, text: str) -> str:
        """The first line of a server's message that is not blank, without the key, truncated."""
        if self._endpoint.key:
            text = text.replace(self._endpoint.key, "[key]")
        line = next((line for line in map(str.strip, text.splitlines()) if line), "")
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class _OurHeaders(AsyncOpenAI):
    """The client without its headers from environment variables and about the machine."""

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"ralm/{__version__}",
        }


def _cause(error: BaseException) -> str:
    """The reason for a broken connection, by the operating system or the HTTP package."""
    reason, inner = "no reason given", error.__cause__ or error.__context__
    while inner is not None:
        number = getattr(inner, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(inner) or reason
        inner = inner.__cause__ or inner.__context__
    return reason


def _object(text: str) -> JsonObject | None:
    """The JSON object in a text, or None; a list of objects becomes the `data` of one."""
    try:
        answer = read_json(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
        answer = {"data": answer}
    return cast("JsonObject", answer) if isinstance(answer, dict) else None


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
    """The value of a JSON text; raises ValueError or RecursionError as `json.loads` does.

    pydantic is several times as fast, but rejects lone surrogates and deep nesting, which a server may send.
    """
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
