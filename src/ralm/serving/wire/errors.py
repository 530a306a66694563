"""OpenAI's error bodies, and one sentence for each thing that is wrong with a request."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pydantic import JsonValue

from ralm.terminal import one_line

_LONGEST: Final = 1000
"""Characters of a message: what it quotes of a request may be long."""
_KINDS: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_SAID: Final = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "holds half a character, a lone surrogate",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def error_body(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, JsonValue]:
    """An error as OpenAI's API says it; control characters of the message are shown as escapes."""
    shown = one_line(message)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def first_fault(errors: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> tuple[str, str | None]:
    """The first of pydantic's errors as a sentence, and the field that it is about; `known` are all fields."""
    error = errors[0]
    place = [str(part) for part in error["loc"] if part not in ("body", "query")]
    param = ".".join(part for part in place if not _is_kind(part)) or None
    kind = error["type"]
    if kind == "json_invalid":
        return "the body is not JSON; send one JSON object.", None
    if kind in ("surrogates", "nested"):
        return f"the body {error['msg']}.", None
    if param is None:
        return "the body must be a JSON object; send it with the header Content-Type: application/json.", None
    if kind == "extra_forbidden":
        close = get_close_matches(place[-1], known, n=1)
        return f"`{param}` is not a field of this request{f'; the nearest is `{close[0]}`' if close else ''}.", param
    return f"`{param}` {_SAID.get(kind) or 'is wrong: ' + str(error['msg'])}.", param


def _is_kind(part: str) -> bool:
    """Whether a part of a place names one of several types that a field may have."""
    return "[" in part or part in ("str", "int", "float", "bool", "constrained-str")
