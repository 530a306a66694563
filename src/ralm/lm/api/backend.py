"""The interface of backends, which turn tokens into requests of one kind of server, and its answers into predictions.

A backend sends nothing itself. To support another server API, write a `Backend` and list it in `ralm.lm.api.probe`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError
from ralm.lm.api.answers import (
    Prediction,
    ServerTokenNames,
    answer_field,
    build_prediction,
    parse_log_prob,
    tokens_in_answer,
)
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.protocols import Tokenizer
from ralm.records import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """How a server is asked: backend, number of likely tokens (0: text only), as ids or text, the BOS that it adds."""

    backend: str
    top_logprobs: int = 0
    as_ids: bool = True
    begin: int | None = None

    def describe(self) -> str:
        """Return the backend in words, as `ralm probe` prints it."""
        either = self.backend in ("completions", "echo")
        return f"{self.backend} of {'token ids' if self.as_ids else 'text'}" if either else self.backend


_LENGTHS: Final = ("max_model_len", "context_length", "n_ctx", "context_window")
"""Names under which servers report the maximum number of tokens."""
_TIERS: Final = (
    "1: log-probabilities of given texts (scoring, reranking, ensembles and signals are exact)",
    "2: the most likely next tokens (greedy answers and ensembles with certified tokens)",
    "3: text alone (generation with passages in one context; answers that add up over passages)",
)


@dataclass(frozen=True)
class Backend(ABC):
    """A way to ask a server for the most likely tokens of `model`; `names` finds their ids.

    The class variables declare what a server returns:

    server               its name in errors
    text_path            where an answer has the generated text
    scores_prompts       the log-probability of every token of a prompt
    max_chosen           the log-probabilities of so many chosen next tokens in one request
    continues_own_text   a text may end in what the model wrote before; a message may not
    text_only            no log-probabilities
    """

    name: ClassVar[str]
    server: ClassVar[str] = "the server"
    text_path: ClassVar[tuple[str | int, ...]]
    scores_prompts: ClassVar[bool] = False
    max_chosen: ClassVar[int] = 0
    continues_own_text: ClassVar[bool] = True
    text_only: ClassVar[bool] = False
    config: BackendConfig
    model: str
    names: ServerTokenNames

    @property
    def top_logprobs(self) -> int:
        """How many most likely tokens are requested."""
        return self.config.top_logprobs

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.names.tokenizer

    @property
    def reserved_tokens(self) -> int:
        """Tokens of the server's context for the request itself: a new one, and the last of a scored prompt."""
        return 2 if self.scores_prompts else 1

    @property
    def is_exact(self) -> bool:
        """Whether the server returns the log-probabilities of given texts."""
        return self.scores_prompts or self.max_chosen > 0

    @property
    def tier(self) -> str:
        """What is exact, in words."""
        return _TIERS[0 if self.is_exact else 1 if self.top_logprobs else 2]

    def encode(self, tokens: IntArray) -> JsonValue:
        """Return these tokens as the prompt of a request; ServerError if the server would add a BOS that they lack."""
        return tokens.tolist() if self.config.as_ids else self.tokenizer.decode(self._without_bos(tokens))

    def keeps_tokens(self, text: IntArray) -> bool:
        """Return whether the server reads exactly these tokens, or a message, whose text alone counts."""
        if self.config.as_ids or not self.continues_own_text:
            return True
        sent = self._without_bos(text)
        return len(sent) > 0 and np.array_equal(self.tokenizer.encode(self.tokenizer.decode(sent)), sent)

    def _without_bos(self, tokens: IntArray) -> IntArray:
        if self.config.begin is None:
            return tokens
        if len(tokens) == 0 or tokens[0] != self.config.begin:
            raise ServerError(
                "the server takes text and puts a BOS before it, and this prompt has none: read with `bos` always."
            )
        return tokens[1:]

    @abstractmethod
    def generation_request(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Return the request for at most `max_tokens` greedy tokens after a text."""

    @abstractmethod
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:
        """Return the predictions of the generated tokens, and `END_PREDICTION` if the text ended without a token."""

    def generated_text(self, answer: JsonObject) -> str:
        """Return the generated text."""
        return str(answer_field(answer, *self.text_path) or "")

    def prompt_token_count(self, answer: JsonObject) -> int | None:
        """Return the number of tokens that the server read, if it reports it."""
        counted = tokens_in_answer(answer)
        return counted and counted[0]

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        """Return the request for the log-probabilities of the tokens of a prompt."""
        raise NotImplementedError(self.name)

    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        """Return the log-probabilities of a prompt's tokens at these positions; ServerError if it read others."""
        raise NotImplementedError(self.name)

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """Return the request for the log-probabilities of at most `max_chosen` tokens after a text."""
        raise NotImplementedError(self.name)

    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities of the chosen tokens."""
        raise NotImplementedError(self.name)

    def log_prob(self, value: object) -> float:
        """Return a log-probability in an answer; ServerError if it is not one."""
        return parse_log_prob(value, self.server)

    def prediction(self, token: int, value: object, listed: Iterable[tuple[int | None, object]]) -> Prediction:
        """Return what `build_prediction` makes of log-probabilities in an answer."""
        pairs = [(number, self.log_prob(other)) for number, other in listed]
        return build_prediction(token, self.log_prob(value), pairs, self.top_logprobs)

    def generation(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """Return `generation_request` answered with predictions, without bounds if the server read other tokens."""

        def parse(answer: JsonObject) -> list[Prediction]:
            predictions = self.generated(answer, max_tokens)
            same = not self.continues_own_text or self._reads(text, answer)
            return predictions if same else [replace(prediction, rest=0.0) for prediction in predictions]

        return replace(self.generation_request(text, max_tokens), parse=parse)

    def scoring(self, tokens: IntArray, positions: IntArray) -> ApiRequest:
        """Return `scoring_request`, answered with `scored_log_probs`."""
        parse = partial(self.scored_log_probs, tokens=tokens, positions=positions)
        return replace(self.scoring_request(tokens), parse=parse)

    def choice(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """Return `choice_request`, or a scored prompt that ends in the only token, answered with log-probabilities."""
        if not self.max_chosen:
            return self.scoring(np.append(text, tokens), np.array([len(text)]))
        return replace(self.choice_request(text, tokens), parse=partial(self.chosen_log_probs, tokens=tokens))

    def _reads(self, text: IntArray, answer: JsonObject) -> bool:
        """Return whether the server read these tokens, as far as it reports it."""
        return self.keeps_tokens(text) and self.prompt_token_count(answer) in (None, len(text))


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who owns a server's models, which is the name of its program, and its fields about the model."""

    owner: str
    fields: JsonObject

    @property
    def length(self) -> int | None:
        """The maximum number of tokens that the model reads, if the server reports it."""
        lengths = [*(self.fields.get(name) for name in _LENGTHS), self.meta.get("n_ctx")]
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)

    @property
    def weights(self) -> JsonObject:
        """The fields that distinguish the loaded weights from others by the same name."""
        # vLLM's path of the model; llama.cpp's sizes: another quantisation has another one
        told = {"root": self.fields.get("root"), **{name: self.meta.get(name) for name in ("n_params", "size")}}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def meta(self) -> JsonObject:
        """The object `meta` among the fields, which llama.cpp has."""
        meta = self.fields.get("meta")
        return meta if isinstance(meta, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server can do with its best backend; `greedy` tokens tell models apart, `ruled_out` are better ones."""

    config: BackendConfig
    max_length: int | None
    greedy: tuple[int, ...]
    identity: str
    ruled_out: tuple[tuple[str, str], ...] = ()
