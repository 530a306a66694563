"""Text Generation Inference's own /generate: it takes text, and scores prompts if it was started to do so.

It puts a BOS before a text if the model's tokenizer does. For the tokens of a prompt it lists no alternatives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from ralm.lm.api.backends import (
    Backend,
    ModelList,
    ServerKind,
    answer_field,
    expect_length,
    get_or_empty,
    parsing,
    token_and_log_prob,
    unexpected,
    wrong_model,
)
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import Prediction, build_prediction
from ralm.lm.api.transport import ApiRequest, JsonObject
from ralm.records import IntArray

_ANY_MODEL: Final = "tgi"
"""A name for the only model of a TGI server, whatever it is."""


class _TopTokens(Backend):
    """POST /generate of a server that lists the most likely new tokens and scores no prompts."""

    name = "tgi top tokens"
    text_path = ("generated_text",)
    takes_text = True

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        return self._request(text, max_tokens, {})

    @parsing
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:  # noqa: ARG002
        """One prediction for each generated token, the end of the text included."""
        own, top = answer_field(answer, "details", "tokens"), answer_field(answer, "details", "top_tokens")
        expect_length(top, len(own), "tokens")
        return [_prediction(one, listed, self.top_logprobs) for one, listed in zip(own, top, strict=True)]

    def token_count_request(self, text: IntArray) -> ApiRequest:
        """/tokenize, which costs nothing; /generate reports no count."""
        return ApiRequest("//tokenize", {"inputs": self.encode(text)}, 0)

    def prompt_token_count(self, answer: JsonObject) -> int | None:
        tokens = answer.get("data")
        return len(tokens) if isinstance(tokens, list) else None

    def _request(self, text: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        parameters = {"max_new_tokens": max_tokens, "details": True, "top_n_tokens": self.top_logprobs, **more}
        body: dict[str, JsonValue] = {"inputs": self.encode(text), "parameters": parameters}
        return ApiRequest("//generate", body, len(text), max_tokens)


class _Prompts(_TopTokens):
    """The same for a server that was started with --enable-prefill-logprobs, or is older than version 3."""

    name = "tgi"
    scores_prompts = True
    lists_prompt_tokens = False

    def prompt_request(self, tokens: IntArray) -> ApiRequest:
        return self._request(tokens, 1, {"decoder_input_details": True})

    @parsing
    def prompt_predictions(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        prefill = answer_field(answer, "details", "prefill")
        if not prefill:
            raise unexpected("the server does not score prompts: it was started without --enable-prefill-logprobs")
        expect_length(prefill, len(tokens), "tokens of a prompt")
        for one, token in zip(prefill, tokens.tolist(), strict=True):
            if answer_field(one, "id") != token:
                raise unexpected(
                    f"the server reads token {one['id']} where a prompt has token {token}: it splits the text into "
                    "other tokens"
                )
        return [*(_prediction(one, (), 0) for one in prefill[1:]), *self.generated(answer, 1)][begin - 1 :]


def _prediction(one: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], requested: int) -> Prediction:
    tokens = [token_and_log_prob(other, "TGI") for other in listed]
    return build_prediction(*token_and_log_prob(one, "TGI"), tokens, requested)


def _find(client: Client, _: ModelList) -> JsonObject | None:
    info = get_or_empty(client, "//info")
    if "max_total_tokens" not in info:
        return None
    if client.endpoint.model not in (info.get("model_id"), _ANY_MODEL):
        raise wrong_model(client, [str(info.get("model_id"))])
    prompt = info.get("max_input_tokens")
    lengths = [info["max_total_tokens"], prompt + 1 if isinstance(prompt, int) else None]
    return {**info, "max_model_len": min((one for one in lengths if isinstance(one, int)), default=None)}


TGI: Final = ServerKind((_Prompts, _TopTokens), _find)
