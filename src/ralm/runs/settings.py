"""How a text was read, in a few words, from the configuration of its run.

Knows what a configuration calls things; knows nothing of reports.
"""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

JOINED: Final = "all of a token's gain counts for the first passage of its context"
"""What the reports of runs that read several passages in one context say of attribution."""


def settings_of(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """How a text was read, a few words for each label, from the configuration of its run.

    A run that another program wrote may record only some of it; what is missing is left out.
    """
    plan, reader, model = part_of(config, "plan"), part_of(config, "reader"), part_of(config, "model")
    known = {
        "model": model.get("name"),
        "passages": _passages(config["passages"]) if "passages" in config else None,
        "reader": _reader(config["reader"], config.get("reranker")) if "reader" in config else None,
        "stride": plan.get("stride"),
        "windows": ", ".join(_windows(plan)) or None,
        "attribution": JOINED if _named(reader) == "concatenation" else None,
    }
    return {label: str(value) for label, value in known.items() if value is not None}


def _windows(plan: Mapping[str, JsonValue]) -> list[str]:
    semantics = [f"{plan['semantics']} semantics"] if "semantics" in plan else []
    return [str(plan["windows"]), *semantics] if "windows" in plan else []


def _passages(source: JsonValue) -> str:
    if not isinstance(source, dict):
        return "none"
    if "retrieved" in source:
        return str(source["retrieved"])
    return f"{source.get('retriever', 'retrieved')} from {source['index']}" if "index" in source else "retrieved"


def _named(reader: Mapping[str, JsonValue]) -> str | None:
    """What a configuration calls its reader; an earlier version had the name as the only key."""
    return str(reader.get("reader") or next(iter(reader), "")) or None


def _reader(reader: JsonValue, reranker: JsonValue) -> str | None:
    if reader is None:
        return "no passage"
    if not isinstance(reader, dict):
        return None
    name = _named(reader)
    if name in ("in-context", "rerank"):
        return _best(reranker if isinstance(reranker, dict) else part_of(reader, "rerank"))
    options = part_of(reader, str(name)) or reader
    said = name
    if name == "ensemble":
        said = _ensemble(options)
    elif name == "concatenation":
        said = f"{options.get('documents', 'several')} passages in one context"
    if said and isinstance(reranker, dict):
        return f"{said}, chosen from {reranker.get('candidates')} ({reranker.get('reranker')})"
    return said


def _best(reranker: Mapping[str, JsonValue]) -> str:
    """The one passage that was read, and how it was chosen."""
    method = reranker.get("reranker", reranker.get("method", "none"))
    if method == "none":
        return "the first passage"
    return f"the best of {reranker.get('candidates', 'several')} passages ({method})"


def _ensemble(options: Mapping[str, JsonValue]) -> str:
    parts = [f"ensemble of {options.get('documents', 'several')}"]
    if "weights" in options:
        parts.append(f"{options['weights']} weights")
    if options.get("temperature", 1) != 1:
        parts.append(f"temperature {number_of(options['temperature']):g}")
    return ", ".join(parts)


def part_of(config: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    """A part of a configuration; empty where the run had no use for it."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def number_of(value: JsonValue) -> float:
    """A measure; not a number where it was none, which a run has as null."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("inf")
