"""What a scripted server sends: a reply, or a refusal that a dialect raises."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A status, headers and a body, of which `cut_after` bytes are sent; -1: not even the headers."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None

    @classmethod
    def of(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Self:
        """A value as JSON; a text as it is."""
        if isinstance(value, str):
            return cls(value.encode(), status, {"Content-Type": "text/plain; charset=utf-8", **(headers or {})})
        return cls(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})


class RefusedError(Exception):
    """A request that a provider would refuse, with the body that it would send."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.reply = Reply.of(body, status)
