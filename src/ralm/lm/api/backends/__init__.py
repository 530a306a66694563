"""The interface of backends, which turn tokens into requests of one kind of server, and its answers into predictions.

A backend sends nothing itself. To support another server API, add a module with a `Backend` and a `ServerKind`, and
list it in `ralm.lm.api.servers`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

import numpy as np
from pydantic import JsonValue

from ralm.errors import ServerError
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import Prediction, ServerTokenNames, parse_log_prob
from ralm.lm.api.transport import ApiRequest, JsonObject
from ralm.protocols import Tokenizer
from ralm.records import IntArray

_Given = ParamSpec("_Given")
_Parsed = TypeVar("_Parsed")
END: Final = -2
"""The token id that stands for the end of a text if a server does not name the token that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """How a server is asked: by the backend of this name, for the `top_logprobs` most likely tokens (0: text only).

    With `as_ids`, prompts are token ids, not text. `begin` is the token (a BOS) that the server puts before a text.
    """

    backend: str
    top_logprobs: int = 0
    as_ids: bool = True
    begin: int | None = None

    def describe(self) -> str:
        """The backend in words, as `ralm probe` prints it."""
        either = self.backend in ("completions", "echo", "bias")
        return f"{self.backend} of {'token ids' if self.as_ids else 'text'}" if either else self.backend


_TIERS: Final = (
    "1: log-probabilities of given texts (scoring, reranking, ensembles and signals are exact)",
    "2: the most likely next tokens (greedy answers and ensembles with certified tokens; scores as bounds)",
    "3: text alone (generation with passages in one context; answers that add up over passages)",
)


@dataclass(frozen=True)
class Backend(ABC):
    """Asks a server for the most likely tokens of `model`; `names` finds their ids.

    The class variables declare what a server returns:

    text_path            where an answer has the generated text
    count_path           where an answer has the number of tokens that the server read
    scores_prompts       the log-probability and the most likely tokens at every position of a prompt
    max_chosen           the log-probabilities of so many chosen next tokens in one request
    continues_own_text   a text may end in what the model wrote before; a message may not
    text_only            no log-probabilities
    """

    name: ClassVar[str]
    text_path: ClassVar[tuple[str | int, ...]]
    count_path: ClassVar[tuple[str, ...]]
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
        """These tokens as the prompt of a request. Raises ServerError if the server would add a BOS that they lack."""
        return tokens.tolist() if self.config.as_ids else self.tokenizer.decode(self._without_bos(tokens))

    def keeps_tokens(self, text: IntArray) -> bool:
        """Whether the server reads exactly these tokens: it may split a text into others, and rejects an empty one. A
        message is its text, however the server splits it."""
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
        """The request for at most `max_tokens` greedy tokens after a text."""

    @abstractmethod
    def generated(self, answer: JsonObject, max_tokens: int) -> list[Prediction]:
        """The predictions of the generated tokens; the last is `end_prediction()` if the text ended without a token."""

    def first_generated(self, answer: JsonObject) -> Prediction:
        """The prediction of the first generated token, also if its id is not known; `end_prediction()` if none was."""
        return next(iter(self.generated(answer, 1)), end_prediction())

    def generated_text(self, answer: JsonObject) -> str:
        """The generated text."""
        return str(answer_field(answer, *self.text_path) or "")

    def prompt_token_count(self, answer: JsonObject) -> int | None:
        """The number of tokens that the server read, if it reports it."""
        found: Any = answer
        for step in self.count_path:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found if isinstance(found, int) else None

    def prompt_request(self, tokens: IntArray) -> ApiRequest:
        """The request for the log-probabilities of the tokens of a prompt."""
        raise NotImplementedError(self.name)

    def prompt_predictions(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """The predictions of the tokens of a prompt from `begin` on, and of the next token if the server returns it."""
        raise NotImplementedError(self.name)

    def scoring_request(self, tokens: IntArray) -> ApiRequest:
        """The request for the log-probabilities of the prompt's own tokens, with as few others as possible."""
        return self.prompt_request(tokens)

    def scored_log_probs(self, answer: JsonObject, tokens: IntArray, positions: IntArray) -> list[float]:
        """The log-probabilities of the tokens at these positions, which ascend."""
        begin = int(positions[0])
        predictions = self.prompt_predictions(answer, tokens, begin)
        return [predictions[position - begin].log_prob for position in positions.tolist()]

    def choice_request(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """The request for the log-probabilities of at most `max_chosen` tokens after a text."""
        raise NotImplementedError(self.name)

    def chosen_log_probs(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """The log-probabilities of the chosen tokens; NaN if the server returns none."""
        raise NotImplementedError(self.name)

    def checked_generation(self, text: IntArray, max_tokens: int) -> ApiRequest:
        """As `generation_request`; an answer that cannot be parsed is not stored, here and below."""
        first = max_tokens == 1 and not self.text_only
        parse = self.first_generated if first else partial(self.generated, max_tokens=max_tokens)
        return self.generation_request(text, max_tokens).checked(parse)

    def checked_prompt(self, tokens: IntArray) -> ApiRequest:
        """As `prompt_request`."""
        return self.prompt_request(tokens).checked(partial(self.prompt_predictions, tokens=tokens))

    def checked_scoring(self, tokens: IntArray) -> ApiRequest:
        """As `scoring_request`."""
        every = np.arange(1, len(tokens))
        return self.scoring_request(tokens).checked(partial(self.scored_log_probs, tokens=tokens, positions=every))

    def checked_choice(self, text: IntArray, tokens: Sequence[int]) -> ApiRequest:
        """As `choice_request`."""
        return self.choice_request(text, tokens).checked(partial(self.chosen_log_probs, tokens=tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """A kind of server: its backends, the best first, and the `owned_by` of its models or a path that it alone has."""

    backends: tuple[type[Backend], ...]
    owner: str | None = None
    own_path: str | None = None


def get_or_empty(client: Client, path: str) -> JsonObject:
    """The server's answer at a path; empty if it has no such path. Raises ServerError if it cannot be reached."""
    try:
        return client.get(path)
    except ServerError as error:
        if error.status is None or error.status in (401, 403, 429):
            raise
        return {}  # some servers fail at paths that they do not have


def end_prediction() -> Prediction:
    """The prediction for a text that ended without a log-probability: nothing else is known."""
    return Prediction(END, -np.inf, np.array([END], dtype=np.int64), np.full(1, -np.inf, dtype=np.float32), 0.0)


def unexpected(message: str) -> ServerError:
    """The error of an answer with unexpected content."""
    return ServerError(f"{message.removesuffix('.')}.", 200)


def parsing(parse: Callable[_Given, _Parsed]) -> Callable[_Given, _Parsed]:
    """Make a function that parses an answer raise ServerError if the answer has an unexpected format."""

    @wraps(parse)
    def parsed(*arguments: _Given.args, **options: _Given.kwargs) -> _Parsed:
        try:
            return parse(*arguments, **options)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise unexpected(f"unexpected response format ({error}).") from error

    return parsed


def token_and_log_prob(one: object, server: str) -> tuple[int, float]:
    """The `id` and the `logprob` of an entry of a list of tokens."""
    return int(answer_field(one, "id")), parse_log_prob(answer_field(one, "logprob"), server)


def expect_length(values: Sequence[object], expected: int, what: str) -> None:
    """Raise ServerError unless a server returns one log-probability for each token."""
    if len(values) != expected:
        raise unexpected(f"the server returns {len(values):,} log-probabilities for {expected:,} {what}")


def answer_field(answer: object, *path: str | int) -> Any:
    """The part of an answer at a path; ServerError if it is missing."""
    found: Any = answer
    for step in path:
        try:
            found = found[step]
        except (LookupError, TypeError):
            raise unexpected(f"the server's answer has no {'.'.join(map(str, path))}") from None
    return found
