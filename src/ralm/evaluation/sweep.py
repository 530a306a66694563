"""A sweep: one text evaluated with several values of one option, sharing as much work as possible.

Every point is an evaluation with its no-retrieval baseline, and equals the result of `evaluate_text`. The points share
a model that caches what it scored, and retrievers that cache what they found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.evaluation.perplexity import Evaluation, change_of, evaluate_text
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading import sources
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions

PANELS: Final = {
    "token perplexity": {"token_perplexity": "with passages", "none_token_perplexity": "no retrieval"},
    "change of token perplexity": {"change": "from no retrieval"},
}
"""What the plot shows: columns of the rows with their labels, by the label of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """A value of the swept option, and the settings of its evaluation."""

    value: str
    plan: PlanOptions
    source: sources.PassageSource | None
    parts: Parts


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """An evaluation for each value of an option, and how many requests, scored requests and retrievals they took."""

    option: str
    evaluations: dict[str, Evaluation]
    requests: int
    scored: int
    retrievals: int

    def rows(self) -> list[dict[str, JsonValue]]:
        """Return a row per value: the measures, those without retrieval as `none_...`, and the relative change of token
        perplexity from these (`change`) and from the first value (`change_from_first`), with the ends of its paired
        95% interval (`_low`, `_high`; None for a short text)."""
        first = next(iter(self.evaluations.values())).reading
        rows = []
        for value, evaluation in self.evaluations.items():
            assert evaluation.baseline is not None
            reading, none = evaluation.reading, evaluation.baseline.measures
            row: dict[str, JsonValue] = {
                self.option: value,
                **reading.measures.as_dict(),
                "none_token_perplexity": none.token_perplexity,
                "none_word_perplexity": none.word_perplexity,
                "none_bits_per_byte": none.bits_per_byte,
                **evaluation.change.columns("change"),
            }
            same_targets = np.array_equal(reading.scored.positions_T, first.scored.positions_T)
            if reading is not first and same_targets:
                row |= change_of(reading, first).columns("change_from_first")
            rows.append(row)
        return rows

    def summary(self, configs: Sequence[dict[str, JsonValue]]) -> dict[str, JsonValue]:
        """The rows, each with its configuration, and the counts of requests, scored requests and retrievals."""
        return {
            "option": self.option,
            "points": [{**row, "config": config} for row, config in zip(self.rows(), configs, strict=True)],
            "requests": self.requests,
            "scored": self.scored,
            "retrievals": self.retrievals,
        }


def sweep(
    text: str | Sequence[str],
    model: LanguageModel,
    option: str,
    points: Sequence[SweepPoint],
    *,
    limit_tokens: int | None = None,
) -> Sweep:
    """Evaluate a text at every point, each with its baseline, sharing retrieval and forward passes between them.

    The ranking model of a point's reranker is shared if it is a `Scorer`. Raises UsageError if there are no points or
    two with the same value, and what `evaluate_text` raises.
    """
    values = [point.value for point in points]
    if not values or len(set(values)) < len(values):
        raise UsageError(f"`points` must have different values, at least one, not {', '.join(values)!r}.")
    scorer = Scorer.of(model)
    if scorer.bounds is not None:
        raise UsageError(
            f"{scorer.name} gives bounds of log-probabilities, which do not decide a gain: use `ralm eval`."
        )
    shared, retrievers = sources.share_retrievals(
        [point.source for point in points], [point.parts.hits for point in points]
    )
    how: Any = {"limit_tokens": limit_tokens, "baseline": True}
    evaluations = {
        point.value: evaluate_text(text, scorer, point.plan, source=source, parts=point.parts, **how)
        for point, source in zip(points, shared, strict=True)
    }
    models = [scorer, *(point.parts.ranking_model for point in points)]
    scorers = {id(one): one for one in models if isinstance(one, Scorer)}.values()
    return Sweep(
        option=option,
        evaluations=evaluations,
        requests=sum(one.asked for one in scorers),
        scored=sum(one.scored for one in scorers),
        retrievals=sum(retriever.retrievals for retriever in retrievers),
    )
