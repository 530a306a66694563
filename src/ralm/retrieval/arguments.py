"""Checks and descriptions that several retrievers share."""

import hashlib

from pydantic import JsonValue

from ralm.bounds import check_count
from ralm.protocols import Retriever
from ralm.records import IntArray


def check_k(k: int) -> None:
    """Raise UsageError if k is not a valid number of passages per query."""
    check_count("k", k)


def forbidden_config(numbers: IntArray) -> dict[str, JsonValue]:
    """What a retriever adds to its `config` if it excludes some passages (int64)."""
    digest = hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()
    return {"forbidden": {"passages": len(numbers), "sha256": digest}}


def stable_hits(retriever: Retriever) -> int:
    """The `stable` of a retriever: up to this many hits, asking for fewer gives the first of them; 0 if it has none."""
    stable: int = getattr(retriever, "stable", 0)
    return stable
