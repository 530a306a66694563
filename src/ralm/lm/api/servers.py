"""OpenAI's /completions and /chat/completions, which most servers offer, and what vLLM and llama.cpp have beside them.

Servers differ in what they return: `echo` gives the log-probabilities of the prompt (Together, Fireworks), vLLM names
tokens by id and scores chosen ones, and a chat takes the prompt as a message, which the server puts into its template.

A new API is a subclass of `Backend` here, and a line in `NATIVE_BACKENDS` if its server tells its kind, else in
`OPENAI_BACKENDS`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.lm.api.answers import (
    END_PREDICTION,
    Prediction,
    answer_field,
    expect_length,
    lone_prediction,
    parse_log_probs,
    parsing,
    unexpected,
)
from ralm.lm.api.backend import Backend
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import IntArray

_BIAS: Final = 1000
"""A bias that makes any token the greedy one."""
_Row: TypeAlias = tuple[object, object, Sequence[tuple[str, object]]]
"""The name of a token, its log-probability, and the most likely tokens at its position."""


class Completions(Backend):
    """/completions with the most likely tokens; if it is `text_only`, the server's text is tokenized again."""

    name = "completions"
    text_path: ClassVar[tuple[str | int, ...]] = ("choices", 0, "text")

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Return the request for greedy tokens, and the most likely ones if the server lists them."""
        listed: dict[str, JsonValue] = {"logprobs": self.top_logprobs}
        if not self.continues_own_text:
            listed = {"logprobs": True, "top_logprobs": self.top_logprobs}
        return self._request(text, max_tokens, {} if self.text_only else listed)

    @parsing
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:
        """Return one prediction for each generated token; without log-probabilities if the server returns only text."""
        choice = answer_field(answer, "choices", 0)
        reason = choice.get("finish_reason")
        if self.text_only:
            predictions = [lone_prediction(int(token)) for token in self._continuation(self.generated_text(answer))]
            predictions, ended = predictions[:max_tokens], reason != "length"
        else:
            predictions, ended = self._predictions(choice), reason == "stop"
        return [*predictions, END_PREDICTION] if ended and len(predictions) < max_tokens else predictions

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "prompt": self.encode(tokens),
            "max_tokens": max_tokens,
            "temperature": 0,
            **more,
        }
        return ApiRequest("/completions", body, len(tokens), max_tokens)

    def _predictions(self, choice: Mapping[str, Any]) -> list[Prediction]:
        """Return the predictions in `logprobs`, up to an ambiguous name; ServerError if that is the first."""
        predictions: list[Prediction] = []
        for name, value, listed in self._rows(choice):
            token = self.names.id_of(str(name))
            if token is None and not predictions:
                raise unexpected(
                    f"the server returns a token named {str(name)!r}, which is the text of several tokens or of none: "
                    "its tokenizer is another one, or this API does not fit it"
                )
            if token is None:
                break
            ids = [(token if text == name else self._whole_id(text), other) for text, other in listed]
            predictions.append(self.prediction(token, value, ids))
        return predictions

    def _whole_id(self, name: str) -> int | None:
        """Return the id of a listed token; None if its name is ambiguous."""
        # servers that take ids name parts of characters, as chats do; llama-cpp-python leaves them out of names
        names_parts = self.config.as_ids or not self.continues_own_text
        return self.names.id_of(name) if names_parts else self.names.unambiguous_id(name)

    def _rows(self, choice: Mapping[str, Any]) -> Sequence[_Row]:
        """Return the rows of `logprobs`, in the format of completions or of chats; without a first row of null."""
        logprobs = answer_field(choice, "logprobs")
        if logprobs is None:
            raise unexpected("the server returns no log-probabilities")
        if "content" in logprobs:
            rows = [
                (entry.get("token"), entry.get("logprob"), _pairs(entry.get("top_logprobs")))
                for entry in logprobs["content"]
            ]
        else:
            values = answer_field(logprobs, "token_logprobs")
            tops = logprobs.get("top_logprobs") or [None] * len(values)
            rows = list(zip(answer_field(logprobs, "tokens"), values, map(_pairs, tops), strict=True))
        return rows[1:] if rows and rows[0][1] is None else rows

    def _continuation(self, text: str) -> IntArray:
        """Return the tokens of a text that continues another, since some tokenizers put a space before a first one."""
        line, whole = self.tokenizer.encode("\n"), self.tokenizer.encode("\n" + text)
        return whole[len(line) :] if np.array_equal(whole[: len(line)], line) else self.tokenizer.encode(text)


class _EchoCompletions(Completions):
    """/completions with `echo`: the log-probabilities of a prompt, and a new token, since 0 may mean no limit."""

    name = "echo"
    scores_prompts = True

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        return self._request(tokens, 1, {"logprobs": self.top_logprobs, "echo": True})

    @parsing
    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        choice = answer_field(answer, "choices", 0)
        values = answer_field(choice, "logprobs", "token_logprobs")
        if choice.get("finish_reason") != "stop" or len(values) != len(tokens):
            expect_length(values, len(tokens) + 1, "tokens, those of a prompt and a new one")
        if values[0] is not None:
            raise unexpected("the server returns a log-probability for the first token of a prompt, which has none")
        for (name, *_), token in zip(self._rows(choice), tokens[1:].tolist(), strict=False):
            if self.names.id_of(str(name)) not in (None, token):
                raise unexpected(
                    f"the server reads {name!r} where a prompt has token {token}: it splits the text into other tokens"
                )
        log_probs: list[float] = parse_log_probs(values[1 : len(tokens)], self.server)[positions - 1].tolist()
        return log_probs


class VllmCompletions(Completions):
    """vLLM's /completions, which names tokens by id, and returns the log-probabilities of prompts and chosen ids."""

    name = "vllm"
    server = "vLLM"
    scores_prompts = True
    max_chosen = 128

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        """Return the prompt without the most likely tokens, which would take most of the time to parse."""
        return self._request(tokens, 1, {"prompt_logprobs": 0})

    @parsing
    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        """Return the log-probabilities of a prompt's tokens, which have rows by id."""
        rows = answer_field(answer, "choices", 0, "prompt_logprobs")
        expect_length(rows, len(tokens), "tokens of a prompt")
        try:
            values = [
                listed[str(token)]["logprob"] for token, listed in zip(tokens[1:].tolist(), rows[1:], strict=True)
            ]
        except KeyError as error:
            raise unexpected(f"the server returns no log-probability for token {error}: it read other tokens") from None
        log_probs: list[float] = parse_log_probs(values, self.server)[positions - 1].tolist()
        return log_probs

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """Return the request for a new token, with the log-probabilities of the chosen ids."""
        return self._request(text, 1, {"logprobs": 0, "logprob_token_ids": [*tokens]})

    @parsing
    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities that are listed for the chosen ids."""
        listed = answer_field(answer, "choices", 0, "logprobs", "top_logprobs", 0)
        return [self.log_prob(answer_field(listed, f"token_id:{token}")) for token in tokens]

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        ids: dict[str, JsonValue] = {"return_tokens_as_token_ids": True, "add_special_tokens": False}
        return super()._request(tokens, max_tokens, {**more, **ids})


class _TextCompletions(Completions):
    name = "text"
    text_only = True


class _ChatCompletions(Completions):
    """/chat/completions, with the prompt as a message; no text can continue the beginning of an answer."""

    name = "chat"
    text_path = ("choices", 0, "message", "content")
    continues_own_text = False
    max_tokens_field: ClassVar[str] = "max_tokens"

    def _request(self, tokens: IntArray, max_tokens: int, more: Mapping[str, JsonValue]) -> ApiRequest:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.tokenizer.decode(tokens)}],
            self.max_tokens_field: max_tokens,
            "temperature": 0,
            **more,
        }
        return ApiRequest("/chat/completions", body, len(tokens), max_tokens)


class _TextChatCompletions(_ChatCompletions):
    name = "text chat"
    text_only = True


class _NewChatCompletions(_ChatCompletions):
    """/chat/completions of models that reject `max_tokens`, such as OpenAI's newer ones."""

    name = "new chat"
    max_tokens_field = "max_completion_tokens"


class _NewTextChatCompletions(_NewChatCompletions):
    name = "new text chat"
    text_only = True


class LlamaCppCompletion(Backend):
    """POST /completion of a llama.cpp server, at its root: it names tokens by id, and a bias chooses any token.

    The bias leaves the token's log-probability. The server ignores `echo`, so the tokens of a prompt are scored one by
    one; it caches the shared prefix. It returns nothing for a token that ends inside a character. Where one may follow,
    a bias makes it write another token, and the list of the most likely tokens, which the bias does not change, has the
    needed values.
    """

    name = server = "llama.cpp"
    text_path = ("content",)
    max_chosen = 1

    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Return the request, for one token with a bias, so that the server lists the most likely ones."""
        if max_tokens == 1:
            return _native_request(text, 1, n_probs=self.top_logprobs, logit_bias=[[self._ordinary, _BIAS]])
        return _native_request(text, max_tokens, n_probs=self.top_logprobs, return_tokens=True)

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
            return _native_request(text, 1, n_probs=self.names.size, logit_bias=[[self._ordinary, _BIAS]])
        return _native_request(text, 1, n_probs=1, logit_bias=[[token, _BIAS]])

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


def _native_request(text: IntArray, max_tokens: int, **more: JsonValue) -> ApiRequest:
    body = {"prompt": text.tolist(), "n_predict": max_tokens, "temperature": 0, "cache_prompt": True, **more}
    return ApiRequest("//completion", body, len(text), max_tokens)


NATIVE_BACKENDS: Final[Mapping[str, type[Backend]]] = {"vllm": VllmCompletions, "llamacpp": LlamaCppCompletion}
"""The backends to try first, by the owner that a server names for its models."""
OPENAI_BACKENDS: Final[Sequence[tuple[type[Backend], bool]]] = (
    (_EchoCompletions, True),
    (_EchoCompletions, False),
    (Completions, True),
    (Completions, False),
    (_ChatCompletions, False),
    (_TextCompletions, False),
    (_TextChatCompletions, False),
)
"""The backends to try on any server, the best first, and whether prompts are token ids."""
NEWER_CHATS: Final[Mapping[type[Backend], type[_ChatCompletions]]] = {
    _ChatCompletions: _NewChatCompletions,
    _TextChatCompletions: _NewTextChatCompletions,
}
"""The chats to try next if an error asks for the field that newer models have instead of `max_tokens`."""


def _pairs(top: object) -> list[tuple[str, object]]:
    """Return the names and log-probabilities of the most likely tokens at one position."""
    if isinstance(top, Mapping):
        return [(str(name), value) for name, value in top.items()]
    if isinstance(top, Sequence):
        return [(str(answer_field(entry, "token")), answer_field(entry, "logprob")) for entry in top]
    return []
