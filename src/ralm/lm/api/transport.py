"""One request to a server: JSON out, JSON in, and every failure as one sentence.

The package `openai` does the work, retries included. Nothing of what it reads from OPENAI_* variables is sent, since
the server may be anyone's. No message holds the key, also if the server repeats it.
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
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.options import ApiOptions
from ralm.version import __version__

JsonObject: TypeAlias = dict[str, JsonValue]
_KEPT: Final = "What was answered is kept; run this again to go on from there."
_LONGEST: Final = 300
"""Characters of what a server said that a message repeats."""
_SECONDS_TO_CONNECT: Final = 10.0
_MESSAGES: Final = ("message", "error", "detail", "msg")
"""Where the body of an error has its message."""
_TRIES: Final = "x-stainless-retry-count"
"""The header in which the package counts how often a request was sent before."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request: `body` goes to `path`, which is below the base URL, or from the server's root if it begins with `//`.

    `tokens` is the number of tokens in its prompt, `most_new` the number that it may generate at most. They count until
    the server says how many it took.
    """

    path: str
    body: Mapping[str, JsonValue]
    tokens: int
    most_new: int = 0
    retries: int | None = None

    @property
    def worst(self) -> Tokens:
        """The most tokens that it can cost."""
        return Tokens(self.tokens, self.most_new)


class Transport:
    """Sends requests to one endpoint; all its methods belong to one event loop.

    `retried` is called whenever a request of `post` is sent again. Raises UsageError if the environment names a proxy
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
        """The answer to a request, which is sent again at most `retries` times (None: as often as the options say).

        Raises ServerError if there is none.
        """
        return await self._answer(path, self._client.post, retries, body=dict(body))

    async def get(self, path: str) -> JsonObject:
        """What a server says at a path. Raises ServerError if there is nothing."""
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
            refused = None if answer is None else _refusal(answer)
            if answer is not None and refused is None:
                return answer
            problem = self._odd(path, text) if answer is None else self._refused(refused or "")
        raise problem  # outside of the block, so that it does not carry the request with its key along

    def _problem(self, error: APIError, path: str, seconds: float) -> ServerError:
        """What went wrong, in one or two sentences."""
        tries = int(error.request.headers.get(_TRIES, "0")) + 1
        tried = f"tried {tries:,} times over {seconds:,.0f} seconds" if tries > 1 else "tried once"
        if not isinstance(error, APIStatusError):
            return ServerError(f"{self._unreached(error)}; {tried}. {_KEPT}")
        said = f"({error.status_code}: {self._told(_message(error.body))})"
        return ServerError(self._status(error, path, said, tried), error.status_code)

    def _unreached(self, error: APIError) -> str:
        url = self._endpoint.url
        if isinstance(error, APITimeoutError):
            return f"{url} did not answer within {self._timeout:g} seconds"
        return f"{url} cannot be reached or broke off ({self._told(_cause(error))})"

    def _status(self, error: APIStatusError, path: str, said: str, tried: str) -> str:
        """What an HTTP status means for the user."""
        url, variable = self._endpoint.url, self._endpoint.variable
        match error.status_code:
            case 401 | 403 if self._endpoint.key is None:
                return f"{url} asks for a key {said}; put it into the environment variable {variable}."
            case 401 | 403:
                return f"{url} refused the key in the environment variable {variable} {said}."
            case 404:
                return f"{url} has no model {self._endpoint.model}, or no {self._endpoint.address(path)} {said}."
            case 429:
                return f"{url} is asked too much {said}; {tried}. Lower `requests_at_once` or wait a while. {_KEPT}"
            case status if status >= 500 or status in (408, 409):
                return f"{url} failed {said}; {tried}. {_KEPT}"
            case status if status < 400:
                place = self._told(error.response.headers.get("location", "")) or "another address"
                return f"{url} has moved to {place} ({error.status_code}); name that URL."
            case _:
                return f"{url} refused a request {said}."

    def _refused(self, said: str) -> ServerError:
        return ServerError(f"{self._endpoint.url} refused a request ({self._told(said)}).", 200)

    def _odd(self, path: str, text: str) -> ServerError:
        came = f"'{self._told(text)}'" if text.strip() else "nothing"
        place = self._endpoint.address(path)
        return ServerError(
            f"{place} answered with {came}, not with a JSON object; check that it is the URL of an API.", 200
        )

    def _told(self, text: str) -> str:
        """The first line with something on it of what a server said, without the key, cut."""
        if self._endpoint.key:
            text = text.replace(self._endpoint.key, "[key]")
        line = next((line for line in map(str.strip, text.splitlines()) if line), "")
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class _OurHeaders(AsyncOpenAI):
    """The client without the headers that it makes from environment variables and the machine."""

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"ralm/{__version__}",
        }


def _cause(error: BaseException) -> str:
    """What the operating system or else the HTTP package says about a broken connection."""
    said, inner = "no reason given", error.__cause__ or error.__context__
    while inner is not None:
        number = getattr(inner, "errno", None) or 0
        said = os.strerror(number) if number > 0 else str(inner) or said
        inner = inner.__cause__ or inner.__context__
    return said


def _object(text: str) -> JsonObject | None:
    """The JSON object that a text is, or None if it is something else; a list of objects is the `data` of one."""
    try:
        answer = read_json(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
        answer = {"data": answer}
    return cast("JsonObject", answer) if isinstance(answer, dict) else None


def _refusal(answer: Mapping[str, JsonValue]) -> str | None:
    """The error in an answer with status 200, as some gateways send it, or None if there is none."""
    if answer.get("object") == "error":
        return _message(answer)
    choices = answer.get("choices")
    for one in (answer, *(choices if isinstance(choices, list) else ())):
        if isinstance(one, Mapping) and one.get("error"):
            return _message(one["error"])
    return None


def _message(body: object) -> str:
    """What a server says in the body of an error."""
    while isinstance(body, Mapping | list) and body:
        if isinstance(body, list):
            body = body[0]
        else:
            body = next((body[name] for name in _MESSAGES if body.get(name)), json.dumps(body))
    return str(body or "no reason given")


def read_json(text: str | bytes) -> Any:
    """What `json.loads` returns, or raises: ValueError or RecursionError."""
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
