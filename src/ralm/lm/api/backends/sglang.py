"""SGLang's own /generate: it names tokens by id, and returns the log-probabilities of prompts and of chosen ids."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import JsonValue

from ralm.lm.api.answers import Prediction, answer_field, expect_length, parse_log_probs, parsing, unexpected
from ralm.lm.api.backends import Backend, ServerKind
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import IntArray


class _Generate(Backend):
    name = "sglang"
    server = "SGLang"
    text_path = ("text",)
    count_path = ("meta_info", "prompt_tokens")
    scores_prompts = True
    max_chosen = 128

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        return _request(text, max_tokens, logprob_start_len=-1, top_logprobs_num=self.top_logprobs)

    @parsing
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:  # noqa: ARG002
        """Return one prediction for each generated token, the end of the text included."""
        return self._predictions(answer, "output", 0)

    def prompt_request(self, tokens: IntArray) -> ApiRequest:
        return _request(tokens, 1, logprob_start_len=0, top_logprobs_num=self.top_logprobs)

    @parsing
    def prompt_predictions(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        _prompt_rows(answer, tokens)
        return self._predictions(answer, "input", 1)[begin - 1 :] + self._predictions(answer, "output", 0)

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        return _request(tokens, 1, logprob_start_len=0, top_logprobs_num=0)

    @parsing
    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        values = [value for value, *_ in _prompt_rows(answer, tokens)]
        scored: list[float] = parse_log_probs(values[1:], self.server)[positions - 1].tolist()
        return scored

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        return _request(text, 1, logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=[*tokens])

    @parsing
    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        rows = answer_field(answer, "meta_info", "output_token_ids_logprobs", 0)
        values = {int(number): value for value, number, *_ in rows}
        return [self.log_prob(answer_field(values, token)) for token in tokens]

    def _predictions(self, answer: JsonObject, where: str, first: int) -> list[Prediction]:
        """Return the predictions of the prompt (`input`) or the generated tokens (`output`), from `first` on."""
        rows = answer_field(answer, "meta_info", f"{where}_token_logprobs")
        top = answer_field(answer, "meta_info", f"{where}_top_logprobs")
        expect_length(top, len(rows), "tokens")
        return [
            self.prediction(int(token), value, [(int(number), other) for other, number, *_ in listed or []])
            for (value, token, *_), listed in zip(rows[first:], top[first:], strict=True)
        ]


def _request(text: IntArray, max_tokens: int, **more: JsonValue) -> ApiRequest:
    sampling: JsonValue = {"max_new_tokens": max_tokens, "temperature": 0}
    body = {"input_ids": text.tolist(), "sampling_params": sampling, "return_logprob": True, **more}
    return ApiRequest("//generate", body, len(text), max_tokens)


def _prompt_rows(answer: JsonObject, tokens: IntArray) -> Sequence[Sequence[Any]]:
    """Return a log-probability, an id and more for each token of a prompt; ServerError for other tokens."""
    rows: Sequence[Sequence[Any]] = answer_field(answer, "meta_info", "input_token_logprobs")
    expect_length(rows, len(tokens), "tokens of a prompt")
    if [token for _, token, *_ in rows] != tokens.tolist():
        raise unexpected("the server returns log-probabilities of other tokens than those of a prompt")
    return rows


SGLANG: Final = ServerKind(backends=(_Generate,), own_path="//get_model_info")
