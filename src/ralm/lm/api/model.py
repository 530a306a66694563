"""A language model behind an API, and its dry run.

What the server returns decides what the model can do; see `ralm.lm.api.backends`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Literal, cast

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.api import servers, transport
from ralm.lm.api.backends import END, Backend, end_prediction, unexpected
from ralm.lm.api.client import Client
from ralm.lm.api.continuations import ApiContinuations
from ralm.lm.api.predictions import Prediction
from ralm.protocols import UNLIMITED, FullTokenizer, LanguageModel, Tier
from ralm.records import FloatArray, IntArray, ScoringSequence

_PLACEHOLDER: Final[transport.JsonObject] = {"placeholder": True}
"""The answer to every request of a dry run."""
_LOG_PROB: Final = -1.0


class ApiModel:
    """A `WritingModel` behind an API, asked by a backend; `load_api_model` makes it.

    Scores are exact if the server returns the log-probabilities of prompts or of chosen tokens. If it only lists the
    most likely tokens, `score` raises UsageError, and `bounds` are models with lower and upper bounds.
    """

    def __init__(
        self, name: str, client: Client, backend: Backend, tokenizer: FullTokenizer, capabilities: servers.Capabilities
    ) -> None:
        self.name = name
        self.client = client
        self.backend = backend
        self.tokenizer = tokenizer
        self.capabilities = capabilities

    @property
    def config(self) -> dict[str, JsonValue]:
        """All that the model's answers depend on: address, name, backend, identity and tokenizer."""
        return {
            "name": self.name,
            "url": self.client.endpoint.url,
            "model": self.client.endpoint.model,
            "backend": self.backend.name,
            "top_logprobs": self.backend.top_logprobs,
            "identity": self.capabilities.identity,
            "tokenizer": getattr(self.tokenizer, "fingerprint", None),
        }

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that the model reads."""
        return self.capabilities.max_length or UNLIMITED

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokenizer's end-of-text token, and the id that stands for an end without a token."""
        end = self.tokenizer.end_token
        return frozenset({END} if end is None else {END, end})

    @property
    def tier(self) -> Tier:
        """What the server returns about the next token.

        Scores of prompts count as chosen tokens only if the server takes token ids: a chosen token after a text may
        change how the text is split.
        """
        if self.backend.top_logprobs == 0:
            return "text"
        chosen = self.backend.max_chosen > 0 or (self.backend.scores_prompts and self.backend.config.as_ids)
        return "chosen" if chosen else "top_k"

    @cached_property
    def bounds(self) -> tuple[LanguageModel, LanguageModel] | None:
        """The models with lower and upper bounds of log-probabilities if the server only lists the most likely tokens;
        None if `score` is exact, or the server returns no log-probabilities."""
        listed = self.backend.top_logprobs > 0 and not self.backend.is_exact
        return (_Bound(self, "lower"), _Bound(self, "upper")) if listed else None

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """The natural log-probability (float32) of each target of each sequence, in order and as soon as known.

        Raises UsageError if the server does not return them, and what `Client.answers` raises.
        """
        if not self.backend.is_exact:
            count = self.backend.top_logprobs
            returned = f"lists {count} next tokens" if count else "returns only text"
            raise UsageError(
                f"{self.name} {returned}, so that the log-probability of a given text is not known: use a server that "
                "returns it (`ralm probe` shows what a server returns)."
            )
        return self._score_prompts(passes) if self.backend.scores_prompts else self._score_chosen(passes)

    @property
    def answers_only(self) -> bool:
        """Whether the model only answers messages, and cannot continue a text."""
        return not self.backend.continues_own_text

    def continuations(self) -> ApiContinuations:
        """A new state for continuing texts."""
        return ApiContinuations(self.client, self.backend, self.name, self.max_length, self.tokenizer.end_token)

    def _score_prompts(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        answers = self.client.answers(self.backend.scoring_request(one.tokens_N) for one in passes)
        for one, answer in zip(passes, answers, strict=True):
            yield np.array(self.backend.scored_log_probs(answer, one.tokens_N, one.targets_P), dtype=np.float32)

    def _score_chosen(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        backend = self.backend
        targets = ((one.tokens_N, position) for one in passes for position in one.targets_P)
        answers = self.client.answers(
            backend.choice_request(tokens[:position], [int(tokens[position])]) for tokens, position in targets
        )
        for one in passes:
            tokens = one.tokens_N[one.targets_P].tolist()
            found_P = np.array(
                [backend.chosen_log_probs(next(answers), [token])[0] for token in tokens], dtype=np.float32
            )
            if np.isnan(found_P).any():
                raise unexpected(f"{self.name} returns no log-probability for the end of a text, which it has to score")
            yield found_P


class _Bound:
    """The lower or upper bounds of the log-probabilities of a model that lists its most likely tokens."""

    def __init__(self, model: ApiModel, bound: Literal["lower", "upper"]) -> None:
        self._model = model
        self.bound = bound
        self.name = model.name
        self.max_length = model.max_length
        self.tokenizer = model.tokenizer

    @property
    def config(self) -> dict[str, JsonValue]:
        return {**self._model.config, "bound": self.bound}

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        backend = self._model.backend
        texts = [one.tokens_N[:position] for one in passes for position in one.targets_P]
        kept = [backend.keeps_tokens(text) for text in texts]
        answers = self._model.client.answers(
            backend.generation_request(text, 1) for text, keeps in zip(texts, kept, strict=True) if keeps
        )
        predictions = (
            self._prediction(next(answers), len(text)) if keeps else end_prediction()
            for text, keeps in zip(texts, kept, strict=True)
        )
        for one in passes:
            tokens = one.tokens_N[one.targets_P].tolist()
            yield np.array([self._bound_of(next(predictions), token) for token in tokens], dtype=np.float32)

    def _prediction(self, answer: transport.JsonObject, length: int) -> Prediction:
        """The prediction after a text; nothing is known if the server splits the text into other tokens."""
        backend = self._model.backend
        comparable = backend.continues_own_text  # a chat template adds tokens
        if comparable and backend.prompt_token_count(answer) not in (None, length):
            return end_prediction()
        return backend.first_generated(answer)

    def _bound_of(self, prediction: Prediction, token: int) -> float:
        listed = prediction.listed(token)
        if listed is not None:
            return listed
        return prediction.rest if self.bound == "upper" else -np.inf


def as_dry_run(model: ApiModel) -> ApiModel:
    """A copy of a model that sends nothing; `client.usage` counts the requests that a job would send.

    Stored answers are used. All others are made up: a text never ends, and every token is equally likely, so that the
    requests of generation are counted at their maximum. Closes the model's own client.
    """
    model.client.close()
    unlimited = replace(model.client.options, max_requests=None, max_cost=None)
    client = _DryRunClient(model.client.endpoint, unlimited)
    client.identity = model.client.identity
    backend = cast("Backend", _DryRunBackend(model.backend))
    return ApiModel(model.name, client, backend, model.tokenizer, model.capabilities)


class _DryRunClient(Client):
    """A client that sends nothing and stores nothing; a request counts at its maximum."""

    async def _send(self, request: transport.ApiRequest) -> transport.JsonObject:  # noqa: ARG002
        return _PLACEHOLDER

    async def _keep(self, key: bytes, answer: transport.JsonObject) -> None:
        """Placeholders are not stored."""


class _DryRunBackend:
    """A backend that also accepts placeholders as answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._token = int(backend.tokenizer.encode("a")[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def generated(self, answer: transport.JsonObject, max_tokens: int) -> list[Prediction]:
        if answer is _PLACEHOLDER:
            return [_made_up(self._token)] * max_tokens
        return self._backend.generated(answer, max_tokens)

    def first_generated(self, answer: transport.JsonObject) -> Prediction:
        return _made_up(self._token) if answer is _PLACEHOLDER else self._backend.first_generated(answer)

    def prompt_predictions(self, answer: transport.JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        if answer is _PLACEHOLDER:
            return [_made_up(int(token)) for token in (*tokens[begin:], self._token)]
        return self._backend.prompt_predictions(answer, tokens, begin)

    def scored_log_probs(self, answer: transport.JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        if answer is _PLACEHOLDER:
            return [_LOG_PROB] * len(positions)
        return self._backend.scored_log_probs(answer, tokens, positions)

    def chosen_log_probs(self, answer: transport.JsonObject, tokens: Sequence[int]) -> list[float]:
        return [_LOG_PROB] * len(tokens) if answer is _PLACEHOLDER else self._backend.chosen_log_probs(answer, tokens)


def _made_up(token: int) -> Prediction:
    one = np.array([token], dtype=np.int64)
    return Prediction(token, _LOG_PROB, one, np.full(1, _LOG_PROB, dtype=np.float32), _LOG_PROB)
