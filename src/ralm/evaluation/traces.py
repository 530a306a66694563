"""A text whose every token knows which passages it came from: what reports show of evaluated and generated texts.

Knows tokens as text, their log-probabilities with and without documents, and the passages behind them; knows nothing of
models, files or how it is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.reading.provenance import Contribution, DoubleArray, Gain, contributions, gains, total_gain
from ralm.records import NO_PASSAGE, FloatArray, Passage, Passages, Provenance

TOP_PASSAGES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedText:
    """T tokens as they stand in the text, each with what it was read with.

    `before` is the text before the first token; for a generated text, the prompt. `texts` is what each token adds:
    `before` and all of them joined are the text. `log_probs_T` (float32) are natural log-probabilities with documents
    and `baseline_T` (float32) without; `passages` holds, by number, those that `provenance` names.
    """

    before: str
    texts: Sequence[str]
    log_probs_T: FloatArray
    baseline_T: FloatArray
    provenance: Provenance
    passages: Mapping[int, Passage]

    def __post_init__(self) -> None:
        assert len(self.texts) == len(self.log_probs_T) == len(self.baseline_T) == len(self.provenance.passages_TK)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def gain_T(self) -> DoubleArray:
        """What documents were worth to each token (float64), in nats."""
        return gains(self.log_probs_T, self.baseline_T)

    @property
    def gain(self) -> Gain:
        """What documents were worth to all of it."""
        return total_gain(self.provenance, self.gain_T)

    @property
    def contributions(self) -> list[Contribution]:
        """What each passage was worth, the best first."""
        return contributions(self.provenance, self.gain_T)


def used_passages(provenance: Provenance, passages: Passages) -> dict[int, Passage]:
    """The passages that were read, by number, in the order of their numbers."""
    numbers = np.unique(provenance.passages_TK).tolist()
    return {number: passages[number] for number in numbers if number != NO_PASSAGE}


def gain_as_json(traced: TracedText, top: int = TOP_PASSAGES) -> dict[str, JsonValue]:
    """The gain of a text in nats, in all and a token, and the passages that contributed most."""
    best = traced.contributions[:top]
    return {**total_as_json(traced.gain), "passages": [contribution_as_json(row, traced.passages) for row in best]}


def total_as_json(gain: Gain) -> dict[str, JsonValue]:
    """A gain by the names of its fields."""
    fields = asdict(gain)
    return {"nats": fields.pop("nats"), "per_token": gain.per_token, **fields}


def contribution_as_json(row: Contribution, passages: Mapping[int, Passage]) -> dict[str, JsonValue]:
    """A passage by its number, document and title, and what it was worth."""
    passage = passages[row.passage]
    named: dict[str, JsonValue] = {"passage": row.passage, "document_id": passage.document_id, "title": passage.title}
    return {**named, "gain": row.gain, "tokens": row.tokens, "helped": row.helped, "hurt": row.hurt}
