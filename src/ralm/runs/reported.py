"""The report of a run or of a generated text: what is known of how it was read, put above it.

Knows what a configuration calls things; knows nothing of pages or terminals.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.evaluation.traces import TracedText
from ralm.records import FloatArray
from ralm.runs.report import Report
from ralm.runs.run import Run

_TITLE: Final = 60
JOINED: Final = "all of a token's gain counts for the first passage of its context"
"""What the reports of runs that read several passages in one context say of attribution."""


def report_of(run: Run, tokens: int) -> Report:
    """The report of a run, of whose text the first `tokens` tokens are shown."""
    config = _of(run.summary, "config")
    return Report(
        title=Path(str(_of(config, "text").get("path", run.path))).name,
        settings=settings_of(config),
        perplexity=_number(run.summary.get("token_perplexity")),
        baseline_perplexity=_number(_of(run.summary, "baseline").get("token_perplexity")),
        text=run.text,
        shown_tokens=min(tokens, len(run.text)),
    )


def report_of_generation(text: TracedText, config: Mapping[str, JsonValue]) -> Report:
    """The report of a generated text; `config` as that of a run, as far as generation knows it."""
    return Report(
        title=" ".join(text.before.split())[:_TITLE],
        settings=settings_of(config),
        perplexity=_perplexity(text.log_probs_T),
        baseline_perplexity=_perplexity(text.baseline_T),
        text=text,
        shown_tokens=len(text),
    )


def settings_of(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """How a text was read, in a few words a label, from the configuration of its run; a run that was written by a
    program of one's own may record little or nothing of it, and what it lacks is left out."""
    plan, reader, model = _of(config, "plan"), _of(config, "reader"), _of(config, "model")
    known = {
        "model": model.get("name"),
        "passages": _passages(config["passages"]) if "passages" in config else None,
        "reader": _reader(config["reader"]) if "reader" in config else None,
        "stride": plan.get("stride"),
        "windows": ", ".join(_windows(plan)) or None,
        "attribution": JOINED if "concatenation" in reader else None,
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


def _reader(reader: JsonValue) -> str | None:
    if reader is None:
        return "no passage"
    if not isinstance(reader, dict):
        return None
    if ensemble := _of(reader, "ensemble"):
        return _ensemble(ensemble)
    if joined := _of(reader, "concatenation"):
        return f"{joined.get('documents', 'several')} passages in one context"
    chosen = _of(reader, "rerank")
    if "method" not in chosen:
        return None
    if chosen["method"] == "none":
        return "the first passage"
    return f"the best of {chosen.get('candidates', 'several')} passages ({chosen['method']})"


def _ensemble(ensemble: Mapping[str, JsonValue]) -> str:
    parts = [f"ensemble of {ensemble.get('documents', 'several')}"]
    if "weights" in ensemble:
        parts.append(f"{ensemble['weights']} weights")
    if ensemble.get("temperature", 1) != 1:
        parts.append(f"temperature {_number(ensemble['temperature']):g}")
    return ", ".join(parts)


def _of(config: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    """A part of a configuration; empty where the run had no use for it."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def _perplexity(log_probs_T: FloatArray) -> float:
    return float(np.exp(-log_probs_T.mean(dtype=np.float64))) if len(log_probs_T) else float("nan")


def _number(value: JsonValue) -> float:
    """A measure; not a number where it was none, which a run has as null."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("inf")
