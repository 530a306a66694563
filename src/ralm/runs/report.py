"""A report of the gain from retrieval for the text of a run, or for a generated text, as data.

Knows a traced text and the header of its report; knows nothing of pages or terminals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.reading.provenance import Contribution, TracedText, contribution_as_json, total_as_json
from ralm.records import NO_PASSAGE, FloatArray
from ralm.runs.run import Run
from ralm.runs.settings import number_of, part_of, settings_of

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
