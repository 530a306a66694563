"""Passages, and tokens with the passages that they came from, as JSON.

Knows records; knows nothing of HTTP or of who asked.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.reading.pieces import GeneratedToken
from ralm.reading.provenance import TracedText, contributions, identified, token_as_json, total_as_json, total_gain
from ralm.records import NO_PASSAGE, DoubleArray, Passage, Passages, Provenance
from ralm.serving.names import NamesByToken
from ralm.serving.scoring import ScoredToken

LEAST: Final = -9999.0
"""What OpenAI's API gives for the log-probability of an impossible token; JSON has no infinity."""
Json: TypeAlias = dict[str, JsonValue]
Token: TypeAlias = ScoredToken | GeneratedToken


class PassagesTold:
    """Tells tokens with their passages, and remembers which passages these were, in the order of the text."""

    def __init__(self, passages: Passages, names: NamesByToken, *, as_ids: bool = False) -> None:
        self.known: dict[int, Passage] = {}
        self._passages = passages
        self._names = names
        self._as_ids = as_ids

    def tokens(self, tokens: Sequence[Token]) -> list[JsonValue]:
        """Tokens with the passages that each came from."""
        return [self._token(one) for one in tokens]

    def _token(self, token: Token) -> Json:
        self.note(token.passages_K.tolist())
        name, log_prob = self._names.of(token.token, as_id=self._as_ids), log_prob_told(token.log_prob)
        told = token_as_json(token.token, name, log_prob, token.passages_K, token.posteriors_K)
        if isinstance(token, ScoredToken) and token.gain is not None:
            told["gain"] = finite(token.gain)
        if isinstance(token, GeneratedToken) and not token.certified:
            told |= {"certified": False, "unlisted": finite(token.unlisted)}
        return told

    def note(self, numbers: Sequence[int]) -> None:
        """Remember passages by their numbers."""
        for number in numbers:
            if number != NO_PASSAGE and number not in self.known:
                self.known[number] = self._passages[number]

    def piece(self, choice: int, tokens: Sequence[Token]) -> Json:
        """Some tokens of a choice, and the passages of which no piece has told yet."""
        before = len(self.known)
        told = self.tokens(tokens)
        new = [passage_told(one) for one in [*self.known.values()][before:]]
        return {"choices": [{"index": choice, "tokens": told}], "passages": [*new]}


def passage_told(passage: Passage) -> Json:
    """A passage with all that is known of it."""
    return {**identified(passage), "text": passage.text}


def result_told(passage: Passage, url: JsonValue) -> Json:
    """A passage as answers of search engines have it."""
    return {
        "title": passage.title or passage.document_id,
        "url": url,
        "date": passage.metadata.get("date"),
        "snippet": passage.text,
        "passage": passage.number,
        "document_id": passage.document_id,
    }


def gain_told(provenance: Provenance, gain_T: DoubleArray) -> Json:
    """The gain of each token and of all, in nats, and what each passage contributed; null for a gain that is not known
    or infinite."""
    bounded_T = np.nan_to_num(gain_T, nan=0.0, posinf=-LEAST, neginf=LEAST)
    total = total_as_json(total_gain(provenance, bounded_T))
    return {
        "gains": [*map(finite, gain_T.tolist())],
        "gain": {name: finite(one) if isinstance(one, float) else one for name, one in total.items()},
        "contributions": [asdict(one) for one in contributions(provenance, bounded_T)],
    }


def traced_told(text: TracedText) -> Json:
    """The gain of a text with its passages; nothing if none of it is known."""
    return {} if np.isnan(text.gain_T).all() else gain_told(text.provenance, text.gain_T)


def log_prob_told(log_prob: float | None) -> float | None:
    """A log-probability as JSON can hold it; None where the model does not tell it."""
    if log_prob is None or np.isnan(log_prob):
        return None
    return max(log_prob, LEAST)


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; None for another one."""
    return value if value is not None and np.isfinite(value) else None
