"""A report of the gain from retrieval for the text of a run, or for a generated text, as data.

Knows a traced text and the header of its report; knows nothing of pages or terminals.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.reading.provenance import Contribution, TracedText, contribution_as_json
from ralm.records import NO_PASSAGE, FloatArray
from ralm.runs.run import Run, to_json
from ralm.terminal import one_line

_DECIMALS: Final = 4
_TITLE: Final = 60
_LISTED: Final = 200
"""How many of the most helpful passages, and of the most harmful, a report holds besides those of the shown tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """A traced text and the header of its report.

    `settings` says how it was read, by label. The perplexities are per token, with documents and without.
    `shown_tokens` is how many tokens are shown, from the beginning of the text. Gains are those of the whole text. The
    report holds the passages of the shown tokens and those that helped or hurt most.
    """

    title: str
    settings: Mapping[str, str]
    perplexity: float
    baseline_perplexity: float
    text: TracedText
    shown_tokens: int

    def as_json(self) -> dict[str, JsonValue]:
        """Everything that the page shows; log-probabilities, gains and posteriors are rounded to four decimals."""
        rows = self.text.contributions
        listed = self._listed(rows)
        return {
            "title": self.title,
            "settings": dict(self.settings),
            "perplexity": self.perplexity,
            "baseline_perplexity": self.baseline_perplexity,
            "gain": self.text.gain.as_dict(),
            "text_before": self.text.before,
            "text": [_token(self.text, place) for place in range(self.shown_tokens)],
            "passages": [
                {**contribution_as_json(row, self.text.passages), "text": self.text.passages[row.passage].text}
                for row in listed
            ],
            "other_passages": {
                "count": len(rows) - len(listed),
                "gain": sum(row.gain for row in rows) - sum(row.gain for row in listed),
            },
        }

    def _listed(self, rows: Sequence[Contribution]) -> list[Contribution]:
        """The passages that are shown, in the order of `rows`: largest gain first."""
        if self.shown_tokens == len(self.text):
            return list(rows)
        of_tokens = set(self.text.provenance.passages_TK[: self.shown_tokens].ravel().tolist())
        first, last = _LISTED, len(rows) - _LISTED
        return [row for place, row in enumerate(rows) if place < first or place >= last or row.passage in of_tokens]


def report_of(run: Run, tokens: int) -> Report:
    """The report of a run, which shows the first `tokens` tokens of its text."""
    config = part_of(run.summary, "config")
    return Report(
        title=Path(str(part_of(config, "text").get("path") or run.path)).name,
        settings=settings_of(config),
        perplexity=number_of(run.summary.get("token_perplexity")),
        baseline_perplexity=number_of(part_of(run.summary, "baseline").get("token_perplexity")),
        text=run.text,
        shown_tokens=min(tokens, len(run.text)),
    )


def report_of_generation(text: TracedText, config: Mapping[str, JsonValue]) -> Report:
    """The report of a generated text; `config` is like that of a run, with the parts that generation has."""
    return Report(
        title=" ".join(text.before.split())[:_TITLE],
        settings=settings_of(config),
        perplexity=_perplexity(text.log_probs_T),
        baseline_perplexity=_perplexity(text.baseline_T),
        text=text,
        shown_tokens=len(text),
    )


def _token(text: TracedText, place: int) -> dict[str, JsonValue]:
    """One token, with the column names of a run, and the passages it was read with."""
    provenance = text.provenance
    pairs = zip(provenance.passages_TK[place].tolist(), provenance.posteriors_TK[place].tolist(), strict=True)
    read = [(passage, posterior) for passage, posterior in pairs if passage != NO_PASSAGE]
    log_prob, baseline = float(text.log_probs_T[place]), float(text.baseline_T[place])
    return {
        "text": text.texts[place],
        "log_prob": round(log_prob, _DECIMALS),
        "baseline_log_prob": round(baseline, _DECIMALS),
        "gain": round(log_prob - baseline, _DECIMALS),
        "passages": [passage for passage, _ in read],
        "posteriors": [round(posterior, _DECIMALS) for _, posterior in read],
    }


def _perplexity(log_probs_T: FloatArray) -> float:
    return float(np.exp(-log_probs_T.mean(dtype=np.float64))) if len(log_probs_T) else float("nan")


JOINED: Final = "all of a token's gain counts for the first passage of its context"
"""What reports say about attribution if several passages were read in one context."""


def settings_of(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """How a text was read, in a few words for each label, from the configuration of its run.

    Runs written by other programs may lack some of it; missing parts are left out.
    """
    plan, reader, model = part_of(config, "plan"), part_of(config, "reader"), part_of(config, "model")
    known = {
        "model": model.get("name"),
        "passages": _passage_source(config["passages"]) if "passages" in config else None,
        "reader": _reader(config["reader"], config.get("reranker")) if "reader" in config else None,
        "stride": plan.get("stride"),
        "windows": ", ".join(_windows(plan)) or None,
        "attribution": JOINED if _reader_name(reader) == "concatenation" else None,
    }
    return {label: str(value) for label, value in known.items() if value is not None}


def _windows(plan: Mapping[str, JsonValue]) -> list[str]:
    semantics = [f"{plan['semantics']} semantics"] if "semantics" in plan else []
    return [str(plan["windows"]), *semantics] if "windows" in plan else []


def _passage_source(source: JsonValue) -> str:
    if not isinstance(source, dict):
        return "none"
    if "retrieved" in source:
        return str(source["retrieved"])
    return f"{source.get('retriever', 'retrieved')} from {source['index']}" if "index" in source else "retrieved"


def _reader_name(reader: Mapping[str, JsonValue]) -> str | None:
    """The name of the reader in a configuration; earlier versions stored it as the only key, with the options below."""
    if "reader" in reader:
        return str(reader["reader"])
    return next((key for key, options in reader.items() if isinstance(options, dict)), None)


def _reader(reader: JsonValue, reranker: JsonValue) -> str | None:
    if reader is None:
        return "no passage"
    if not isinstance(reader, dict):
        return None
    name = _reader_name(reader)
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


_MARK: Final = re.compile(r"\{\{(?:title|style|script|tokens\.css|tokens\.js|data)\}\}")


def report_page(report: Report) -> str:
    """The report of a run as one HTML page."""
    return page("ralm.runs", "report.html", report.title, report.as_json())


def page(package: str, template: str, title: str, data: JsonValue) -> str:
    """A template of a package with its title, the data, and what pages share filled in."""
    parts = {
        "{{title}}": html.escape(one_line(title)),
        "{{style}}": _text("ralm.runs", "page.css"),
        "{{script}}": _text("ralm.runs", "page.js"),
        "{{tokens.css}}": _text("ralm.runs", "tokens.css"),
        "{{tokens.js}}": _text("ralm.runs", "tokens.js"),
        "{{data}}": to_json(data).replace("<", "\\u003c"),
    }
    # in one pass: the data may contain a mark
    return _MARK.sub(lambda mark: parts[mark[0]], _text(package, template))


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
