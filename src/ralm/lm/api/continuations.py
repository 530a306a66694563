"""Continues texts with a model behind an API: keeps the server's predictions, and reads several tokens ahead.

One text: the server generates all tokens that will be needed in one request. Several texts whose predictions are
averaged: the most likely text drafts some tokens; then one request for each of the others reads that draft and returns
the top tokens at each position. While the average writes the draft, no more requests are needed. Predictions do not
depend on how they were requested, so drafts change the number of requests and nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ralm.errors import UsageError
from ralm.lm.api.backends import END, Backend, unexpected
from ralm.lm.api.client import Client
from ralm.lm.api.predictions import Prediction, merge_predictions
from ralm.records import IntArray, NextTokens, TextsAhead

_MAX_KNOWN: Final = 4096
"""Texts with a known prediction before old ones are dropped; each holds its tokens."""
_DRAFTED: Final = 8
"""Tokens of a draft; tokens after a mismatch are discarded."""


class ApiContinuations:
    """The predictions of a server for the next tokens of texts of at most `max_length` tokens.

    `end` is the token that ends a text, if it is known.
    """

    def __init__(self, client: Client, backend: Backend, name: str, max_length: int, end: int | None = None) -> None:
        self._client = client
        self._backend = backend
        self._name = name
        self._max_length = max_length
        self._end = end
        self._known: dict[bytes, Prediction] = {}

    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        """Request several tokens at once for averages with a text whose prediction is not known."""
        if len(self._known) >= _MAX_KNOWN:  # drop the predictions for texts that no current text begins with
            begins = tuple(text.tobytes() for one in several for text in one.texts)
            self._known = {text: known for text, known in self._known.items() if text.startswith(begins)}
        unknown = [one for one in several if one.max_tokens > 0 and not all(map(self._knows, one.texts))]
        if not self._backend.continues_own_text and any(one.written for one in unknown):
            raise self._not_continued(unknown)
        alone = {one.texts[0].tobytes(): (one.texts[0], one.max_tokens) for one in unknown if len(one.texts) == 1}
        drafts = self._backend.scores_prompts and self._backend.lists_prompt_tokens
        drafting = [one for one in unknown if drafts and len(one.texts) > 1 and one.max_tokens > 1]
        first = {one.heaviest.tobytes(): (one.heaviest, min(one.max_tokens, _DRAFTED)) for one in drafting}
        self._generate([*(first | alone).values()])
        self._read([(text, self._draft(one)) for one in drafting for text in one.texts])
        self._read_ends([text for one in several if len(one.texts) > 1 for text in one.texts])

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """As `Continuations.next_tokens`; UsageError if the server returns no log-probabilities of `wanted`."""
        if wanted is not None:
            return self._chosen(texts, wanted)
        self._generate([(text, 1) for text in {text.tobytes(): text for text in texts}.values()])
        return merge_predictions([self._known[text.tobytes()] for text in texts])

    def _not_continued(self, unknown: Sequence[TextsAhead]) -> Exception:
        """The error if an answer to a message would have to be continued."""
        if any(len(one.texts) == 1 and self._knows(one.texts[0][:-1]) for one in unknown):
            return unexpected(
                f"{self._name} returns its answer up to a token whose name is the text of several tokens or of none, "
                "such as a part of a character, and cannot continue from there"
            )
        return UsageError(
            f"{self._name} answers messages and cannot continue a text that it began: let it answer from one passage, "
            "or from each passage alone, without retrieving again during the answer."
        )

    def _generate(self, texts: Sequence[tuple[IntArray, int]]) -> None:
        """Let the server generate tokens after each text without a known prediction."""
        texts = [(text, count) for text, count in texts if not self._knows(text)]
        backend = self._backend
        answers = self._client.answers(backend.generation_request(text, count) for text, count in texts)
        for (text, count), answer in zip(texts, answers, strict=True):
            same = backend.keeps_tokens(text) and backend.prompt_token_count(answer) in (None, len(text))
            found = backend.generated(answer, count)
            if not same and backend.continues_own_text:  # other tokens were read: nothing bounds those not listed
                found = [replace(one, rest=0.0) for one in found]
            self._keep(text, found)
        missing = [(text, count) for text, count in texts if not self._knows(text)]
        if any(count == 1 for _, count in missing):
            raise unexpected(f"{self._name} generates nothing after a text.")
        if missing:  # the server did not return the first of several tokens: request one
            self._generate([(text, 1) for text, _ in missing])

    def _read(self, drafted: Sequence[tuple[IntArray, IntArray]]) -> None:
        """Let the server read each text followed by a draft, as far as it reads the same tokens."""
        drafted = [(text, self._unchanged(text, draft)) for text, draft in drafted if not self._knows(text)]
        drafted = [(text, draft) for text, draft in drafted if len(draft)]
        prompts = [np.concatenate([text, draft]) for text, draft in drafted]
        answers = self._client.answers(map(self._backend.prompt_request, prompts))
        for (text, _), prompt, answer in zip(drafted, prompts, answers, strict=True):
            self._keep(text, self._backend.prompt_predictions(answer, prompt, len(text)))

    def _read_ends(self, texts: Sequence[IntArray]) -> None:
        """Let the server read the end token after texts of an average that it ended, to get its log-probability."""
        if self._end is None or not self._backend.scores_prompts:
            return
        self._generate([(text, 1) for text in texts])
        end = np.array([self._end], dtype=np.int64)
        ended = {text.tobytes(): text for text in texts if self._known[text.tobytes()].token == END}
        readable = {key: text for key, text in ended.items() if len(self._unchanged(text, end))}
        for key in readable:
            del self._known[key]
        self._read([(text, end) for text in readable.values()])

    def _unchanged(self, text: IntArray, draft: IntArray) -> IntArray:
        """The beginning of a draft that the server does not split into other tokens after a text."""
        while len(draft) and not self._backend.keeps_tokens(np.concatenate([text, draft])):
            draft = draft[:-1]
        return draft

    def _keep(self, text: IntArray, predictions: Iterable[Prediction]) -> None:
        """Keep the prediction for a text, and for the text with each predicted token in turn."""
        for one in predictions:
            self._known.setdefault(text.tobytes(), one)
            text = np.append(text, one.token)

    def _draft(self, ahead: TextsAhead) -> IntArray:
        """The known greedy tokens after the most likely text, as many as fit after all texts; without its end."""
        text, draft = ahead.heaviest, list[int]()
        room = min(_DRAFTED, self._max_length - max(map(len, ahead.texts)))
        while (found := self._known.get(text.tobytes())) is not None and found.token != END and len(draft) < room:
            draft.append(found.token)
            text = np.append(text, found.token)
        return np.array(draft, dtype=np.int64)

    def _chosen(self, texts: Sequence[IntArray], wanted: IntArray) -> NextTokens:
        """The log-probabilities of the wanted tokens after each text; listed ones are not requested."""
        values: dict[tuple[int, int], float] = {}
        parts: list[tuple[int, list[int]]] = []
        size = self._backend.max_chosen or 1
        for row, text in enumerate(texts):
            known = self._known.get(text.tobytes())
            listed = {token: None if known is None else known.listed(token) for token in wanted.tolist()}
            values |= {(row, token): value for token, value in listed.items() if value is not None}
            unknown = [token for token, value in listed.items() if value is None]
            parts += [(row, unknown[begin : begin + size]) for begin in range(0, len(unknown), size)]
        found = self._requested([(texts[row], tokens) for row, tokens in parts]) if parts else iter(())
        for (row, tokens), log_probs in zip(parts, found, strict=True):
            values |= {(row, token): value for token, value in zip(tokens, log_probs, strict=True)}
        log_probs_BC = [[values[row, token] for token in wanted.tolist()] for row in range(len(texts))]
        return NextTokens(np.array(log_probs_BC, dtype=np.float32), np.tile(wanted, (len(texts), 1)))

    def _requested(self, parts: Sequence[tuple[IntArray, Sequence[int]]]) -> Iterator[list[float]]:
        """The log-probabilities of tokens after each text, one request each."""
        backend = self._backend
        if backend.max_chosen:
            answers = self._client.answers(backend.choice_request(text, tokens) for text, tokens in parts)
            for (_, tokens), answer in zip(parts, answers, strict=True):
                yield backend.chosen_log_probs(answer, tokens)
        elif backend.scores_prompts:
            prompts = [np.append(text, tokens) for text, tokens in parts]
            answers = self._client.answers(map(backend.scoring_request, prompts))
            for prompt, answer in zip(prompts, answers, strict=True):
                yield backend.scored_log_probs(answer, prompt, np.array([len(prompt) - 1]))
        else:
            raise UsageError(f"{self._name} only lists its most likely tokens, and none can be chosen.")

    def _knows(self, text: IntArray) -> bool:
        return text.tobytes() in self._known
