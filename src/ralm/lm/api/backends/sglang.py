"""SGLang's own /generate: tokens by id, log-probabilities of prompts, and of chosen ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from ralm.lm.api.backends import Way, check_length, odd, parses, part_of
from ralm.lm.api.predictions import Prediction, log_prob_of, log_probs_of, prediction_of
from ralm.lm.api.transport import Asked, JsonObject
from ralm.records import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SgLang(Way):
    """POST /generate of an SGLang server, at its root."""

    name: ClassVar[str] = "sglang"
    reads_prompts: ClassVar[bool] = True
    chooses: ClassVar[int] = 128

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy tokens; the log-probabilities of the prompt are left out."""
        return self._asked(text, most, {"logprob_start_len": -1, "top_logprobs_num": self.likeliest})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:  # noqa: ARG002
        """One prediction for each token that was written, the end of the text included."""
        return self._predictions(answer, "output", 0)

    @property
    def margin(self) -> int:
        """The last token stands in the prompt, and a new one behind it."""
        return 2

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """`text`."""
        return str(part_of(answer, "text"))

    @parses
    def counted(self, answer: JsonObject) -> int | None:
        """`prompt_tokens`."""
        counted = part_of(answer, "meta_info").get("prompt_tokens")
        return counted if isinstance(counted, int) else None

    def reading(self, tokens: IntArray) -> Asked:
        """The log-probabilities of the prompt from its beginning, and of one token behind it."""
        return self._asked(tokens, 1, {"logprob_start_len": 0, "top_logprobs_num": self.likeliest})

    @parses
    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """The predictions of the prompt, and that of the token behind it."""
        _of_prompt(answer, tokens)
        return self._predictions(answer, "input", 1)[begin - 1 :] + self._predictions(answer, "output", 0)

    def scoring(self, tokens: IntArray) -> Asked:
        """The prompt without the likeliest tokens."""
        return self._asked(tokens, 1, {"logprob_start_len": 0, "top_logprobs_num": 0})

    @parses
    def scored(self, answer: JsonObject, tokens: IntArray, places: IntArray) -> list[float]:
        """The log-probabilities at some places."""
        values = [value for value, *_ in _of_prompt(answer, tokens)]
        found: list[float] = log_probs_of(values[1:], "SGLang")[places - 1].tolist()
        return found

    def choosing(self, text: IntArray, tokens: Sequence[int]) -> Asked:
        """One token, with the log-probabilities of the chosen ones in its place."""
        return self._asked(text, 1, {"logprob_start_len": -1, "top_logprobs_num": 0, "token_ids_logprob": [*tokens]})

    @parses
    def chosen(self, answer: JsonObject, tokens: Sequence[int]) -> list[float]:
        """The log-probabilities of those tokens."""
        rows = part_of(answer, "meta_info", "output_token_ids_logprobs", 0)
        values = {int(number): value for value, number, *_ in rows}
        return [log_prob_of(part_of(values, token), "SGLang") for token in tokens]

    def _asked(self, text: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
        body: dict[str, JsonValue] = {
            "input_ids": text.tolist(),
            "sampling_params": {"max_new_tokens": most, "temperature": 0},
            "return_logprob": True,
            **more,
        }
        return Asked("//generate", body, len(text), most)

    def _predictions(self, answer: JsonObject, where: str, first: int) -> list[Prediction]:
        """The predictions of the prompt (`input`) or behind it (`output`), from the token `first` on."""
        own = part_of(answer, "meta_info", f"{where}_token_logprobs")
        top = part_of(answer, "meta_info", f"{where}_top_logprobs")
        check_length(top, len(own), "tokens")
        return [
            self._prediction(int(token), value, listed or [])
            for (value, token, *_), listed in zip(own[first:], top[first:], strict=True)
        ]

    def _prediction(self, token: int, value: object, listed: Sequence[Sequence[Any]]) -> Prediction:
        named = [(int(number), log_prob_of(other, "SGLang")) for other, number, *_ in listed]
        return prediction_of(token, log_prob_of(value, "SGLang"), named, self.likeliest)


def _of_prompt(answer: JsonObject, tokens: IntArray) -> Sequence[Sequence[Any]]:
    """A log-probability and an id, or more, of each token of a prompt; ServerError if the server read other tokens."""
    given: Sequence[Sequence[Any]] = part_of(answer, "meta_info", "input_token_logprobs")
    check_length(given, len(tokens), "tokens of a prompt")
    if [token for _, token, *_ in given] != tokens.tolist():
        raise odd("the server gives log-probabilities of other tokens than those of a prompt")
    return given
