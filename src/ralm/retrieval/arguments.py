"""What every retriever asks of its arguments, and what those that wrap others may ask of these."""

import hashlib

from pydantic import JsonValue

from ralm.bounds import check_count
from ralm.protocols import Retriever
from ralm.records import IntArray


def check_k(k: int) -> None:
    """Raise UsageError where k is no number of passages that a query can have."""
    check_count("k", k)


def forbidden_config(numbers: IntArray) -> dict[str, JsonValue]:
    """What a retriever that never finds some passages (int64) adds to its `config`."""
    digest = hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()
    return {"forbidden": {"passages": len(numbers), "sha256": digest}}


def stable_hits(retriever: Retriever) -> int:
    """Up to how many hits the first of them are those that fewer hits would be; 0 where a retriever does not say."""
    stable: int = getattr(retriever, "stable", 0)
    return stable
