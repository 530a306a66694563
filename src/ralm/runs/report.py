"""A report of what retrieval was worth to a text: as data, and as a page that stands alone.

Knows a traced text and what to say above it; knows nothing of how it was read, of runs on disk or of terminals. The
page is report.html beside this file with the data put in: nothing in it is fetched, and nothing in the text is markup.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from pydantic import JsonValue

from ralm.controls import one_line
from ralm.evaluation.traces import TracedText, contribution_as_json, total_as_json
from ralm.reading.provenance import Contribution
from ralm.records import NO_PASSAGE
from ralm.runs.run import to_json

_TEMPLATE: Final = "report.html"
_MARK: Final = re.compile(r"\{\{(?:title|data)\}\}")
_DECIMALS: Final = 4
_LISTED: Final = 200
"""How many passages that helped most, and how many that hurt most, a report holds beside those of the tokens shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """A traced text and what stands above it.

    `settings` says how it was read, label by label; the perplexities are a token's, with documents and without.
    `shown_tokens` is how much of the text is shown, from its beginning. Gains are those of all of it; of its passages
    the report holds those of the tokens shown and those that gave or took most.
    """

    title: str
    settings: Mapping[str, str]
    perplexity: float
    baseline_perplexity: float
    text: TracedText
    shown_tokens: int

    def as_json(self) -> dict[str, JsonValue]:
        """Everything that the page shows; log-probabilities, gains and posteriors to four decimals."""
        rows = self.text.contributions
        listed = self._listed(rows)
        return {
            "title": self.title,
            "settings": dict(self.settings),
            "perplexity": self.perplexity,
            "baseline_perplexity": self.baseline_perplexity,
            "gain": total_as_json(self.text.gain),
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
        """The passages that are shown, in the order of `rows`, which is that of their gains."""
        if self.shown_tokens == len(self.text):
            return list(rows)
        of_tokens = set(self.text.provenance.passages_TK[: self.shown_tokens].ravel().tolist())
        first, last = _LISTED, len(rows) - _LISTED
        return [row for place, row in enumerate(rows) if place < first or place >= last or row.passage in of_tokens]


def report_page(report: Report) -> str:
    """The report as one HTML page."""
    page = files("ralm.runs").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    parts = {
        "{{title}}": html.escape(one_line(report.title)),
        "{{data}}": to_json(report.as_json()).replace("<", "\\u003c"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], page)  # in one go: a text may hold a mark itself


def _token(text: TracedText, place: int) -> dict[str, JsonValue]:
    """One token by the names of the columns of a run; its passages are those that were there to read."""
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
