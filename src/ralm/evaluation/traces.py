"""A text with the passages that each token came from: the data behind reports of evaluated and generated texts.

Knows tokens as text, their log-probabilities with and without documents, and their passages; knows nothing of models,
files or how reports look.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.reading.provenance import Contribution, Gain, contributions, gains, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray, Passage, Passages, Provenance

TOP_PASSAGES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedText:
    """T tokens in the order of the text, each with the passages it was read with.

    `before` is the text before the first token; for a generated text, the prompt. `texts` is what each token adds:
    joined after `before` they are the text. `log_probs_T` (float32) are natural log-probabilities with documents and
    `baseline_T` (float32) without. `passages` holds, by number, the passages that `provenance` names.
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
        """The gain of each token from documents (float64), in nats."""
        return gains(self.log_probs_T, self.baseline_T)

    @property
    def gain(self) -> Gain:
        """The gain of the whole text from documents."""
        return total_gain(self.provenance, self.gain_T)

    @property
    def contributions(self) -> list[Contribution]:
        """What each passage contributed, largest gain first."""
        return contributions(self.provenance, self.gain_T)


def used_passages(provenance: Provenance, passages: Passages) -> dict[int, Passage]:
    """The passages that were read, by number, in ascending order."""
    numbers = np.unique(provenance.passages_TK).tolist()
    return {number: passages[number] for number in numbers if number != NO_PASSAGE}


def gain_as_json(traced: TracedText, top: int = TOP_PASSAGES) -> dict[str, JsonValue]:
    """The gain of a text in nats, in total and per token, and the `top` passages that contributed most."""
    best = traced.contributions[:top]
    return {**total_as_json(traced.gain), "passages": [contribution_as_json(row, traced.passages) for row in best]}


def total_as_json(gain: Gain) -> dict[str, JsonValue]:
    """The fields of a gain by name."""
    fields = asdict(gain)
    return {"nats": fields.pop("nats"), "per_token": gain.per_token, **fields}


def contribution_as_json(row: Contribution, passages: Mapping[int, Passage]) -> dict[str, JsonValue]:
    """What identifies a passage, and what it contributed."""
    worth: dict[str, JsonValue] = {"gain": row.gain, "tokens": row.tokens, "helped": row.helped, "hurt": row.hurt}
    return {**identified(passages[row.passage]), **worth}


def token_as_json(
    token: int, text: str, log_prob: float | None, passages_K: IntArray, posteriors_K: FloatArray
) -> dict[str, JsonValue]:
    """A token with its log-probability, its passages, and the share of the probability from each."""
    return {
        "token": token,
        "text": text,
        "log_prob": log_prob,
        "passages": [None if number == NO_PASSAGE else number for number in passages_K.tolist()],
        "posteriors": posteriors_K.tolist(),
    }


def hits_as_json(hits: Iterable[tuple[Passage, float]]) -> list[JsonValue]:
    """Passages that were found, with their scores."""
    return [
        {
            "passage": passage.number,
            "score": round(score, 4),
            "document_id": passage.document_id,
            "title": passage.title,
            "text": passage.text,
            "metadata": dict(passage.metadata),
        }
        for passage, score in hits
    ]


def identified(passage: Passage) -> dict[str, JsonValue]:
    """A passage's number, document, title and metadata."""
    return {
        "passage": passage.number,
        "document_id": passage.document_id,
        "title": passage.title,
        "metadata": dict(passage.metadata),
    }
