"""Answers that a language model writes after the prompts of a question.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

With one prompt this is In-Context RALM, section 7. Letters of shapes: K prompts of a question, T tokens of a text.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ralm.answering.likelihoods import GoldScore, evidence_before_answers, gold_log_probs
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.sources import QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer, SharedCache
from ralm.protocols import WritingModel
from ralm.reading.generate import Decoder, pieces_of
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, passage_shares
from ralm.reading.rows import PromptState
from ralm.reading.sampling import GenerationOptions, Sampling
from ralm.records import IntArray, Readings
from ralm.storage.store import Store
from ralm.validation import check_length, config_of

_PROMPTS_AT_ONCE: Final = 32
"""Prompts that are continued together."""
_KEY_BYTES: Final = 16
_NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)

AnsweredInput: TypeAlias = tuple[int, "Answer", GoldScore | None]
"""The number of a question, its answer, and the score of its gold answer."""
_TokenTable: TypeAlias = NDArray[np.void]
"""A row of `_token_type` for each token of an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer: its text, the pieces that it was drawn in, and the share of each passage in their probability, largest
    first."""

    text: str
    pieces: Sequence[GeneratedText]
    shares: dict[int, float]

    @classmethod
    def of(cls, pieces: Sequence[GeneratedText]) -> "Answer":
        """The answer that consists of these pieces."""
        tokens = [token for piece in pieces for token in piece.tokens]
        return cls("".join(piece.text for piece in pieces), pieces, passage_shares(tokens))

    @property
    def tokens(self) -> Sequence[GeneratedToken]:
        """The tokens of the answer, without the one that ends it."""
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the answer's tokens; NaN if the model gives text alone."""
        return float(sum(token.log_prob for token in self.tokens))

    @property
    def certified(self) -> float:
        """The share of its tokens that are certainly the most likely ones, see `GeneratedToken`; 1 without tokens."""
        return float(np.mean([token.certified for token in self.tokens])) if self.tokens else 1.0


def check_mixer(parts: Parts, model: WritingModel, options: AnswerOptions) -> None:
    """Raise UsageError if the mixer needs what the model does not give, or what a vote of answers does not read."""
    if options.join == "tokens":
        parts.check_generation(model)
    else:
        parts.check_scoring(model, 'a vote of `join="answers"`')


@dataclass(frozen=True, slots=True)
class AnswerStores:
    """Where the scores of gold answers, the answers, and the replies of a judge are kept for a later process."""

    scores: Store | None = None
    answers: Store | None = None
    replies: Store | None = None


@dataclass(frozen=True, slots=True)
class AnswerMethod:
    """How questions are answered, small enough to be sent to another machine; with a `prompt`, the log-probability of
    gold answers is measured too."""

    options: AnswerOptions
    prompt: QuestionPrompt | None = None

    def __call__(
        self, inputs: Sequence[QuestionInput], model: WritingModel, stores: AnswerStores
    ) -> Iterator[AnsweredInput]:
        """The answer to each question with its number, in order."""
        cache = SharedCache(model)
        scorer = Scorer(model, stores.scores, progress=False, cache=cache)
        writer = _AnswerWriter(model, self.options, scorer, cache, stores.answers)
        for group in groups_of(inputs):
            some = [inputs[number] for number in group]
            cache.mark(prompt for one in some for prompt in one.prompts)
            golds: list[GoldScore | None] = [None] * len(some)
            if self.prompt is not None:
                golds = gold_log_probs(some, self.prompt, scorer, self.options.max_length)
            yield from zip(group, writer.answers(some), golds, strict=True)


@runtime_checkable
class _RemoteModel(Protocol):
    """A model that answers questions on other machines, where it is loaded."""

    def answer_remotely(
        self, method: AnswerMethod, inputs: Sequence[QuestionInput], stores: AnswerStores
    ) -> Iterator[AnsweredInput]: ...


def answer_all(
    inputs: Sequence[QuestionInput],
    model: WritingModel,
    options: AnswerOptions | None = None,
    store: Store | None = None,
) -> Iterator[tuple[int, Answer]]:
    """The answers to questions, each with the number of its question, as soon as they are known.

    Some questions are answered together; an answer does not depend on the others. An answer in the `store` is not
    generated again.
    """
    for number, answer, _ in answer_and_score(inputs, None, model, options, AnswerStores(answers=store)):
        yield number, answer


def answer_and_score(
    inputs: Sequence[QuestionInput],
    prompt: QuestionPrompt | None,
    model: WritingModel,
    options: AnswerOptions | None = None,
    stores: AnswerStores | None = None,
) -> Iterator[AnsweredInput]:
    """As `answer_all`, each answer with the result of `gold_log_probs`: a prompt is read once for both."""
    method, stores = AnswerMethod(options or AnswerOptions(), prompt), stores or AnswerStores()
    if isinstance(model, _RemoteModel):
        return model.answer_remotely(method, inputs, stores)
    return method(inputs, model, stores)


def groups_of(inputs: Sequence[QuestionInput]) -> Iterator[list[int]]:
    """Numbers of questions, in order, that are answered together."""
    group: list[int] = []
    prompts = 0
    for number, one in enumerate(inputs):
        if group and prompts + len(one.prompts) > _PROMPTS_AT_ONCE:
            yield group
            group, prompts = [], 0
        group.append(number)
        prompts += len(one.prompts)
    if group:
        yield group


def room_for_prompts(model: WritingModel, options: AnswerOptions) -> int:
    """The maximum length of a prompt in tokens; UsageError if the model cannot read `max_length`, or no prompt fits."""
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    if length <= options.new_tokens:
        raise UsageError(
            f"an answer of `new_tokens` {options.new_tokens} leaves no room for a prompt in the model length {length}."
        )
    return length - options.new_tokens


class DrawnAnswers:
    """Several answers to one question, one for each seed, drawn together from the average over its prompts.

    Iterating over it draws them: each piece with the number of its answer, as soon as it cannot belong to a stop
    string.
    """

    def __init__(
        self, question: QuestionInput, model: WritingModel, options: AnswerOptions, seeds: Sequence[int]
    ) -> None:
        self._new_tokens = options.new_tokens
        cache = SharedCache(model)
        decoder, scorer = _decoder(model, options, cache), Scorer(model, progress=False, cache=cache)
        cache.mark(question.prompts)
        keys = [_key(question, replace(options, seed=seed)) for seed in seeds]
        for state in _states([question] * len(keys), keys, scorer):
            decoder.add(state)
        self._texts = [StoppedText(question.prompts[0].tokens, model.tokenizer, options.stop) for _ in seeds]
        self._written: list[list[GeneratedText]] = [[] for _ in seeds]
        self._pieces = pieces_of(decoder, self._texts)

    def __iter__(self) -> Iterator[tuple[int, GeneratedText]]:
        for number, piece in self._pieces:
            self._written[number].append(piece)
            yield number, piece

    def answer(self, number: int) -> Answer:
        """An answer, once all are drawn; pieces that were not read are drawn first."""
        deque(self, maxlen=0)
        return Answer.of(self._written[number])

    def is_complete(self, number: int) -> bool:
        """Whether an answer ended at a stop string or the model's end of text, and not after `new_tokens` tokens."""
        return self._texts[number].found or len(self.answer(number).tokens) < self._new_tokens


class _AnswerWriter:
    """Writes answers after prompts, and reads answers that were written before from a store."""

    def __init__(
        self, model: WritingModel, options: AnswerOptions, scorer: Scorer, cache: SharedCache, store: Store | None
    ) -> None:
        self._model = model
        self._options = options
        self._scorer = scorer
        self._cache = cache
        self._store = store

    @cached_property
    def _decoder(self) -> Decoder:
        """One decoder for all questions, so that prefixes that their prompts share are read once."""
        return _decoder(self._model, self._options, self._cache)

    def answers(self, inputs: Sequence[QuestionInput]) -> list[Answer]:
        """The answer to each question; all are written together.

        With `join="tokens"` one text continues all prompts of a question, otherwise one text each.
        """
        if self._options.join == "tokens":
            written = iter(self._continuations([one for one in inputs if one.prompts]))
            return [next(written) if one.prompts else Answer("", [], {}) for one in inputs]
        alone = [QuestionInput(one.question, Readings.single(prompt), ()) for one in inputs for prompt in one.prompts]
        written = iter(self._continuations(alone))
        return [
            _most_voted(
                [next(written) for _ in one.prompts], evidence.weighed(one.prompts) if evidence else one.prompts
            )
            for one, evidence in zip(inputs, evidence_before_answers(inputs, self._scorer), strict=True)
        ]

    def _continuations(self, inputs: Sequence[QuestionInput]) -> list[Answer]:
        """The answer after the prompts of each input."""
        keys = [_key(one, self._options) for one in inputs]
        new = dict(zip(keys, inputs, strict=True))
        stored = {} if self._store is None else self._store.get(map(self._store_key, new))
        known = {
            key: np.frombuffer(stored[store_key], _token_type(len(one.prompts)))
            for key, one in new.items()
            if (store_key := self._store_key(key)) in stored
        }
        new = {key: one for key, one in new.items() if key not in known}
        for key, drawn in zip(new, self._drawn(new) if new else [], strict=True):
            known[key] = drawn
            if self._store is not None:
                self._store.put([(self._store_key(key), drawn.tobytes())])
        return [self._answer(one.prompts, known[key]) for key, one in zip(keys, inputs, strict=True)]

    def _store_key(self, key: bytes) -> bytes:
        """The key of an answer in the store, which depends on where the answer ends, too."""
        ends = repr((self._options.new_tokens, self._options.stop))
        return blake2b(key + ends.encode(), digest_size=_KEY_BYTES).digest()

    def _drawn(self, inputs: Mapping[bytes, QuestionInput]) -> list[_TokenTable]:
        """The tokens after the prompts of each input, as rows of `_token_type`. Its key seeds the draws."""
        numbers = [self._decoder.add(state) for state in _states([*inputs.values()], inputs, self._scorer)]
        written = dict(zip(numbers, (self._text_after(one.prompts) for one in inputs.values()), strict=True))
        drawn: dict[int, list[tuple[Any, ...]]] = {number: [] for number in numbers}
        while self._decoder.unfinished:
            for number, token in self._decoder.step():
                values = (token.token, token.log_prob, token.bound_width, token.certified, token.posteriors_K)
                drawn[number].append(values)
                written[number].add(token)
                if written[number].found:
                    self._decoder.end(number)
        types = (_token_type(len(one.prompts)) for one in inputs.values())
        return [np.array(rows, dtype=kind) for rows, kind in zip(drawn.values(), types, strict=True)]

    def _answer(self, prompts: Readings, drawn: _TokenTable) -> Answer:
        """The answer that consists of these tokens."""
        passages_K = prompts.passages_K
        text = self._text_after(prompts)
        found: list[GeneratedText] = []
        for row in drawn:
            token, log_prob, bound_width, certified, shares_K = row.item()
            found += text.add(GeneratedToken(token, log_prob, passages_K, shares_K, bound_width, certified))
        return Answer.of([*found, *text.rest()])

    def _text_after(self, prompts: Readings) -> StoppedText:
        return StoppedText(prompts[0].tokens, self._model.tokenizer, self._options.stop)


def _token_type(prompts: int) -> np.dtype[np.void]:
    """The stored values of a token of an answer: the numbers of a `GeneratedToken`, and the share of each prompt."""
    numbers = [("token", "<i8"), ("log_prob", "<f4"), ("bound_width", "<f4"), ("certified", "?")]
    return np.dtype([*numbers, ("shares_K", "<f4", (prompts,))])


def _decoder(model: WritingModel, options: AnswerOptions, cache: SharedCache | None = None) -> Decoder:
    sampling = {option.name: getattr(options, option.name) for option in fields(Sampling)}
    return Decoder(model, GenerationOptions(new_tokens=options.new_tokens, **sampling), model.max_length, cache)


def _states(inputs: Sequence[QuestionInput], keys: Iterable[bytes], scorer: Scorer) -> list[PromptState]:
    """The answers that are to be drawn, each with its evidence and a generator that its key seeds."""
    return [
        PromptState(_NO_TOKENS, None, one.prompts, _generator(key), evidence=evidence)
        for one, key, evidence in zip(inputs, keys, evidence_before_answers(inputs, scorer), strict=True)
    ]


def _generator(key: bytes) -> np.random.Generator:
    """The random generator of an answer: the same for the same prompts, whichever others are answered with them."""
    return np.random.default_rng(int.from_bytes(key, "little"))


def _key(one: QuestionInput, sampling: Sampling) -> bytes:
    """A hash of prompts, what decides their weights, and the options that decide the draws of an answer that is not
    greedy."""
    digest = blake2b(digest_size=_KEY_BYTES)
    if sampling.temperature > 0:
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
        digest.update(repr(drawn).encode())
    if one.parts is not None:
        digest.update(json.dumps([config_of(one.parts.mixer, "mixer"), one.evidence], sort_keys=True).encode())
    for prompt, log_weight in zip(one.prompts, one.prompts.log_weights_K.tolist(), strict=True):
        digest.update(len(prompt.tokens).to_bytes(8, "little"))
        digest.update(prompt.tokens.tobytes())
        score = 0.0 if one.parts is None else prompt.score
        numbers = [log_weight, score, 0]  # the key seeds the draws: without the 0 all would be others
        digest.update(np.array(numbers, dtype=np.float64).tobytes())
    return digest.digest()


def _most_voted(answers: Sequence[Answer], prompts: Readings) -> Answer:
    """The answer with the largest sum of weight x exp(mean log-probability of a token) over prompts; the first of
    several. Without prompts, an empty answer.

    White space around answers does not count. An answer of no tokens has weight 0; all answers of a model that gives
    text alone are equally likely.
    """
    if not answers:
        return Answer("", [], {})
    weights = []
    for answer, log_weight in zip(answers, prompts.log_weights_K.tolist(), strict=True):
        likelihood = 0.0 if np.isnan(answer.log_prob) else answer.log_prob / max(1, len(answer.tokens))
        weights.append(float(np.exp(log_weight + likelihood)) if answer.tokens else 0.0)
    texts = [answer.text.strip() for answer in answers]
    totals: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        totals[text] = totals.get(text, 0.0) + weight
    best = max(totals, key=lambda text: totals[text])
    given: dict[int, float] = {}
    for text, prompt, weight in zip(texts, prompts, weights, strict=True):
        if text == best and weight > 0:
            given[prompt.passage] = given.get(prompt.passage, 0.0) + weight / totals[best]
    shares = dict(sorted(given.items(), key=lambda item: -item[1]))
    return Answer(best, answers[texts.index(best)].pieces, shares)
