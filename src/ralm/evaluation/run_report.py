"""The report of a run or of a generated text: what is known of how it was read, put above it.

Knows what a configuration calls things; knows nothing of pages or terminals.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import DamagedFolderError
from ralm.evaluation.report import Report
from ralm.evaluation.run import Run
from ralm.evaluation.traces import TracedText
from ralm.records import FloatArray

_TITLE: Final = 60
JOINED: Final = "all of a token's gain counts for the first passage of its context"
"""What the reports of runs that read several passages in one context say of attribution."""


def report_of(run: Run, tokens: int) -> Report:
    """The report of a run, of whose text the first `tokens` tokens are shown."""
    config = _of(run.summary, "config")
    try:
        return Report(
            title=Path(str(_of(config, "text")["path"])).name,
            settings=settings_of(config),
            perplexity=_number(run.summary["token_perplexity"]),
            baseline_perplexity=_number(_of(run.summary, "baseline")["token_perplexity"]),
            text=run.text,
            shown_tokens=min(tokens, len(run.text)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFolderError(
            f"{run.path} is damaged: its summary does not say how it was read ({error}); score the text again."
        ) from error


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
    """How a text was read, in a few words a label, from the configuration of its run."""
    plan, reader = _of(config, "plan"), _of(config, "reader")
    settings = {
        "model": str(_of(config, "model")["name"]),
        "passages": _passages(_of(config, "passages")),
        "reader": _reader(reader),
        "stride": str(plan["stride"]),
    }
    if "windows" in plan:
        settings["windows"] = f"{plan['windows']}, {plan['semantics']} semantics"
    return settings | {"attribution": JOINED} if "concatenation" in reader else settings


def _passages(source: Mapping[str, JsonValue]) -> str:
    if not source:
        return "none"
    if "retrieved" in source:
        return str(source["retrieved"])
    return f"{source.get('retriever', 'retrieved')} from {source['index']}" if "index" in source else "retrieved"


def _reader(reader: Mapping[str, JsonValue]) -> str:
    if ensemble := _of(reader, "ensemble"):
        temperature = "" if ensemble["temperature"] == 1 else f", temperature {ensemble['temperature']:g}"
        return f"ensemble of {ensemble['documents']}, {ensemble['weights']} weights{temperature}"
    if joined := _of(reader, "concatenation"):
        return f"{joined['documents']} passages in one context"
    chosen = _of(reader, "rerank")
    if not chosen:
        return "no passage"
    if chosen["method"] == "none":
        return "the first passage"
    return f"the best of {chosen['candidates']} passages ({chosen['method']})"


def _of(config: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    """A part of a configuration; empty where the run had no use for it."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def _perplexity(log_probs_T: FloatArray) -> float:
    return float(np.exp(-log_probs_T.mean(dtype=np.float64))) if len(log_probs_T) else float("nan")


def _number(value: JsonValue) -> float:
    """A measure; not a number where it was none, which a run has as null."""
    return float(value) if isinstance(value, (int, float)) else float("nan")
