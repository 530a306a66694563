"""Answers a language model writes after the prompts of a question, and the likelihood of gold answers there.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

With one prompt this is In-Context RALM, section 7. Letters of shapes: K prompts of a question, T tokens of a text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt, tokens_behind
from ralm.answering.sources import QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer, SharedCache
from ralm.protocols import LanguageModel, Tokenizer, WritingModel
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.generate import Decoder, pieces_of
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, passage_shares
from ralm.reading.rows import PromptState
from ralm.reading.sampling import GenerationOptions, Sampling
from ralm.records import FloatArray, IntArray, PromptPrefix, Request
from ralm.storage.store import Store
from ralm.validation import check_length, scores_given_texts

_NO_CONTEXT: Final[IntArray] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """A text behind the prompts of a question: the natural log-probability of each token behind each prompt (float32,
    K x T), and the logarithm of the weight of each prompt (float64, K)."""

    log_probs_KT: FloatArray
    log_weights_K: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """T."""
        return self.log_probs_KT.shape[1]

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text under the average of all prompts."""
        return float(mixture(self.log_probs_KT, self.log_weights_K).sum(dtype=np.float64))

    @property
    def shares_K(self) -> NDArray[np.float64]:
        """The share of the tokens' probability that came from each prompt, averaged over tokens; they sum to 1."""
        return posterior(self.log_probs_KT, self.log_weights_K).mean(axis=0, dtype=np.float64)


def likelihoods(texts: Sequence[tuple[Sequence[PromptPrefix], IntArray]], scorer: Scorer) -> list[Likelihood]:
    """The likelihood of each text (token ids, at least one) behind its prompts.

    Raises ModelError if a prompt and its text are longer than the model reads.
    """
    requests = [
        Request(document=prompt_prefix.tokens, context=_NO_CONTEXT, targets=tokens)
        for prompt_prefixes, tokens in texts
        for prompt_prefix in prompt_prefixes
    ]
    scored = iter(scorer.log_probs(requests))
    return [
        Likelihood(
            np.stack([next(scored) for _ in prompt_prefixes]),
            np.array([prompt_prefix.log_weight for prompt_prefix in prompt_prefixes], dtype=np.float64),
        )
        for prompt_prefixes, _ in texts
    ]


_TEXTS_AT_ONCE: Final = 32
"""Prompts that are continued together."""
_KEY_BYTES: Final = 16
_TokenTable: TypeAlias = NDArray[np.void]
"""A row of `_token_type` for each token of an answer."""
_NOTHING: IntArray = np.zeros(0, dtype=np.int64)

GoldScore: TypeAlias = tuple[float, int]
"""The natural log-probability of a gold answer, and its number of tokens."""
Answered_co = TypeVar("Answered_co", bound=tuple[Any, ...], covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer: its text, the pieces that it was drawn in, and the share that each passage has in their probability,
    largest first."""

    text: str
    pieces: Sequence[GeneratedText]
    shares: dict[int, float]

    @property
    def tokens(self) -> Sequence[GeneratedToken]:
        """The tokens of the answer, the end of it excluded."""
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the answer's tokens; NaN if the model gives text alone."""
        return float(sum(token.log_prob for token in self.tokens))

    @property
    def certified(self) -> float:
        """The share of its tokens that are the likeliest for certain, see `GeneratedToken`; 1 if it has none."""
        return float(np.mean([token.certified for token in self.tokens])) if self.tokens else 1.0


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """What keeps the scores of gold answers, and the answers themselves, for a later process."""

    scores: Store | None = None
    answers: Store | None = None


def answer_all(
    asked: Sequence[QuestionInput],
    model: WritingModel,
    options: AnswerOptions | None = None,
    store: Store | None = None,
) -> Iterator[tuple[int, Answer]]:
    """The answers to questions, each with the number of its question, as soon as they are known.

    Some questions are answered together; an answer does not depend on the others. What a `store` holds is not
    generated again.
    """
    way = _AnswerAll(options or AnswerOptions())
    return _answered(way, asked, model, KeptAnswers(answers=store))


def answer_and_score(
    asked: Sequence[QuestionInput],
    prompt: QuestionPrompt,
    model: WritingModel,
    options: AnswerOptions | None = None,
    kept: KeptAnswers | None = None,
) -> Iterator[tuple[int, Answer, GoldScore | None]]:
    """As `answer_all`, each answer with what `gold_log_probs` gives: a prompt is read once for both."""
    return _answered(_AnswerAndScore(prompt, options or AnswerOptions()), asked, model, kept or KeptAnswers())


class AnswerMethod(Protocol[Answered_co]):
    """A way of answering: small, so that it can be sent to another machine."""

    def __call__(self, asked: Sequence[QuestionInput], model: WritingModel, kept: KeptAnswers) -> Iterator[Answered_co]:
        """What becomes of each question, its number first, in order."""


def _answered(
    way: AnswerMethod[Answered_co], asked: Sequence[QuestionInput], model: WritingModel, kept: KeptAnswers
) -> Iterator[Answered_co]:
    """Answer questions in a way. A model with a method `answer_remotely` does so itself, on other machines."""
    elsewhere: Callable[..., Iterator[Answered_co]] | None = getattr(model, "answer_remotely", None)
    return way(asked, model, kept) if elsewhere is None else elsewhere(way, asked, kept)


@dataclass(frozen=True, slots=True)
class _AnswerAll:
    options: AnswerOptions

    def __call__(
        self, asked: Sequence[QuestionInput], model: WritingModel, kept: KeptAnswers
    ) -> Iterator[tuple[int, Answer]]:
        writing = _Writing(model, self.options, SharedCache(model), kept.answers)
        for group in groups_of(asked):
            yield from zip(group, writing.answers([asked[number] for number in group]), strict=True)


@dataclass(frozen=True, slots=True)
class _AnswerAndScore:
    prompt: QuestionPrompt
    options: AnswerOptions

    def __call__(
        self, asked: Sequence[QuestionInput], model: WritingModel, kept: KeptAnswers
    ) -> Iterator[tuple[int, Answer, GoldScore | None]]:
        cache = SharedCache(model)
        scorer = Scorer(model, kept.scores, progress=False, cache=cache)
        writing = _Writing(model, self.options, cache, kept.answers)
        for group in groups_of(asked):
            some = [asked[number] for number in group]
            golds = gold_log_probs(some, self.prompt, scorer, self.options.max_length)
            yield from zip(group, writing.answers(some), golds, strict=True)


def answer_of(pieces: Sequence[GeneratedText]) -> Answer:
    """The answer that these pieces are."""
    tokens = [token for piece in pieces for token in piece.tokens]
    return Answer("".join(piece.text for piece in pieces), pieces, passage_shares(tokens))


class DrawnAnswers:
    """Several answers to one question, one for each seed, drawn together from the average over its prompts.

    Iterating over it draws them: each piece with the number of its answer.
    """

    def __init__(self, asked: QuestionInput, model: WritingModel, options: AnswerOptions, seeds: Sequence[int]) -> None:
        self._most = options.new_tokens
        self._decoder = _decoder(model, options)
        for seed in seeds:
            key = _key(asked.prompts, replace(options, seed=seed))
            self._decoder.add(PromptState(_NOTHING, None, asked.prompts, _generator(key)))
        self._texts = [StoppedText(asked.prompts[0].tokens, model.tokenizer, options.stop) for _ in seeds]
        self._pieces: list[list[GeneratedText]] = [[] for _ in seeds]

    def __iter__(self) -> Iterator[tuple[int, GeneratedText]]:
        for number, piece in pieces_of(self._decoder, self._texts):
            self._pieces[number].append(piece)
            yield number, piece

    def answer(self, number: int) -> Answer:
        """An answer, once all are drawn."""
        return answer_of(self._pieces[number])

    def is_complete(self, number: int) -> bool:
        """Whether an answer ended at a stop string or the model's end of text, and not after `new_tokens` tokens."""
        return self._texts[number].found or len(self.answer(number).tokens) < self._most


def _texts(asked: QuestionInput, options: AnswerOptions) -> list[Sequence[PromptPrefix]]:
    """The texts that are continued for a question: one behind all its prompts, or one behind each; none if it has no
    prompts."""
    if options.join == "tokens":
        return [asked.prompts] if asked.prompts else []
    return [[PromptPrefix(prompt_prefix.tokens, prompt_prefix.passages)] for prompt_prefix in asked.prompts]


def gold_log_probs(
    asked: Sequence[QuestionInput], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """The natural log-probability of each question's first gold answer behind its prompts, and its number of tokens.

    None for a question without answers or prompts, for an answer of no tokens, where prompt and answer do not fit into
    `max_length` tokens (None: the model's), and for all if the model tells no log-probabilities of given texts.
    """
    if not scores_given_texts(model):
        return [None] * len(asked)
    longest = max_length or model.max_length
    answers = [_gold_tokens(one, prompt, model.tokenizer) for one in asked]
    fits = [
        0
        < len(gold)
        <= longest + 1 - max((len(prompt_prefix.tokens) for prompt_prefix in one.prompts), default=longest + 1)
        for one, gold in zip(asked, answers, strict=True)
    ]
    texts = [(one.prompts, gold) for one, gold, fit in zip(asked, answers, fits, strict=True) if fit]
    found = iter(likelihoods(texts, Scorer.of(model)))
    return [_sum_and_count(next(found)) if fit else None for fit in fits]


def _sum_and_count(gold: Likelihood) -> GoldScore:
    return gold.log_prob, gold.tokens


def _gold_tokens(asked: QuestionInput, prompt: QuestionPrompt, tokenizer: Tokenizer) -> IntArray:
    if not (asked.question.answers and asked.prompts):
        return _NOTHING
    return tokens_behind(asked.prompts[0].tokens, prompt.answered(asked.question.answers[0]), tokenizer)


def room_for_prompts(model: WritingModel, options: AnswerOptions) -> int:
    """The most tokens of a prompt; UsageError if the model cannot read `max_length`, or if no prompt fits."""
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    if length <= options.new_tokens:
        raise UsageError(
            f"an answer of `new_tokens` {options.new_tokens} leaves no room for a prompt in the model length {length}."
        )
    return length - options.new_tokens


def groups_of(asked: Sequence[QuestionInput]) -> Iterator[list[int]]:
    """Numbers of questions, in order, that are answered together."""
    group: list[int] = []
    texts = 0
    for number, one in enumerate(asked):
        if group and texts + len(one.prompts) > _TEXTS_AT_ONCE:
            yield group
            group, texts = [], 0
        group.append(number)
        texts += len(one.prompts)
    if group:
        yield group


class _Writing:
    """Writes answers behind prompts, and reads from a store those that were written before."""

    def __init__(self, model: WritingModel, options: AnswerOptions, cache: SharedCache, store: Store | None) -> None:
        self._model = model
        self._options = options
        self._cache = cache
        self._store = store

    @cached_property
    def _decoder(self) -> Decoder:
        """One for all questions: what their prompts share with those before is not read again."""
        return _decoder(self._model, self._options, self._cache)

    def answers(self, asked: Sequence[QuestionInput]) -> list[Answer]:
        """The answer to each question; all are written together."""
        texts = [_texts(one, self._options) for one in asked]
        written = iter(self._behind([text for some in texts for text in some]))
        several = [[next(written) for _ in some] for some in texts]
        return [_joined(answers, one, self._options) for answers, one in zip(several, asked, strict=True)]

    def _behind(self, texts: Sequence[Sequence[PromptPrefix]]) -> list[Answer]:
        """The answer behind each group of prompts."""
        keys = [_key(prompt_prefixes, self._options) for prompt_prefixes in texts]
        known = self._known(dict(zip(keys, texts, strict=True)))
        new = {key: prompt_prefixes for key, prompt_prefixes in zip(keys, texts, strict=True) if key not in known}
        for key, drawn in zip(new, self._drawn(new) if new else [], strict=True):
            known[key] = drawn
            if self._store is not None:
                self._store.put([(self._store_key(key), drawn.tobytes())])
        return [self._answer(prompt_prefixes, known[key]) for key, prompt_prefixes in zip(keys, texts, strict=True)]

    def _known(self, texts: Mapping[bytes, Sequence[PromptPrefix]]) -> dict[bytes, _TokenTable]:
        """The tokens of those answers that the store has."""
        store_keys = {self._store_key(key): key for key in texts}
        found = {} if self._store is None else self._store.get(store_keys)
        return {
            (key := store_keys[store_key]): np.frombuffer(value, _token_type(len(texts[key])))
            for store_key, value in found.items()
        }

    def _store_key(self, key: bytes) -> bytes:
        """The key of an answer in the store: where an answer ends counts, too."""
        ends = repr((self._options.new_tokens, self._options.stop))
        return blake2b(key + ends.encode(), digest_size=_KEY_BYTES).digest()

    def _drawn(self, texts: Mapping[bytes, Sequence[PromptPrefix]]) -> list[_TokenTable]:
        """The tokens behind each group of prompts, as rows of `_token_type`. The key of a group seeds its draws."""
        numbers = [
            self._decoder.add(PromptState(_NOTHING, None, prompt_prefixes, _generator(key)))
            for key, prompt_prefixes in texts.items()
        ]
        written = dict(zip(numbers, map(self._text_behind, texts.values()), strict=True))
        drawn: dict[int, list[tuple[Any, ...]]] = {number: [] for number in numbers}
        while self._decoder.unfinished:
            for number, token in self._decoder.step():
                drawn[number].append(
                    (token.token, token.log_prob, token.bound_width, token.certified, token.posteriors_K)
                )
                written[number].add(token)
                if written[number].found:
                    self._decoder.end(number)
        types = (_token_type(len(prompt_prefixes)) for prompt_prefixes in texts.values())
        return [np.array(rows, dtype=kind) for rows, kind in zip(drawn.values(), types, strict=True)]

    def _answer(self, prompt_prefixes: Sequence[PromptPrefix], drawn: _TokenTable) -> Answer:
        """The answer that these tokens are."""
        passages_K = np.array([prompt_prefix.passage for prompt_prefix in prompt_prefixes], dtype=np.int64)
        text = self._text_behind(prompt_prefixes)
        found: list[GeneratedText] = []
        for row in drawn:
            token, log_prob, unlisted, certified, shares_K = row.item()
            found += text.add(GeneratedToken(token, log_prob, passages_K, shares_K, unlisted, certified))
        return answer_of([*found, *text.rest()])

    def _text_behind(self, prompt_prefixes: Sequence[PromptPrefix]) -> StoppedText:
        return StoppedText(prompt_prefixes[0].tokens, self._model.tokenizer, self._options.stop)


def _token_type(prompts: int) -> np.dtype[np.void]:
    """What is kept of a token of an answer: the numbers of a `GeneratedToken`, and the share of each prompt."""
    numbers = [("token", "<i8"), ("log_prob", "<f4"), ("unlisted", "<f4"), ("certified", "?")]
    return np.dtype([*numbers, ("shares_K", "<f4", (prompts,))])


def _decoder(model: WritingModel, options: AnswerOptions, cache: SharedCache | None = None) -> Decoder:
    drawn = {option.name: getattr(options, option.name) for option in fields(Sampling)}
    return Decoder(model, GenerationOptions(new_tokens=options.new_tokens, **drawn), model.max_length, cache)


def _generator(key: bytes) -> np.random.Generator:
    """The random generator of an answer: the same for the same prompts, whatever is answered with them."""
    return np.random.default_rng(int.from_bytes(key, "little"))


def _key(prompt_prefixes: Sequence[PromptPrefix], sampling: Sampling) -> bytes:
    """A hash of prompts, their weights, and what decides the draws of an answer that is not greedy."""
    digest = blake2b(digest_size=_KEY_BYTES)
    if sampling.temperature > 0:
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
        digest.update(repr(drawn).encode())
    for prompt_prefix in prompt_prefixes:
        digest.update(len(prompt_prefix.tokens).to_bytes(8, "little"))
        digest.update(prompt_prefix.tokens.tobytes())
        digest.update(np.float64(prompt_prefix.log_weight).tobytes())
    return digest.digest()


def _joined(answers: Sequence[Answer], asked: QuestionInput, options: AnswerOptions) -> Answer:
    """The answer to a question, of those of its texts; an empty one if it has none."""
    if not answers:
        return Answer("", [], {})
    return answers[0] if options.join == "tokens" else _added_up(answers, asked.prompts)


def _added_up(answers: Sequence[Answer], prompt_prefixes: Sequence[PromptPrefix]) -> Answer:
    """Of the answers of several prompts the one with the largest sum of weight x exp(mean log-probability of a token);
    of equal ones the first. Answers are equal without the white space around them; an answer of no tokens counts 0.
    All answers of a model that gives text alone are equally likely.
    """
    worths = [_worth(answer, prompt_prefix) for answer, prompt_prefix in zip(answers, prompt_prefixes, strict=True)]
    totals: dict[str, float] = {}
    for answer, worth in zip(answers, worths, strict=True):
        totals[answer.text.strip()] = totals.get(answer.text.strip(), 0.0) + worth
    best = max(totals, key=lambda text: totals[text])
    first = next(answer for answer in answers if answer.text.strip() == best)
    given: dict[int, float] = {}
    for answer, prompt_prefix, worth in zip(answers, prompt_prefixes, worths, strict=True):
        if answer.text.strip() == best and worth > 0:
            given[prompt_prefix.passage] = given.get(prompt_prefix.passage, 0.0) + worth / totals[best]
    return Answer(best, first.pieces, dict(sorted(given.items(), key=lambda item: -item[1])))


def _worth(answer: Answer, prompt_prefix: PromptPrefix) -> float:
    """What an answer counts, by its prompt and its likelihood, if that is known."""
    if not answer.tokens:
        return 0.0
    likelihood = 0.0 if np.isnan(answer.log_prob) else answer.log_prob / len(answer.tokens)
    return float(np.exp(prompt_prefix.log_weight + likelihood))
