"""vLLM's /completions: it names tokens by id, and returns the log-probabilities of prompts and of chosen ids."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from ralm.lm.api.answers import Prediction, answer_field, expect_length, parse_log_probs, parsing, unexpected
from ralm.lm.api.backends import ServerKind, openai
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import DoubleArray, IntArray


class _VllmCompletions(openai.Completions):
    name = "vllm"
    server = "vLLM"
    scores_prompts = True
    max_chosen = 128

    def prompt_request(self, tokens: IntArray) -> ApiRequest:
        """Return the prompt with `prompt_logprobs`; vLLM generates at least one token."""
        return self._request(tokens, 1, {"logprobs": self.top_logprobs, "prompt_logprobs": self.top_logprobs})

    @parsing
    def prompt_predictions(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        rows, log_probs = _prompt_log_probs(answer, tokens)
        prompt = [
            self.prediction(
                int(tokens[at + 1]),
                float(log_probs[at]),
                [(int(number), answer_field(entry, "logprob")) for number, entry in rows[at].items()],
            )
            for at in range(begin - 1, len(rows))
        ]
        return prompt + self._predictions(answer_field(answer, "choices", 0), ())

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        """Return the prompt without the most likely tokens, which would take most of the time to parse."""
        return self._request(tokens, 1, {"prompt_logprobs": 0})

    @parsing
    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        _, log_probs = _prompt_log_probs(answer, tokens)
        scored: list[float] = log_probs[positions - 1].tolist()
        return scored

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        return self._request(text, 1, {"logprobs": 0, "logprob_token_ids": [*tokens]})

    @parsing
    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        listed = answer_field(answer, "choices", 0, "logprobs", "top_logprobs", 0)
        return [self.log_prob(answer_field(listed, f"token_id:{token}")) for token in tokens]

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        ids: dict[str, JsonValue] = {"return_tokens_as_token_ids": True, "add_special_tokens": False}
        return super()._request(tokens, max_tokens, {**more, **ids})


def _prompt_log_probs(answer: JsonObject, tokens: IntArray) -> tuple[Sequence[Mapping[str, Any]], DoubleArray]:
    """Return rows and log-probabilities (float64) of a prompt's tokens but the first; ServerError for others."""
    rows = answer_field(answer, "choices", 0, "prompt_logprobs")
    expect_length(rows, len(tokens), "tokens of a prompt")
    try:
        values = [listed[str(token)]["logprob"] for token, listed in zip(tokens[1:].tolist(), rows[1:], strict=True)]
    except KeyError as error:
        raise unexpected(f"the server returns no log-probability for token {error}: it read other tokens") from None
    return rows[1:], parse_log_probs(values, "vLLM")


VLLM: Final = ServerKind(backends=(_VllmCompletions,), owner="vllm")
