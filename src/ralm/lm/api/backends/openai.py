"""OpenAI's /completions, and what servers that speak it add to it: vLLM most of all.

`echo` gives back the prompt with the log-probability of each token (OpenAI, Together, Fireworks, llama-cpp-python);
vLLM has `prompt_logprobs` instead, names tokens by id, and tells the log-probabilities of chosen ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.lm.api.backends import PromptForm, Way, check_length, ended, odd, parses, part_of
from ralm.lm.api.predictions import Prediction, TokensByName, log_prob_of, log_probs_of, prediction_of, text_alone
from ralm.lm.api.transport import Asked, JsonObject
from ralm.protocols import Tokenizer
from ralm.records import DoubleArray, IntArray

_BIAS: Final = 100
"""The largest bias of OpenAI's API; it makes any token the greedy one."""
_Row: TypeAlias = tuple[object, object, Sequence[tuple[str, object]]]
"""The name of a token, its log-probability, and the likeliest tokens in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions(Way):
    """/completions of `model` with the k likeliest tokens, of which `names` knows the ids.

    Servers that take token ids name parts of characters, and so do others if it `names_parts`. llama-cpp-python leaves
    them out of names: what it lists as a space may be a space and a part.
    """

    name: ClassVar[str] = "completions"
    names_parts: ClassVar[bool] = False
    model: str
    form: PromptForm
    names: TokensByName

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy tokens with `logprobs`."""
        return self._asked(text, most, {"logprobs": self.likeliest})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction for each token that was written."""
        choice = self._choice(answer)
        found = self._predictions(choice, ())
        stopped = choice.get("finish_reason") == "stop"
        return [*found, ended()] if stopped and len(found) < most else found

    @parses
    def next_token(self, answer: JsonObject) -> Prediction:
        """The prediction of the first token, also if its name does not say which it is."""
        rows = self._rows(self._choice(answer))
        return self._prediction(*rows[0], None) if rows else ended()

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """`text`."""
        return str(part_of(answer, "choices", 0, "text"))

    @parses
    def counted(self, answer: JsonObject) -> int | None:
        """The tokens of the prompt by `usage`."""
        usage = answer.get("usage")
        counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        return counted if isinstance(counted, int) else None

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are token ids."""
        return self.form.as_ids

    def keeps(self, text: IntArray) -> bool:
        """Whether it splits a text into the same tokens."""
        return self.form.keeps(text)

    def _asked(self, tokens: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "prompt": self.form.sent(tokens),
            "max_tokens": most,
            "temperature": 0,
            **more,
        }
        return Asked("/completions", body, len(tokens), most)

    def _choice(self, answer: JsonObject) -> Mapping[str, Any]:
        """The part of an answer with its text and `logprobs`."""
        choice: Mapping[str, Any] = part_of(answer, "choices", 0)
        return choice

    def _predictions(self, choice: Mapping[str, Any], prompt: Sequence[int] | IntArray) -> list[Prediction]:
        """The predictions that `logprobs` holds.

        The first ones are those of the tokens of a prompt, whose names need not tell them apart. Behind them they end
        before a token whose name does not say which it is. Raises ServerError if that is the very first.
        """
        rows = self._rows(choice)
        nameless = [place for place in range(len(prompt), len(rows)) if self.names.id_of(str(rows[place][0])) is None]
        if nameless[:1] == [0]:
            raise odd(
                f"the server writes a token as {str(rows[0][0])!r}, which is the text of several tokens or of none: "
                "its tokenizer is another one, or it cannot be asked this way"
            )
        end = next(iter(nameless), len(rows))
        known = [int(token) for token in prompt] + [None] * (end - len(prompt))
        return [self._prediction(*row, token) for row, token in zip(rows[:end], known, strict=True)]

    def _rows(self, choice: Mapping[str, Any]) -> Sequence[_Row]:
        """What `logprobs` holds, in its own form or that of chats; a first row of null is left out."""
        logprobs = part_of(choice, "logprobs")
        if logprobs is None:
            raise odd("the server gives no log-probabilities")
        if "content" in logprobs:
            rows = [
                (one.get("token"), one.get("logprob"), _pairs(one.get("top_logprobs"))) for one in logprobs["content"]
            ]
        else:
            values = part_of(logprobs, "token_logprobs")
            tops = logprobs.get("top_logprobs") or [None] * len(values)
            rows = list(zip(part_of(logprobs, "tokens"), values, map(_pairs, tops), strict=True))
        return rows[1:] if rows and rows[0][1] is None else rows

    def _prediction(
        self, name: object, value: object, listed: Sequence[tuple[str, object]], known: int | None
    ) -> Prediction:
        log_prob = log_prob_of(value, "the server")
        found = self.names.id_of(str(name))
        token = found if known is None else known
        if found not in (None, token):
            raise odd(
                f"the server reads {name!r} where a prompt has token {token}: it splits the text into other tokens"
            )
        whole = self.names.id_of if self.form.as_ids or self.names_parts else self.names.id_of_whole
        named = [(found if one == name else whole(one), log_prob_of(other, "the server")) for one, other in listed]
        return prediction_of(token, log_prob, named, self.likeliest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo(Completions):
    """The same with `echo`, which gives the log-probabilities of the prompt.

    One new token is asked for, since no number of new tokens means the same to all: some servers take 0 for no limit.
    """

    name: ClassVar[str] = "echo"
    reads_prompts: ClassVar[bool] = True

    @property
    def margin(self) -> int:
        """The last token stands in the prompt, and a new one behind it."""
        return 2

    def reading(self, tokens: IntArray) -> Asked:
        """The prompt, echoed."""
        return self._asked(tokens, 1, {"logprobs": self.likeliest, "echo": True})

    @parses
    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """One prediction for each token of the prompt from `begin` on."""
        choice = part_of(answer, "choices", 0)
        logprobs = part_of(choice, "logprobs", "token_logprobs")
        ended = choice.get("finish_reason") == "stop" and len(logprobs) == len(tokens)
        if not ended:
            check_length(logprobs, len(tokens) + 1, "tokens, those of a prompt and a new one")
        if logprobs[0] is not None:
            raise odd("the server gives a log-probability for the first token of a prompt, which has none")
        return self._predictions(choice, tokens[1:])[begin - 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Completions):
    """vLLM's /completions: tokens go by their ids, and the log-probabilities of chosen ones are told."""

    name: ClassVar[str] = "vllm"
    reads_prompts: ClassVar[bool] = True
    chooses: ClassVar[int] = 128

    @property
    def margin(self) -> int:
        """The last token stands in the prompt, and a new one behind it."""
        return 2

    def reading(self, tokens: IntArray) -> Asked:
        """The prompt with `prompt_logprobs`; vLLM writes one token at least."""
        return self._asked(tokens, 1, {"logprobs": self.likeliest, "prompt_logprobs": self.likeliest})

    @parses
    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """The predictions of the prompt, by id, and that of the token behind it."""
        places, log_probs = _of_prompt(answer, tokens)
        prompt = [
            self._placed(listed, int(token), log_prob)
            for listed, token, log_prob in zip(
                places[begin - 1 :], tokens[begin:], log_probs[begin - 1 :].tolist(), strict=True
            )
        ]
        return prompt + self._predictions(part_of(answer, "choices", 0), ())

    def scoring(self, tokens: IntArray) -> Asked:
        """The prompt without the likeliest tokens: they would take far longer to read than all else."""
        return self._asked(tokens, 1, {"prompt_logprobs": 0})

    @parses
    def scored(self, answer: JsonObject, tokens: IntArray, places: IntArray) -> list[float]:
        """The log-probabilities at some places."""
        _, log_probs = _of_prompt(answer, tokens)
        found: list[float] = log_probs[places - 1].tolist()
        return found

    def choosing(self, text: IntArray, tokens: Sequence[int]) -> Asked:
        """One token, with the log-probabilities of the chosen ones in its place."""
        return self._asked(text, 1, {"logprobs": 0, "logprob_token_ids": [*tokens]})

    @parses
    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """The log-probabilities of those tokens."""
        listed = part_of(answer, "choices", 0, "logprobs", "top_logprobs", 0)
        return [log_prob_of(part_of(listed, f"token_id:{token}"), "vLLM") for token in tokens]

    def _placed(self, listed: Mapping[str, Any], token: int, log_prob: float) -> Prediction:
        """The prediction of a token of the prompt."""
        named = [(int(number), log_prob_of(part_of(one, "logprob"), "vLLM")) for number, one in listed.items()]
        return prediction_of(token, log_prob, named, self.likeliest)

    def _asked(self, tokens: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
        ids: dict[str, JsonValue] = {"return_tokens_as_token_ids": True, "add_special_tokens": False}
        return Completions._asked(self, tokens, most, {**more, **ids})


def _of_prompt(answer: JsonObject, tokens: IntArray) -> tuple[Sequence[Mapping[str, Any]], DoubleArray]:
    """What vLLM tells of each token of a prompt but the first, and their log-probabilities (float64).

    Raises ServerError if it read other tokens, or one of these figures is no log-probability.
    """
    given = part_of(answer, "choices", 0, "prompt_logprobs")
    check_length(given, len(tokens), "tokens of a prompt")
    try:
        values = [listed[str(token)]["logprob"] for token, listed in zip(tokens[1:].tolist(), given[1:], strict=True)]
    except KeyError as error:
        raise odd(f"the server gives no log-probability for token {error} of a prompt: it read other tokens.") from None
    return given[1:], log_probs_of(values, "vLLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Biased(Completions):
    """The same of a server that lets a bias choose any token, and tells its log-probability without the bias."""

    name: ClassVar[str] = "bias"
    chooses: ClassVar[int] = 1

    def choosing(self, text: IntArray, tokens: Sequence[int]) -> Asked:
        """The token that a bias makes the greedy one."""
        [token] = tokens
        bias: JsonValue = {str(token): _BIAS}
        return self._asked(text, 1, {"logprobs": self.likeliest, "logit_bias": bias})

    @parses
    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """The log-probability of the token that was written; NaN of the end of a text, of which nothing is told."""
        choice = self._choice(answer)
        if choice.get("finish_reason") == "stop" and not self._rows(choice):
            return [np.nan]
        return [self._predictions(choice, tokens)[0].log_prob]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCompletions(Completions):
    """/completions of a server that gives text alone, which is tokenised again."""

    name: ClassVar[str] = "text"

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy text."""
        return self._asked(text, most, {})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction without log-probabilities for each token of the text."""
        choice = part_of(answer, "choices", 0)
        return retokenised(str(part_of(choice, "text")), choice.get("finish_reason"), self.form, most)


def retokenised(text: str, finished: object, form: PromptForm, most: int) -> list[Prediction]:
    """A text that a server wrote as predictions without log-probabilities; `ended()` last if it ended there."""
    tokens = [text_alone(int(token)) for token in _encoded_behind(text, form.tokenizer)]
    return [*tokens, ended()] if finished != "length" and len(tokens) < most else tokens[:most]


def _encoded_behind(text: str, tokenizer: Tokenizer) -> IntArray:
    """The tokens of a text that follows another one: alone, some tokenizers put a space before it."""
    line, whole = tokenizer.encode("\n"), tokenizer.encode("\n" + text)
    return whole[len(line) :] if np.array_equal(whole[: len(line)], line) else tokenizer.encode(text)


def _pairs(top: object) -> list[tuple[str, object]]:
    """The likeliest tokens of one place as names and log-probabilities."""
    if isinstance(top, Mapping):
        return [(str(name), value) for name, value in top.items()]
    if isinstance(top, Sequence):
        return [(str(part_of(one, "token")), part_of(one, "logprob")) for one in top]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Completions):
    """The k likeliest tokens of each place of an answer."""

    name: ClassVar[str] = "chat"
    names_parts: ClassVar[bool] = True
    goes_on: ClassVar[bool] = False
    most_name: ClassVar[str] = "max_tokens"
    """What the API calls the most tokens of an answer."""

    def writing(self, text: IntArray, most: int) -> Asked:
        """A greedy answer with `top_logprobs`."""
        return self._message(text, most, {"logprobs": True, "top_logprobs": self.likeliest})

    def keeps(self, text: IntArray) -> bool:  # noqa: ARG002
        """Yes: a message is its text, whatever tokens that is."""
        return True

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """The content of the message."""
        return str(part_of(answer, "choices", 0, "message", "content") or "")

    def _message(self, text: IntArray, most: int, more: dict[str, JsonValue]) -> Asked:
        body: dict[str, JsonValue] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.form.tokenizer.decode(text)}],
            self.most_name: most,
            "temperature": 0,
            **more,
        }
        return Asked("/chat/completions", body, len(text), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChat(Chat):
    """The same of a server that gives text alone, which is tokenised again."""

    name: ClassVar[str] = "text chat"

    def writing(self, text: IntArray, most: int) -> Asked:
        """A greedy answer."""
        return self._message(text, most, {})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:
        """One prediction without log-probabilities for each token of the answer."""
        choice = part_of(answer, "choices", 0)
        return retokenised(self.text_of(answer) or "", choice.get("finish_reason"), self.form, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChat(Chat):
    """The same of models that refuse `max_tokens`, such as OpenAI's newer ones."""

    name: ClassVar[str] = "new chat"
    most_name: ClassVar[str] = "max_completion_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTextChat(TextChat):
    """Those of them that give text alone."""

    name: ClassVar[str] = "new text chat"
    most_name: ClassVar[str] = NewChat.most_name
