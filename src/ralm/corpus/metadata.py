"""Metadata of documents: what JSON can hold of a record's other fields, and how a file holds it.

Knows values; knows nothing of which fields are kept.
"""

import datetime
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.records import Metadata

_AS_TEXT: Final = (datetime.timedelta, np.datetime64, np.timedelta64, uuid.UUID)
_DEEPEST: Final = 100
"""How deeply lists and objects may be nested: functions that call themselves for each level must reach the bottom."""
_WHOLE: Final = 1 << 53


def json_value(value: object, *, depth: int = 0) -> JsonValue:
    """A value of a record as JSON; null if it is missing, which tables may express as NaN.

    Dates and times become ISO text. A decimal becomes a number if a double holds it exactly enough to print the same
    digits, otherwise text. Scalars and arrays of numpy become numbers and lists. Raises TypeError if JSON has no such
    value: bytes, an infinite number, any other object, or lists within lists within lists beyond all reason.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return json_value(value.tolist(), depth=depth)
    return _nested(value, depth + 1)


def to_json(metadata: Metadata) -> str:
    """Metadata as compact JSON.

    Raises TypeError, ValueError or RecursionError if it is not JSON.
    """
    if not metadata:
        return "{}"
    text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()  # raises an error for half of a character
    return text


def from_json(text: str) -> Metadata:
    """Metadata from JSON.

    Raises ValueError or RecursionError if it is not a JSON object.
    """
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise ValueError("not a JSON object")
    return metadata


def _nested(value: object, depth: int) -> JsonValue:
    if depth <= _DEEPEST and isinstance(value, Mapping):
        return {str(key): json_value(item, depth=depth) for key, item in value.items()}
    if depth <= _DEEPEST and isinstance(value, (list, tuple)):
        return [json_value(item, depth=depth) for item in value]
    raise TypeError(f"JSON has no such {type(value).__name__}")


def _finite(number: float) -> JsonValue:
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise TypeError("JSON has no infinity")
    return number


def _decimal(number: Decimal) -> JsonValue:
    if not number.is_finite():
        return _finite(float(number))
    as_float = float(number)
    if Decimal(repr(as_float)) != number:
        return str(number)
    return int(as_float) if as_float.is_integer() and abs(as_float) < _WHOLE else as_float
