"""JSON of answers, which may have a million characters: pydantic reads and writes it several times as fast as Python.

pydantic refuses half a character (a lone surrogate) and deep nesting, which a server may send; Python does not.
"""

import json
from typing import Any

from pydantic_core import from_json, to_json


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
