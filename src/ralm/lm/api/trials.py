"""A known text, which a server continues and reads in any way of asking; its figures must agree with each other.

The tokens that it writes must have the same log-probabilities when it reads them in a prompt, or when they are chosen,
and be its text. It must read as many tokens as the text has, or one more: its BOS.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ralm.errors import ModelError, ServerError
from ralm.lm.api.capabilities import Asking
from ralm.lm.api.client import Asked, Client
from ralm.lm.api.names import TokensByName
from ralm.lm.api.predictions import Prediction
from ralm.lm.api.store import JsonObject, answer_key
from ralm.lm.api.tokenizers import ApiTokenizer
from ralm.lm.api.watching import Origin, origin_of
from ralm.lm.api.ways.named import way_of
from ralm.lm.api.ways.way import END, Way, odd
from ralm.records import IntArray

_TEXT: Final = (
    "The history of the city begins in the 12th century: its name, Caf\u00e9-Br\u00fccke, is older. It's 3.14 km "
    "long.\n\n"
    "def area(r):\n    return 3.14 * r ** 2\n\nThe history of the city begins in the"
)
GREEDY: Final = 16
"""Greedy tokens that tell one model from another."""
_READ_AGAIN: Final = 4
"""Of these, the first ones are read again in a prompt."""
_APART: Final = 0.05
"""How much two readings of one token may differ in nats: servers compute in 16 bits."""
_LISTED: Final = (100, 20, 5, 1)
"""Numbers of likeliest tokens to try, the largest first."""


class Trials:
    """Asks a server in any way, and remembers what it answered. `name` is that of its model.

    `said` is where the last answer says that it comes from.
    """

    def __init__(self, name: str, client: Client, tokenizer: ApiTokenizer) -> None:
        self.said: Origin | None = None
        self._name = name
        self._client = client
        self._tokenizer = tokenizer
        self._names = TokensByName(tokenizer.tokenizer, tokenizer.size)
        self._text = tokenizer.tokenizer.encode(_TEXT)
        self._answers: dict[bytes, JsonObject] = {}

    def settled(self, asking: Asking) -> Asking:
        """How to ask in this way: for how many likeliest tokens, with which BOS, and how few tokens are written.

        Raises ServerError if it does not work, or if its figures do not agree with each other.
        """
        if "text" in asking.way:
            self.written(asking)
            return asking
        asking = self._with_likeliest(asking)
        if "chat" not in asking.way:
            asking = self._with_beginning(asking)
        way, text, greedy = self.way(asking), self.prompt(asking), self.written(asking)
        self._check_text(way, text, greedy)
        if way.reads_prompts:
            self._check_read(way, text, greedy)
        if way.chooses:
            self._check_chosen(way, text, greedy[0])
        return asking

    def way(self, asking: Asking) -> Way:
        """The way that `asking` describes."""
        return way_of(asking, self._client.endpoint.model, self._tokenizer.tokenizer, self._names)

    def written(self, asking: Asking, most: int = GREEDY) -> list[Prediction]:
        """The predictions of what the server writes behind the known text, at least one."""
        way = self.way(asking)
        found = way.written(self._answer(way.writing(self.prompt(asking), most)), most)
        if not found:
            raise odd("the server writes nothing")
        return found

    def prompt(self, asking: Asking) -> IntArray:
        """The known text as it is asked for: with the BOS that the server puts before it."""
        return self._text if asking.begin is None else np.concatenate([[asking.begin], self._text])

    def _with_likeliest(self, asking: Asking) -> Asking:
        """With as many likeliest tokens as the server lists, or as the options ask for."""
        most = self._client.options.likeliest
        counts = (most, *(count for count in _LISTED if count < most)) if most else _LISTED
        for count in counts:
            try:
                listed = self.written(replace(asking, likeliest=count), 1)[0].tokens_C
            except ServerError as error:
                if count == counts[-1] or error.status == 200 or not (error.rejects_request or error.fails):
                    raise
                continue
            return replace(asking, likeliest=min(count, len(listed)))
        raise AssertionError("the last count returns or raises")

    def _with_beginning(self, asking: Asking) -> Asking:
        """With the token that the server puts before a text. Raises ServerError if it counts other tokens."""
        way = self.way(asking)
        counted = way.counted(self._answer(way.counting(self._text)))
        begin = self._tokenizer.tokenizer.special_tokens.begin
        more = 0 if counted is None else counted - len(self._text)
        if more == 1 and begin is not None and not asking.as_ids:
            return replace(asking, begin=begin)
        if more and asking.as_ids:
            raise odd(f"the server reads {counted:,} tokens of {len(self._text):,}")
        if more:
            raise ModelError(
                f"{self._name} reads {counted:,} tokens of a text for which the tokenizer {self._tokenizer.name} has "
                f"{len(self._text):,}: it is that of another model; name another `tokenizer`."
            )
        return asking

    def _check_text(self, way: Way, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ModelError if the tokens that the server wrote are not its text: the tokenizer is another one."""
        answer = self._answer(way.writing(text, GREEDY))
        tokens = np.array([one.token for one in greedy if one.token != END], dtype=np.int64)
        own = self._tokenizer.tokenizer.decode(np.concatenate([text, tokens]))
        wrote = (way.text_of(answer) or "").strip()
        if wrote not in own:
            raise ModelError(
                f"the tokenizer {self._tokenizer.name} is not that of {self._name}: the server wrote {wrote[:40]!r}, "
                f"and it decodes {own[-len(wrote) :][:40]!r}; name another `tokenizer`."
            )

    def _check_read(self, way: Way, text: IntArray, greedy: Sequence[Prediction]) -> None:
        """Raise ServerError if the tokens of a prompt have other log-probabilities than when they were written."""
        tokens = [one.token for one in greedy[:_READ_AGAIN] if one.token != END]
        while len(tokens) > 1 and not way.keeps(np.append(text, tokens)):
            tokens.pop()
        prompt = np.concatenate([text, np.array(tokens, dtype=np.int64)])
        read = way.read(self._answer(way.reading(prompt)), prompt, len(text))
        scored = way.scored(self._answer(way.scoring(prompt)), prompt, np.arange(len(text), len(prompt)))
        for one, found, other in zip(read[: len(tokens)], scored, greedy[: len(tokens)], strict=True):
            _check_equal(one.log_prob, other.log_prob, "in a prompt")
            _check_equal(found, other.log_prob, "in a prompt that is scored")

    def _check_chosen(self, way: Way, text: IntArray, written: Prediction) -> None:
        """Raise ServerError if a chosen token has another log-probability than in the list of the likeliest."""
        for place in np.argsort(-written.log_probs_C)[:2]:
            token = int(written.tokens_C[place])
            [found] = way.chosen(self._answer(way.choosing(text, [token])), [token])
            _check_equal(found, float(written.log_probs_C[place]), "if it is chosen")

    def _answer(self, asked: Asked) -> JsonObject:
        """The answer to a request, which is not kept: the model may be another one the next time."""
        key = answer_key("", asked.path, asked.body)
        if key not in self._answers:
            identity, self._client.identity = self._client.identity, ""
            try:
                [self._answers[key]] = self._client.answers([replace(asked, retries=1)])
            finally:
                self._client.identity = identity
        self.said = origin_of(self._answers[key])
        return self._answers[key]


def _check_equal(one: float, other: float, where: str) -> None:
    if not abs(one - other) <= _APART + _APART * abs(other):
        raise odd(f"a token has a log-probability of {one:.3f} {where}, and of {other:.3f} where the server writes it")
