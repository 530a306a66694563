"""Text Generation Inference's own /generate: text as prompts, and if it was started so, their log-probabilities.

It puts a BOS before a text if the model's tokenizer does. Of the tokens of a prompt it tells no others in their place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from ralm.lm.api.backends import PromptForm, Way, check_length, odd, parses, part_of
from ralm.lm.api.predictions import Prediction, log_prob_of, prediction_of
from ralm.lm.api.transport import Asked, JsonObject
from ralm.records import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiLikeliest(Way):
    """POST /generate of a server that tells the likeliest new tokens, and nothing of prompts."""

    name: ClassVar[str] = "tgi likeliest"
    form: PromptForm

    def writing(self, text: IntArray, most: int) -> Asked:
        """Greedy tokens with `top_n_tokens`."""
        return self._asked(text, most, {})

    @parses
    def written(self, answer: JsonObject, most: int) -> list[Prediction]:  # noqa: ARG002
        """One prediction for each token that was written, the end of the text included."""
        own, top = part_of(answer, "details", "tokens"), part_of(answer, "details", "top_tokens")
        check_length(top, len(own), "tokens")
        return [_prediction(one, listed, self.likeliest) for one, listed in zip(own, top, strict=True)]

    @parses
    def text_of(self, answer: JsonObject) -> str | None:
        """`generated_text`."""
        return str(part_of(answer, "generated_text"))

    def counting(self, text: IntArray) -> Asked:
        """The tokens of a text; it costs nothing."""
        return Asked("//tokenize", {"inputs": self.form.sent(text)}, 0)

    @parses
    def counted(self, answer: JsonObject) -> int | None:
        """The tokens by /tokenize; an answer of /generate does not tell."""
        tokens = answer.get("data")
        return len(tokens) if isinstance(tokens, list) else None

    @property
    def takes_ids(self) -> bool:
        """No: prompts are text."""
        return False

    def keeps(self, text: IntArray) -> bool:
        """Whether it splits the text into the same tokens."""
        return self.form.keeps(text)

    def _asked(self, text: IntArray, most: int, more: Mapping[str, JsonValue]) -> Asked:
        parameters = {"max_new_tokens": most, "details": True, "top_n_tokens": self.likeliest, **more}
        return Asked("//generate", {"inputs": self.form.sent(text), "parameters": parameters}, len(text), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tgi(TgiLikeliest):
    """The same of a server that was started with --enable-prefill-logprobs, or is older than version 3."""

    name: ClassVar[str] = "tgi"
    reads_prompts: ClassVar[bool] = True
    lists_prompts: ClassVar[bool] = False

    @property
    def margin(self) -> int:
        """The last token stands in the prompt, and a new one behind it."""
        return 2

    def reading(self, tokens: IntArray) -> Asked:
        """The prompt with its log-probabilities, and one token behind it."""
        return self._asked(tokens, 1, {"decoder_input_details": True})

    @parses
    def read(self, answer: JsonObject, tokens: IntArray, begin: int = 1) -> list[Prediction]:
        """The predictions of the prompt, which list nothing but its tokens, and that of the token behind it."""
        prefill = part_of(answer, "details", "prefill")
        if not prefill:
            raise odd("the server tells nothing of prompts: it was started without --enable-prefill-logprobs")
        check_length(prefill, len(tokens), "tokens of a prompt")
        for one, token in zip(prefill, tokens.tolist(), strict=True):
            if part_of(one, "id") != token:
                raise odd(
                    f"the server reads token {one['id']} where a prompt has token {token}: it splits the text into "
                    "other tokens"
                )
        return [*(_prediction(one, (), 0) for one in prefill[1:]), *self.written(answer, 1)][begin - 1 :]


def _prediction(one: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], asked: int) -> Prediction:
    return prediction_of(*_named(one), [*map(_named, listed)], asked)


def _named(one: Mapping[str, Any]) -> tuple[int, float]:
    """The id of a token and its log-probability."""
    return int(part_of(one, "id")), log_prob_of(part_of(one, "logprob"), "TGI")
