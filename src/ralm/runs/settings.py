"""How a text was read, in a few words, from the configuration of its run.

Knows the names in a configuration; knows nothing of reports.
"""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

JOINED: Final = "all of a token's gain counts for the first passage of its context"
"""What reports say about attribution if several passages were read in one context."""


def settings_of(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """How a text was read, in a few words for each label, from the configuration of its run.

    Runs written by other programs may lack some of it; missing parts are left out.
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
    """The name of the reader in a configuration; earlier versions stored it as the only key, with the options below."""
    if "reader" in reader:
        return str(reader["reader"])
    return next((key for key, options in reader.items() if isinstance(options, dict)), None)


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
    """How the single passage that was read was chosen."""
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
    """A part of a configuration; empty if it is missing or null."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def number_of(value: JsonValue) -> float:
    """A measure; NaN if the run has null for it."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("inf")
