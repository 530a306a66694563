"""Texts that a model behind an API continues: what a server told of a text is kept, and several tokens are read ahead.

One text: the server writes as many greedy tokens as will be needed, in one request. Several texts whose predictions are
averaged: the likeliest text drafts some tokens; then one request for each of the others reads that draft, and tells the
likeliest tokens in each of its places. As long as the average writes what was drafted, nothing more is asked. What is
known of a text does not depend on how it was asked for, so drafts change the number of requests and nothing else.

Works on token ids. Shapes: B texts, C tokens that a server lists.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ralm.errors import UsageError
from ralm.lm.api.backends import END, Way, odd
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import Prediction, next_tokens_of
from ralm.records import IntArray, NextTokens, TextsAhead

_MOST_KNOWN: Final = 4096
"""Texts of which something is known before old ones are forgotten; each holds its tokens."""
_DRAFTED: Final = 8
"""Tokens of a draft: some are for nothing if the average goes another way."""


class ApiContinuations:
    """What a server told of the next tokens of texts, which are read with at most `max_length` tokens.

    `end` is the token that ends a text, if it is known.
    """

    def __init__(self, client: Client, way: Way, name: str, max_length: int, end: int | None = None) -> None:
        self._client = client
        self._way = way
        self._name = name
        self._max_length = max_length
        self._end = end
        self._known: dict[bytes, Prediction] = {}

    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        """Ask for several tokens at once where one of the texts of an average is not known."""
        self._forget([text for one in several for text in one.texts])
        unknown = [one for one in several if one.most > 0 and not all(map(self._knows, one.texts))]
        if not self._way.goes_on and any(one.written for one in unknown):
            if any(len(one.texts) == 1 and self._knows(one.texts[0][:-1]) for one in unknown):
                raise odd(
                    f"{self._name} tells its answer up to a token whose name is the text of several tokens or of none, "
                    "such as a part of a character, and cannot be asked to go on from there"
                )
            raise UsageError(
                f"{self._name} answers messages, and an answer that goes on behind given words cannot be asked for: "
                "let it answer from one passage, or with each passage alone, without retrieving again on the way."
            )
        alone = {one.texts[0].tobytes(): (one.texts[0], one.most) for one in unknown if len(one.texts) == 1}
        drafting = [one for one in unknown if len(one.texts) > 1 and one.most > 1 and self._drafts]
        first = {one.likeliest.tobytes(): (one.likeliest, min(one.most, _DRAFTED)) for one in drafting}
        self._write([*(first | alone).values()])
        self._read([(text, self._draft(one)) for one in drafting for text in one.texts])
        self._read_ends([text for one in several if len(one.texts) > 1 for text in one.texts])

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """As `Continuations.next_tokens`; UsageError if the server does not tell the log-probabilities of `wanted`."""
        if wanted is not None:
            return self._chosen(texts, wanted)
        self._write([(text, 1) for text in {text.tobytes(): text for text in texts}.values()])
        return next_tokens_of([self._known[text.tobytes()] for text in texts])

    def _write(self, texts: Sequence[tuple[IntArray, int]]) -> None:
        """Let the server write behind each text of which nothing is known."""
        texts = [(text, most) for text, most in texts if not self._knows(text)]
        answers = self._client.answers(self._way.writing(text, most) for text, most in texts)
        for (text, most), answer in zip(texts, answers, strict=True):
            whole = self._way.keeps(text) and self._way.counted(answer) in (None, len(text))
            found = self._way.written(answer, most)
            self._keep(text, found if whole or not self._way.goes_on else map(Prediction.of_other_tokens, found))
        self._write_singly([(text, most) for text, most in texts if not self._knows(text)])

    def _write_singly(self, texts: Sequence[tuple[IntArray, int]]) -> None:
        """Ask for one token where a server does not tell the first of several."""
        if any(most == 1 for _, most in texts):
            raise odd(f"{self._name} writes nothing behind a text.")
        if texts:
            self._write([(text, 1) for text, _ in texts])

    def _read(self, drafted: Sequence[tuple[IntArray, IntArray]]) -> None:
        """Let the server read each text with a draft behind it, as far as it reads both as they are."""
        drafted = [(text, self._as_it_is(text, draft)) for text, draft in drafted if not self._knows(text)]
        drafted = [(text, draft) for text, draft in drafted if len(draft)]
        prompts = [np.concatenate([text, draft]) for text, draft in drafted]
        answers = self._client.answers(map(self._way.reading, prompts))
        for (text, _), prompt, answer in zip(drafted, prompts, answers, strict=True):
            self._keep(text, self._way.read(answer, prompt, len(text)))

    def _read_ends(self, texts: Sequence[IntArray]) -> None:
        """Let the server read the end behind texts of an average that it ended, so that it tells how likely that is."""
        if self._end is None or not self._way.reads_prompts:
            return
        self._write([(text, 1) for text in texts])
        end = np.array([self._end], dtype=np.int64)
        ended = {text.tobytes(): text for text in texts if self._known[text.tobytes()].token == END}
        readable = {key: text for key, text in ended.items() if len(self._as_it_is(text, end))}
        for key in readable:
            del self._known[key]
        self._read([(text, end) for text in readable.values()])

    def _as_it_is(self, text: IntArray, draft: IntArray) -> IntArray:
        """As much of a draft as the server does not split into other tokens behind a text."""
        while len(draft) and not self._way.keeps(np.concatenate([text, draft])):
            draft = draft[:-1]
        return draft

    def _keep(self, text: IntArray, predictions: Iterable[Prediction]) -> None:
        """Keep what is known of a text, and of the text with each token that is predicted in turn."""
        for one in predictions:
            self._known.setdefault(text.tobytes(), one)
            text = np.append(text, one.token)

    def _draft(self, ahead: TextsAhead) -> IntArray:
        """The greedy tokens that are known behind the likeliest text, as many as fit behind all; without its end."""
        text, draft = ahead.likeliest, list[int]()
        room = min(_DRAFTED, self._max_length - max(map(len, ahead.texts)))
        while (found := self._known.get(text.tobytes())) is not None and found.token != END and len(draft) < room:
            draft.append(found.token)
            text = np.append(text, found.token)
        return np.array(draft, dtype=np.int64)

    def _chosen(self, texts: Sequence[IntArray], wanted: IntArray) -> NextTokens:
        """The log-probabilities of the wanted tokens behind each text; those that are listed are not asked for."""
        unknown = [[token for token in wanted.tolist() if self._listed(text, token) is None] for text in texts]
        found = self._asked_for([(text, tokens) for text, tokens in zip(texts, unknown, strict=True) if tokens])
        told = [dict(zip(tokens, next(found), strict=True)) if tokens else {} for tokens in unknown]
        values = [
            [new.get(token, self._listed(text, token)) for token in wanted.tolist()]
            for text, new in zip(texts, told, strict=True)
        ]
        return NextTokens(np.array(values, dtype=np.float32), np.tile(wanted, (len(texts), 1)))

    def _listed(self, text: IntArray, token: int) -> float | None:
        found = self._known.get(text.tobytes())
        return None if found is None else found.listed(token)

    def _asked_for(self, several: Sequence[tuple[IntArray, Sequence[int]]]) -> Iterator[list[float]]:
        """The log-probabilities of tokens behind each of several texts."""
        most = self._way.chooses or 1
        parts = [
            (text, tokens[begin : begin + most]) for text, tokens in several for begin in range(0, len(tokens), most)
        ]
        found = self._values_of(parts)
        for _, tokens in several:
            yield [value for _ in range(0, len(tokens), most) for value in next(found)]

    def _values_of(self, parts: Sequence[tuple[IntArray, Sequence[int]]]) -> Iterator[list[float]]:
        """The same for as many tokens as one request tells."""
        way = self._way
        if way.chooses:
            answers = self._client.answers(way.choosing(text, tokens) for text, tokens in parts)
            for (_, tokens), answer in zip(parts, answers, strict=True):
                yield way.chosen(answer, tokens)
        elif way.reads_prompts:
            prompts = [np.append(text, tokens) for text, tokens in parts]
            for prompt, answer in zip(prompts, self._client.answers(map(way.scoring, prompts)), strict=True):
                yield way.scored(answer, prompt, np.array([len(prompt) - 1]))
        else:
            raise UsageError(f"{self._name} lists its likeliest tokens only, and none can be chosen.")

    @property
    def _drafts(self) -> bool:
        """Whether reading a draft tells the likeliest tokens in each of its places."""
        return self._way.reads_prompts and self._way.lists_prompts

    def _knows(self, text: IntArray) -> bool:
        return text.tobytes() in self._known

    def _forget(self, texts: Sequence[IntArray]) -> None:
        """Forget what is known of texts that no current text begins, if that is much."""
        if len(self._known) < _MOST_KNOWN:
            return
        begins = tuple(text.tobytes() for text in texts)
        self._known = {text: known for text, known in self._known.items() if text.startswith(begins)}
