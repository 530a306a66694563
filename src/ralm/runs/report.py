"""A report of what retrieval was worth to the text of a run, or to a generated text, as data.

Knows a traced text and what to say above it; knows nothing of pages or terminals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.evaluation.traces import TracedText, contribution_as_json, total_as_json
from ralm.reading.provenance import Contribution
from ralm.records import NO_PASSAGE, FloatArray
from ralm.runs.run import Run
from ralm.runs.settings import number_of, part_of, settings_of

_DECIMALS: Final = 4
_TITLE: Final = 60
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


def report_of(run: Run, tokens: int) -> Report:
    """The report of a run, of whose text the first `tokens` tokens are shown."""
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
    """The report of a generated text; `config` as that of a run, as far as generation knows it."""
    return Report(
        title=" ".join(text.before.split())[:_TITLE],
        settings=settings_of(config),
        perplexity=_perplexity(text.log_probs_T),
        baseline_perplexity=_perplexity(text.baseline_T),
        text=text,
        shown_tokens=len(text),
    )


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


def _perplexity(log_probs_T: FloatArray) -> float:
    return float(np.exp(-log_probs_T.mean(dtype=np.float64))) if len(log_probs_T) else float("nan")
