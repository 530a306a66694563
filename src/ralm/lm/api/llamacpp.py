"""llama.cpp's own /completion: it names tokens by id, and a bias chooses any token and leaves its log-probability.

The server ignores `echo`, so the tokens of a prompt are scored one by one; it caches the shared prefix. It returns
nothing for a token that ends inside a character. Where one may follow, a bias makes it write another token, and the
list of the most likely tokens, which the bias does not change, has the needed values.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.lm.api.answers import END_PREDICTION, Prediction, answer_field, parsing, unexpected
from ralm.lm.api.backend import Backend
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import IntArray

_BIAS: Final = 1000
"""A bias that makes any token the greedy one."""


class LlamaCppCompletion(Backend):
    """POST /completion of a llama.cpp server, at its root."""

    name = server = "llama.cpp"
    text_path = ("content",)
    count_path = ("tokens_evaluated",)
    max_chosen = 1

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Return the request, for one token with a bias, so that the server lists the most likely ones."""
        if max_tokens == 1:
            return _request(text, 1, n_probs=self.top_logprobs, logit_bias=[[self._ordinary, _BIAS]])
        return _request(text, max_tokens, n_probs=self.top_logprobs, return_tokens=True)

    @parsing
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:
        """Return one prediction for each generated token, up to one that ends inside a character."""
        if max_tokens == 1:
            row = answer_field(answer, "completion_probabilities", 0)
            first = answer_field(row, "top_logprobs", 0)  # the greedy token, which the bias replaced
            return [self._prediction(first, row)]
        rows: Any = answer.get("completion_probabilities") or []
        tokens = answer_field(answer, "tokens")
        predictions: list[Prediction] = []
        for token, row in zip(tokens, rows, strict=False):
            if answer_field(row, "id") != token:
                return predictions
            predictions.append(self._prediction(row, row))
        ended = answer.get("stop_type") == "eos" and len(rows) == len(tokens)
        return [*predictions, END_PREDICTION] if ended and len(predictions) < max_tokens else predictions

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """Return the request for a token that a bias makes greedy, or for all if it ends inside a character."""
        [token] = tokens
        if self._is_part(token):
            return _request(text, 1, n_probs=self.names.size, logit_bias=[[self._ordinary, _BIAS]])
        return _request(text, 1, n_probs=1, logit_bias=[[token, _BIAS]])

    @parsing
    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of a token, alone or among all."""
        [token] = tokens
        row = answer_field(answer, "completion_probabilities", 0)
        rows = answer_field(row, "top_logprobs") if self._is_part(token) else [row]
        entry = next((listed for listed in rows if answer_field(listed, "id") == token), None)
        if entry is None:
            raise unexpected(f"the server returns token {row['id']} where {token} was chosen: it ignores `logit_bias`")
        return [self.log_prob(answer_field(entry, "logprob"))]

    @property
    def _ordinary(self) -> int:
        """A token that is not part of a character."""
        return int(self.tokenizer.encode("a")[-1])

    def _is_part(self, token: int) -> bool:
        """Return whether a token ends inside a character."""
        return "\N{REPLACEMENT CHARACTER}" in self.tokenizer.decode(np.array([token], dtype=np.int64))

    def _prediction(self, token: Mapping[str, Any], row: Mapping[str, Any]) -> Prediction:
        (number, value), *listed = (
            (int(answer_field(entry, "id")), answer_field(entry, "logprob"))
            for entry in (token, *answer_field(row, "top_logprobs"))
        )
        return self.prediction(number, value, listed)


def _request(text: IntArray, max_tokens: int, **more: JsonValue) -> ApiRequest:
    body = {"prompt": text.tolist(), "n_predict": max_tokens, "temperature": 0, "cache_prompt": True, **more}
    return ApiRequest("//completion", body, len(text), max_tokens)
