"""llama.cpp's own /completion: tokens by id, and any token can be chosen with a bias, which leaves its log-probability.

Its `echo` is ignored without a word, so the tokens of a prompt are asked for one by one; it reads what they share once.
It tells nothing of a token that ends inside a character. So where one may stand, a bias lets it write another token
instead, and the list of the likeliest tokens, which the bias leaves as it is, tells what is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import JsonValue

from ralm.lm.api.backends import Way, ended, odd, parses, part_of
from ralm.lm.api.predictions import Prediction, log_prob_of, prediction_of
from ralm.lm.api.transport import Asked, JsonObject
from ralm.protocols import Tokenizer
from ralm.records import IntArray

_NAME: Final = "llama.cpp"
_BIAS: Final = 1000
"""A bias that makes any token the greedy one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp(Way):
    """POST /completion of a llama.cpp server, at its root."""

    name: ClassVar[str] = _NAME
    chooses: ClassVar[int] = 1

    tokenizer: Tokenizer
    size: int

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy tokens with `n_probs`; of one token alone the likeliest are told, whatever it is."""
        if most == 1:
            return _asked(text, 1, {"n_probs": self.likeliest, "logit_bias": [[self._ordinary, _BIAS]]})
        return _asked(text, most, {"n_probs": self.likeliest, "return_tokens": True})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction for each token that was written, up to one that ends inside a character."""
        if most == 1:
            return [self._likeliest(part_of(answer, "completion_probabilities", 0))]
        rows: Any = answer.get("completion_probabilities") or []
        found: list[Prediction] = []
        for token, row in zip(part_of(answer, "tokens"), rows, strict=False):
            if part_of(row, "id") != token:
                return found
            found.append(self._prediction(int(token), log_prob_of(part_of(row, "logprob"), _NAME), row))
        ends = answer.get("stop_type") == "eos" and len(rows) == len(part_of(answer, "tokens"))
        return [*found, ended()] if ends and len(found) < most else found

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """`content`."""
        return str(part_of(answer, "content"))

    @parses
    def counted(self, answer: JsonObject) -> int | None:
        """`tokens_evaluated`."""
        counted = answer.get("tokens_evaluated")
        return counted if isinstance(counted, int) else None

    def choosing(self, text: IntArray, tokens: Sequence[int]) -> Asked:
        """One token, which a bias makes the greedy one; its log-probability is told without the bias."""
        [token] = tokens
        if self._is_part(token):
            return _asked(text, 1, {"n_probs": self.size, "logit_bias": [[self._ordinary, _BIAS]]})
        return _asked(text, 1, {"n_probs": 1, "logit_bias": [[token, _BIAS]]})

    @parses
    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """The log-probability of that token."""
        [token] = tokens
        row = part_of(answer, "completion_probabilities", 0)
        rows = part_of(row, "top_logprobs") if self._is_part(token) else [row]
        found = next((one for one in rows if part_of(one, "id") == token), None)
        if found is None:
            raise odd(f"the server writes token {row['id']} where {token} was chosen: it ignores `logit_bias`")
        return [log_prob_of(part_of(found, "logprob"), _NAME)]

    @property
    def _ordinary(self) -> int:
        """A token that is no part of a character."""
        return int(self.tokenizer.encode("a")[-1])

    def _is_part(self, token: int) -> bool:
        """Whether a token ends inside a character."""
        return "\N{REPLACEMENT CHARACTER}" in self.tokenizer.decode(np.array([token], dtype=np.int64))

    def _likeliest(self, row: Mapping[str, Any]) -> Prediction:
        """The prediction of a greedy token that was not written."""
        first = part_of(row, "top_logprobs", 0)
        return self._prediction(int(part_of(first, "id")), log_prob_of(part_of(first, "logprob"), _NAME), row)

    def _prediction(self, token: int, log_prob: float, row: Mapping[str, Any]) -> Prediction:
        listed = [
            (int(part_of(one, "id")), log_prob_of(part_of(one, "logprob"), _NAME))
            for one in part_of(row, "top_logprobs")
        ]
        return prediction_of(token, log_prob, listed, self.likeliest)


def _asked(text: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
    body: dict[str, JsonValue] = {
        "prompt": text.tolist(),
        "n_predict": most,
        "temperature": 0,
        "cache_prompt": True,
        **more,
    }
    return Asked("//completion", body, len(text), most)
