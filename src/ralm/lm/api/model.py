"""A language model behind an API, and the texts that it continues.

What the server returns decides what the model can do; see `ralm.lm.api.backend`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.api.answers import END, Prediction, lone_prediction, merge_predictions, unexpected
from ralm.lm.api.backend import Backend, Capabilities
from ralm.lm.api.client import Client
from ralm.lm.api.http import ApiRequest
from ralm.protocols import UNLIMITED, FullTokenizer, Tier
from ralm.records import FloatArray, IntArray, NextTokens, ScoringSequence, TextsAhead, log_tail_mass
from ralm.validation import check_scores

_MAX_KNOWN: Final = 4096
"""Texts with a known prediction before old ones are dropped; each holds its tokens."""


class ApiModel:
    """A `WritingModel` behind an API, asked by a backend; if it only lists likely tokens, `score` raises UsageError."""

    def __init__(
        self, name: str, client: Client, backend: Backend, tokenizer: FullTokenizer, capabilities: Capabilities
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
        """What the server returns about the next token; after text, a chosen one may change how the text is split."""
        if self.backend.top_logprobs == 0:
            return "text"
        chosen = self.backend.max_chosen > 0 or (self.backend.scores_prompts and self.backend.config.as_ids)
        return "chosen" if chosen else "top_k"

    @property
    def scores_texts(self) -> bool:
        """Whether the server returns the log-probabilities of given texts."""
        return self.backend.is_exact

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the natural log-probability (float32) of each target; UsageError if the server does not return it."""
        check_scores(self, "scoring")
        return self._scores(passes)

    @property
    def answers_only(self) -> bool:
        """Whether the model only answers messages, and cannot continue a text."""
        return not self.backend.continues_own_text

    def continuations(self) -> "ApiContinuations":
        """Return a new state for continuing texts."""
        return ApiContinuations(self)

    def _scores(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        answers = self.client.answers(request for sequence in passes for request in self._requests(sequence))
        for sequence in passes:
            log_probs: list[float] = []
            while len(log_probs) < len(sequence.targets_P):
                log_probs += next(answers)
            yield np.array(log_probs, dtype=np.float32)

    def _requests(self, sequence: ScoringSequence) -> Iterator[ApiRequest]:
        """Yield requests for the targets: as a prompt, or each as a chosen token, which for one needs less work."""
        tokens, positions = sequence.tokens_N, sequence.targets_P.tolist()
        if self.backend.scores_prompts and len(positions) > 1:
            yield self.backend.scoring(tokens, sequence.targets_P)
        else:
            yield from (self.backend.choice(tokens[:position], [int(tokens[position])]) for position in positions)


class ApiContinuations:
    """Texts that are continued, with the server's predictions: one request generates all tokens that a text needs."""

    def __init__(self, model: ApiModel) -> None:
        self._client = model.client
        self._backend = model.backend
        self._model = model
        self._predictions: dict[bytes, Prediction] = {}

    def read_ahead(self, several: Sequence[TextsAhead]) -> None:
        """Request all tokens that follow a text whose prediction is not known; not for averages of several texts."""
        if len(self._predictions) >= _MAX_KNOWN:  # drop the predictions for texts that no current text begins with
            begins = tuple(text.tobytes() for ahead in several for text in ahead.texts)
            needed = [text for text in self._predictions if text.startswith(begins)]
            self._predictions = {text: self._predictions[text] for text in needed}
        unknown = [ahead for ahead in several if ahead.max_tokens > 0 and not all(map(self._knows, ahead.texts))]
        if not self._backend.continues_own_text and any(ahead.written for ahead in unknown):
            raise self._not_continued(unknown)
        self._generate([(ahead.texts[0], ahead.max_tokens) for ahead in unknown if len(ahead.texts) == 1])
        end = self._model.tokenizer.end_token
        if self._model.tier == "chosen" and end is not None:
            self._read_ends([text for ahead in several if len(ahead.texts) > 1 for text in ahead.texts], end)

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        """Return the predictions as `Continuations` does."""
        self._generate([(text, 1) for text in texts])
        return merge_predictions([self._predictions[text.tobytes()] for text in texts])

    def _read_ends(self, texts: Sequence[IntArray], end: int) -> None:
        """Ask for the log-probability of the end token after texts that the server ends without telling it."""
        self._generate([(text, 1) for text in texts])
        ended = {text.tobytes(): text for text in texts if self._predictions[text.tobytes()].token == END}
        answers = self._client.answers(self._backend.choice(text, [end]) for text in ended.values())
        for text, [log_prob] in zip(ended, answers, strict=True):  # another end may be likelier: nothing else is known
            rest = float(log_tail_mass(np.array([[log_prob]], dtype=np.float32))[0])
            self._predictions[text] = lone_prediction(end, log_prob, rest)

    def _not_continued(self, unknown: Sequence[TextsAhead]) -> Exception:
        """Return the error if an answer to a message would have to be continued."""
        if any(len(ahead.texts) == 1 and self._knows(ahead.texts[0][:-1]) for ahead in unknown):
            return unexpected(
                f"{self._model.name} returns its answer up to a token whose name is the text of several tokens or of "
                "none, such as a part of a character, and cannot continue from there"
            )
        return UsageError(
            f"{self._model.name} answers messages and cannot continue a text that it began: let it answer from one "
            "passage, or from each passage alone, without retrieving again during the answer."
        )

    def _generate(self, texts: Sequence[tuple[IntArray, int]]) -> None:
        """Let the server generate tokens after each text without a known prediction."""
        texts = [(text, count) for text, count in texts if not self._knows(text)]
        answers = self._client.answers(self._backend.generation(text, count) for text, count in texts)
        for (text, _), predictions in zip(texts, answers, strict=True):
            for prediction in predictions:  # of the text, and of the text with each predicted token in turn
                self._predictions.setdefault(text.tobytes(), prediction)
                text = np.append(text, prediction.token)
        missing = [(text, count) for text, count in texts if not self._knows(text)]
        if any(count == 1 for _, count in missing):
            raise unexpected(f"{self._model.name} generates nothing after a text.")
        if missing:  # the server did not return the first of several tokens: request one
            self._generate([(text, 1) for text, _ in missing])

    def chosen(self, texts: Sequence[IntArray], tokens: IntArray) -> NextTokens:
        """Return what `Continuations` does; listed tokens are not requested. UsageError if there are no others."""
        check_scores(self._model, "the choice of other tokens")
        values: dict[tuple[int, int], float] = {}
        parts: list[tuple[int, list[int]]] = []
        size = self._backend.max_chosen or 1
        for row, text in enumerate(texts):
            prediction = self._predictions.get(text.tobytes())
            listed = {token: None if prediction is None else prediction.listed(token) for token in tokens.tolist()}
            values |= {(row, token): value for token, value in listed.items() if value is not None}
            unknown = [token for token, value in listed.items() if value is None]
            parts += [(row, unknown[begin : begin + size]) for begin in range(0, len(unknown), size)]
        answers = self._client.answers(self._backend.choice(texts[row], part) for row, part in parts)
        for (row, part), log_probs in zip(parts, answers, strict=True):
            values |= {(row, token): value for token, value in zip(part, log_probs, strict=True)}
        log_probs_BC = [[values[row, token] for token in tokens.tolist()] for row in range(len(texts))]
        return NextTokens(np.array(log_probs_BC, dtype=np.float32), np.tile(tokens, (len(texts), 1)))

    def _knows(self, text: IntArray) -> bool:
        return text.tobytes() in self._predictions
