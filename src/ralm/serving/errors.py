"""Errors of requests as OpenAI's error bodies, each with one sentence for the client."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import JsonValue
from starlette.responses import JSONResponse, Response

from ralm.errors import BudgetError, InputError, ModelError, RalmError, ServerError, UsageError
from ralm.terminal import one_line

_LOG: Final = logging.getLogger("ralm.serving")


class RequestError(UsageError):
    """A request that the server cannot answer; `param` names its field, `code` the error for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class StoppedError(RequestError):
    """The client went away, or the server stops."""

    def __init__(self) -> None:
        super().__init__("the server is being stopped.", code="stopping", status=503)


GONE: Final = 499
"""The status in logs of a request whose client went away."""
TOO_LONG: Final = "context_length_exceeded"
"""The code of errors about prompts that are too long."""
FIELD: Final = "unusable_field"
"""The kind of pydantic's errors about a field; their message goes on from its name."""
NO_OBJECT: Final = "the body must be a JSON object; send it with the header Content-Type: application/json."
_LONGEST_TOKEN: Final = 128
"""Bytes that a token can have: more than any token of a real text."""
_TYPES: Final = ("str", "int", "float", "bool", "constrained-str")
"""Parts of pydantic's locations that name a type of a field."""
_MAX_CHARACTERS: Final = 1000
"""Maximum number of characters of a message: it may quote a long part of the request."""
_ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, JsonValue]:
    """Return an error body of OpenAI's API; control characters in the message become escapes."""
    shown = one_line(message)
    shown = shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def validation_error(error: Mapping[str, Any]) -> RequestError:
    """Return one of pydantic's errors as that of its field."""
    place = [str(part) for number, part in enumerate(error["loc"]) if number or part not in ("body", "query", "path")]
    param = ".".join(part for part in place if "[" not in part and part not in _TYPES) or None
    if error["type"] == "json_invalid":
        return RequestError("the body is not JSON; send one JSON object.")
    if param is None:
        return RequestError(NO_OBJECT)
    fault = "is not supported: leave it out" if error["type"] == "extra_forbidden" else error["msg"]
    fault = fault.replace("Field required", "is missing").replace("Input should", "must")
    return RequestError(f"`{param}` {fault}.", param=param)


def error_response(error: BaseException) -> Response:
    """Return the response to a request that failed with an error."""
    status, body = status_and_body(error)
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers)


def status_and_body(error: BaseException) -> tuple[int, dict[str, JsonValue]]:
    """Return the status and the error body of an error."""
    match error:
        case RequestError():
            return error.status, error_body(str(error), error.status, param=error.param, code=error.code)
        case UsageError() | InputError():
            return 400, error_body(str(error), 400)
        case ServerError() | BudgetError():
            status, message = 502, "the server of the language model failed: see the log of this server."
        case ModelError():
            status, message = 500, "the language model failed: see the log of the server."
        case RalmError():
            status, message = 500, "the server cannot read its index: see its log."
        case _:
            _LOG.error("internal error", exc_info=error)
            return 500, error_body("internal error: see the log of the server.", 500)
    _LOG.warning("%s", error)
    return status, error_body(message, status)


def check_bytes(texts: Iterable[str], most: int, param: str) -> None:
    """Raise RequestError if texts have more than `most` bytes together."""
    size = sum(len(text.encode()) for text in texts)
    if size > most:
        raise RequestError(
            f"`{param}` has {size:,} bytes, and the limit is {most:,}: send less at once.",
            param=param,
            code=TOO_LONG,
        )


def most_bytes(tokens: int) -> int:
    """Return the maximum number of bytes of a text of so many tokens: with more it need not be tokenised."""
    return tokens * _LONGEST_TOKEN


def check_room(param: str, asked: int, new_tokens: int, most: int) -> None:
    """Raise RequestError if so many tokens of a request and its answer are more than `most`."""
    if asked + new_tokens > most:
        raise RequestError(
            f"`{param}` has {asked:,} tokens and `max_tokens` is {new_tokens:,}, together {asked + new_tokens:,}; the "
            f"limit is {most:,}: send at most {max(0, most - new_tokens):,} tokens, or lower `max_tokens`.",
            param=param,
            code=TOO_LONG,
        )
