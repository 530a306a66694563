"""The report of the gain from retrieval for the text of a run or a generated text, as data and as an HTML page.

A page is a template with the data, with the style and functions that all pages share (page.css and page.js beside this
file), and with files that stand beside the template. It loads nothing, and text in it is never markup.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib.resources import files
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.reading.provenance import Contribution, TracedText, contribution_as_json, passage_as_json
from ralm.records import NO_PASSAGE, FloatArray
from ralm.terminal import one_line, to_json

_DECIMALS: Final = 4
_TITLE: Final = 60
_LISTED: Final = 200
"""Number of the most helpful passages, and of the most harmful, in a report besides those of the shown tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """A traced text of which `shown_tokens` (None: all) are shown with their passages.

    `config` has the parts of the configuration of a run. Without a title it is the beginning of the text, and without
    `perplexities`, with passages and without, they are those of all tokens.
    """

    text: TracedText
    title: str = ""
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    perplexities: tuple[float, float] | None = None
    shown_tokens: int | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the data of the page; log-probabilities, gains and posteriors have four decimals."""
        rows = self.text.contributions
        shown = min(self.shown_tokens or len(self.text), len(self.text))
        listed = self._listed(rows, shown)
        perplexity, baseline = self.perplexities or map(_perplexity, (self.text.log_probs_T, self.text.baseline_T))
        return {
            "title": self.title or " ".join((self.text.before or "".join(self.text.texts)).split())[:_TITLE],
            "settings": {**describe_settings(self.config)},
            "perplexity": perplexity,
            "baseline_perplexity": baseline,
            "gain": self.text.gain.as_dict(),
            "text_before": self.text.before,
            "text": [_token(self.text, place) for place in range(shown)],
            "passages": [
                {**contribution_as_json(row, self.text.passages), "text": self.text.passages[row.passage].text}
                for row in listed
            ],
            "without_shares": [
                {**passage_as_json(passage), "text": passage.text}
                for number, passage in self.text.passages.items()
                if number in self.text.provenance.passages_TK[~self.text.provenance.shared_T]
            ],
            "other_passages": {
                "count": len(rows) - len(listed),
                "gain": sum(row.gain for row in rows) - sum(row.gain for row in listed),
            },
        }

    def _listed(self, rows: Sequence[Contribution], shown: int) -> list[Contribution]:
        """Return the most helpful and the most harmful passages, and those of the shown tokens."""
        of_tokens = set(self.text.provenance.passages_TK[:shown].ravel().tolist())
        first, last = _LISTED, len(rows) - _LISTED
        if shown == len(self.text):
            return [*rows]
        return [row for place, row in enumerate(rows) if place < first or place >= last or row.passage in of_tokens]


def _token(text: TracedText, place: int) -> dict[str, JsonValue]:
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
        "posteriors": [round(posterior, _DECIMALS) if provenance.shared_T[place] else None for _, posterior in read],
    }


def _perplexity(log_probs_T: FloatArray) -> float:
    return float(np.exp(-log_probs_T.mean(dtype=np.float64))) if len(log_probs_T) else float("nan")


_SETTINGS: Final = {
    "model": "model.name",
    "prompt": "prompt.name",
    "new tokens": "options.new_tokens",
    "index": "passages.index",
    "passages": "passages.retrieved",
    "retriever": "passages.retriever",
    "reranker": "reranker.reranker",
    "candidates": "reranker.candidates",
    "reader": "reader.reader",
    "documents": "reader.documents",
    "mixer": "reader.mixer.mixer",
    "temperature": "reader.temperature",
    "stride": "plan.stride",
    "windows": "plan.windows",
    "semantics": "plan.semantics",
}
"""The settings that a report shows, by label: their places in a configuration."""


def describe_settings(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the settings of a run by label, without missing ones."""
    shown = {}
    for label, place in _SETTINGS.items():
        *parts, name = place.split(".")
        value = reduce(config_part, parts, config).get(name)
        if isinstance(value, str | int | float):
            shown[label] = str(value)
    return shown


def config_part(config: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    """Return a part of a configuration; empty if it is missing or null."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def to_float(value: JsonValue) -> float:
    """Return the value of a measure; NaN for null."""
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("inf")


_MARK: Final = re.compile(r"\{\{(title|style|script|data|\w+\.css|\w+\.js)\}\}")


def render_report(report: Report) -> str:
    """Return a report as one HTML page."""
    data = report.as_json()
    return render_page("ralm.evaluation", "report.html", f"{data['title']} · ralm report", data)


def as_frame(page: str) -> str:
    """Return a page as HTML that a notebook shows in a cell."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:36em;border:0"></iframe>'


def render_page(package: str, template: str, title: str, data: JsonValue) -> str:
    """Fill in a template of a package with title, data, shared parts, and the styles and scripts beside it."""
    parts = {
        "{{title}}": html.escape(one_line(title)),
        "{{style}}": _text("ralm.evaluation", "page.css"),
        "{{script}}": _text("ralm.evaluation", "page.js"),
        "{{data}}": to_json(data).replace("<", "\\u003c"),
    }

    # in one pass after the head, since the data may contain a mark
    def part(mark: re.Match[str]) -> str:
        return parts[mark[0]] if mark[0] in parts else _text(package, mark[1])

    whole = _text(package, template).replace("{{head}}\n", _text("ralm.evaluation", "head.html"))
    return _MARK.sub(part, whole)


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
