"""Answers that a language model writes after the prompts of a question, and how likely texts are after them.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

With one prompt this is In-Context RALM, section 7. Scored texts are gold answers, choices, and the question itself as
evidence. Letters of shapes: K prompts of a question, E tokens of evidence at their ends, T tokens of a text, N = E + T.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt, tokens_after
from ralm.answering.sources import QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer, SharedCache, groups_that_fit
from ralm.protocols import LanguageModel, WritingModel, traits_of
from ralm.reading import generate, rows
from ralm.reading.parts import IN_CONTEXT, Evidence
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, passage_shares
from ralm.reading.sampling import GenerationOptions, Sampling
from ralm.reading.score import mixed
from ralm.records import FloatArray, IntArray, Readings, Request
from ralm.storage.store import Store
from ralm.validation import check_length, config_of, scores_given_texts

NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)

GoldScore: TypeAlias = tuple[float, int]
"""The natural log-probability of a gold answer, and its number of tokens."""
AnsweredInput: TypeAlias = tuple[int, "Answer", GoldScore | None]
"""The number of a question, its answer, and the score of its gold answer."""
_KEY_BYTES: Final = 16
_Sourced = TypeVar("_Sourced")


@dataclass(frozen=True, slots=True, eq=False)
class TextLikelihood:
    """The log-probability of each token (float32, T) of a text after prompts, and each prompt's share (T x K)."""

    log_probs_T: FloatArray
    shares_TK: FloatArray

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text."""
        return float(self.log_probs_T.sum(dtype=np.float64))

    def shares(self, prompts: Readings) -> dict[int, float]:
        """Return the share of each passage in the tokens' probability, averaged over tokens."""
        return shares_by_passage(prompts, self.shares_TK.mean(axis=0, dtype=np.float64).tolist())


def shares_by_passage(prompts: Readings, shares_K: Sequence[float]) -> dict[int, float]:
    """Return the share of each passage, largest first, from that of each prompt."""
    shares = defaultdict[int, float](float)
    for prompt, share in zip(prompts, shares_K, strict=True):
        if share > 0:
            shares[prompt.passage] += share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def likelihoods(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[TextLikelihood]:
    """Return the likelihood of each text, at least a token, after its prompts; ModelError if they are too long."""
    for asked, _ in texts:
        (asked.parts or IN_CONTEXT).require_average("the likelihood of an answer")
    return [
        TextLikelihood(*mixed(asked.parts or IN_CONTEXT, asked.prompts, log_probs_KN, len(tokens)))
        for (asked, tokens), log_probs_KN in zip(texts, scored_texts(texts, scorer), strict=True)
    ]


def evidence_before_answers(inputs: Sequence[QuestionInput], scorer: Scorer) -> list[Evidence | None]:
    """Return the evidence for the first token of each answer; None for a question whose mixer needs none."""
    scored = iter(scored_texts([(asked, NO_TOKENS) for asked in inputs if asked.evidence], scorer))
    evidence: list[Evidence | None] = []
    for asked in inputs:
        log_probs_KE = next(scored) if asked.evidence else np.zeros((len(asked.prompts), 0), dtype=np.float32)
        evidence.append(None if asked.parts is None else Evidence(asked.parts, log_probs_KE))
    return evidence


def scored_texts(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[FloatArray]:
    """Return log-probabilities (float32, K x N) of the evidence before each text, and of the text, after prompts."""
    requests = [
        Request(document, NO_TOKENS, np.concatenate([evidence, tokens]))
        for asked, tokens in texts
        for prompt in asked.prompts
        for document, evidence in [np.split(prompt.tokens, [len(prompt.tokens) - asked.evidence])]
    ]
    scored = iter(scorer.log_probs(requests))
    return [np.stack([next(scored) for _ in asked.prompts]) for asked, _ in texts]


def gold_log_probs(
    inputs: Sequence[QuestionInput], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """Return the log-probability of each question's first gold answer and its tokens; None if it cannot be scored."""
    if not scores_given_texts(model):
        return [None] * len(inputs)
    length = (max_length or model.max_length) + 1  # the last token is predicted, not read
    texts: dict[int, tuple[QuestionInput, IntArray]] = {}
    for place, asked in enumerate(inputs):
        if asked.question.answers and asked.prompts and not (asked.parts is not None and asked.parts.contrasts):
            answer = prompt.format_answer(asked.question.answers[0])
            gold = tokens_after(asked.prompts[0].tokens, answer, model.tokenizer)
            if 0 < len(gold) <= length - max(len(each.tokens) for each in asked.prompts):
                texts[place] = asked, gold
    scores = dict(zip(texts, likelihoods([*texts.values()], Scorer.of(model)), strict=True))
    return [(scores[place].log_prob, len(texts[place][1])) if place in scores else None for place in range(len(inputs))]


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer: its text, its pieces, and the share of each passage in their probability, largest first."""

    text: str
    pieces: Sequence[GeneratedText]
    shares: dict[int, float]

    @classmethod
    def of(cls, pieces: Sequence[GeneratedText]) -> "Answer":
        """Return the answer that consists of these pieces."""
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


def answer_all(
    inputs: Sequence[QuestionInput],
    model: WritingModel,
    options: AnswerOptions | None = None,
    store: Store | None = None,
    prompt: QuestionPrompt | None = None,
) -> Iterator[AnsweredInput]:
    """Yield each answer with its question's number, and with a `prompt` the result of `gold_log_probs`."""
    options = options or AnswerOptions()
    writer = _AnswerWriter(model, options, store)
    for group in groups_of(inputs, model, options.new_tokens):
        asked = [inputs[number] for number in group]
        golds: list[GoldScore | None] = [None] * len(asked)
        if prompt is not None:
            golds = gold_log_probs(asked, prompt, writer.scorer, options.max_length)
        yield from zip(group, writer.answers(asked), golds, strict=True)


def groups_of(inputs: Sequence[QuestionInput], model: LanguageModel, new_tokens: int) -> Iterator[range]:
    """Yield the numbers of questions that are answered together: those whose answers the model's memory holds."""
    lengths = [[len(prompt.tokens) + new_tokens for prompt in question.prompts] for question in inputs]
    return groups_that_fit(lengths, traits_of(model).tokens_at_once)


def room_for_prompts(model: WritingModel, options: AnswerOptions) -> int:
    """Return the maximum tokens of a prompt; UsageError if the model cannot read `max_length`, or none fits."""
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    if length <= options.new_tokens:
        raise UsageError(
            f"an answer of `new_tokens` {options.new_tokens} leaves no room for a prompt in the model length {length}."
        )
    return length - options.new_tokens


class AnswerStreams(Generic[_Sourced]):
    """Numbers and next pieces of answers, one for each seed; no piece holds a part of a stop string."""

    def __init__(
        self,
        question: QuestionInput,
        model: WritingModel,
        options: AnswerOptions,
        seeds: Sequence[int],
        source: Callable[[Answer], _Sourced],
    ) -> None:
        self.passages = [number for prompt in question.prompts for number in prompt.passages]
        self.prompt_tokens = sum(len(prompt.tokens) for prompt in question.prompts)
        self._source = source
        self._new_tokens = options.new_tokens
        cache = SharedCache(model)
        decoder, scorer = _decoder(model, options, cache), Scorer(model, progress=False, cache=cache)
        keys = [_key(question, replace(options, seed=seed)) for seed in seeds]
        for state in _states([question] * len(keys), keys, scorer):
            decoder.add(state)
        self._texts = [StoppedText(question.prompts[0].tokens, model.tokenizer, options.stop) for _ in seeds]
        self._written: list[list[GeneratedText]] = [[] for _ in seeds]
        self._pieces = generate.pieces_of(decoder, self._texts)

    def __iter__(self) -> Iterator[tuple[int, GeneratedText]]:
        for number, piece in self._pieces:
            self._written[number].append(piece)
            yield number, piece

    def with_sources(self, number: int = 0) -> _Sourced:
        """Return an answer with its sources, once all are drawn; pieces that were not read are drawn first."""
        return self._source(self._answer(number))

    def is_complete(self, number: int) -> bool:
        """Return whether an answer ended at a stop string or the model's end of text, not after `new_tokens` tokens."""
        return self._texts[number].found or len(self._answer(number).tokens) < self._new_tokens

    def _answer(self, number: int) -> Answer:
        deque(self, maxlen=0)
        return Answer.of(self._written[number])


class _AnswerWriter:
    def __init__(self, model: WritingModel, options: AnswerOptions, store: Store | None) -> None:
        self.cache = SharedCache(model)
        self.scorer = Scorer(model, store, progress=False, cache=self.cache)
        self._model = model
        self._options = options
        self._store = store

    def answers(self, inputs: Sequence[QuestionInput]) -> list[Answer]:
        """Return the answer to each question: one text after all its prompts, or the best of one text each."""
        if self._options.join == "tokens":
            written = iter(self._continuations([asked for asked in inputs if asked.prompts]))
            return [next(written) if asked.prompts else Answer("", [], {}) for asked in inputs]
        alone = [QuestionInput(asked.question, Readings.single(prompt)) for asked in inputs for prompt in asked.prompts]
        written = iter(self._continuations(alone))
        return [
            _most_voted(
                [next(written) for _ in asked.prompts], evidence.weighed(asked.prompts) if evidence else asked.prompts
            )
            for asked, evidence in zip(inputs, evidence_before_answers(inputs, self.scorer), strict=True)
        ]

    def _continuations(self, inputs: Sequence[QuestionInput]) -> list[Answer]:
        keys = [_key(asked, self._options) for asked in inputs]
        new = dict(zip(keys, inputs, strict=True))
        stored = {} if self._store is None else self._store.get(map(self._store_key, new))
        written = {key: stored[store_key] for key in new if (store_key := self._store_key(key)) in stored}
        new = {key: asked for key, asked in new.items() if key not in written}
        for key, drawn in zip(new, self._drawn(new) if new else [], strict=True):
            written[key] = drawn
            if self._store is not None:
                self._store.put([(self._store_key(key), drawn)])
        return [self._answer(asked.prompts, written[key]) for key, asked in zip(keys, inputs, strict=True)]

    def _store_key(self, key: bytes) -> bytes:
        """Return the key of an answer in the store, which depends on where the answer ends, too."""
        ends = repr((self._options.new_tokens, self._options.stop))
        return blake2b(key + ends.encode(), digest_size=_KEY_BYTES).digest()

    def _drawn(self, inputs: Mapping[bytes, QuestionInput]) -> Iterator[bytes]:
        """Return the tokens after the prompts of each input, as rows of `_token_type`; its key seeds the draws."""
        decoder = _decoder(self._model, self._options, self.cache)
        numbers = [decoder.add(state) for state in _states([*inputs.values()], inputs, self.scorer)]
        written = dict(zip(numbers, (self._text_after(asked.prompts) for asked in inputs.values()), strict=True))
        rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in numbers}
        while decoder.unfinished:
            for number, token in decoder.step():
                values = (token.token, token.log_prob, token.bound_width, token.certified, token.posteriors_K)
                rows[number].append(values)
                written[number].add(token)
                if written[number].found:
                    decoder.end(number)
        types = (_token_type(len(asked.prompts)) for asked in inputs.values())
        return (np.array(each, dtype=kind).tobytes() for each, kind in zip(rows.values(), types, strict=True))

    def _answer(self, prompts: Readings, drawn: bytes) -> Answer:
        passages_K, text = prompts.passages_K, self._text_after(prompts)
        pieces: list[GeneratedText] = []
        for row in np.frombuffer(drawn, _token_type(len(prompts))):
            token, log_prob, bound_width, certified, shares_K = row.item()
            pieces += text.add(GeneratedToken(token, log_prob, passages_K, shares_K, bound_width, certified))
        return Answer.of([*pieces, *text.rest()])

    def _text_after(self, prompts: Readings) -> StoppedText:
        return StoppedText(prompts[0].tokens, self._model.tokenizer, self._options.stop)


def _token_type(prompts: int) -> np.dtype[np.void]:
    """Return the stored values of a token: the numbers of a `GeneratedToken`, and the share of each prompt."""
    numbers = [("token", "<i8"), ("log_prob", "<f4"), ("bound_width", "<f4"), ("certified", "?")]
    return np.dtype([*numbers, ("shares_K", "<f4", (prompts,))])


def _decoder(model: WritingModel, options: AnswerOptions, cache: SharedCache) -> generate.Decoder:
    drawn = {option.name: getattr(options, option.name) for option in fields(Sampling)}
    return generate.Decoder(model, GenerationOptions(new_tokens=options.new_tokens, **drawn), model.max_length, cache)


def _states(inputs: Sequence[QuestionInput], keys: Iterable[bytes], scorer: Scorer) -> list[rows.PromptState]:
    """Return the answers to draw, each with its evidence and a generator seeded by its key alone."""
    seeded = (np.random.default_rng(int.from_bytes(key, "little")) for key in keys)
    return [
        rows.PromptState(NO_TOKENS, None, asked.prompts, generator, evidence=evidence)
        for asked, generator, evidence in zip(inputs, seeded, evidence_before_answers(inputs, scorer), strict=True)
    ]


def _key(asked: QuestionInput, sampling: Sampling) -> bytes:
    """Return a hash of prompts, what decides their weights, and the options of the draws unless they are greedy."""
    digest = blake2b(digest_size=_KEY_BYTES)
    if sampling.temperature > 0:
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
        digest.update(repr(drawn).encode())
    if asked.parts is not None:
        digest.update(json.dumps([config_of(asked.parts.mixer, "mixer"), asked.evidence], sort_keys=True).encode())
    for prompt, log_weight in zip(asked.prompts, asked.prompts.log_weights_K.tolist(), strict=True):
        digest.update(len(prompt.tokens).to_bytes(8, "little"))
        digest.update(prompt.tokens.tobytes())
        score = 0.0 if asked.parts is None else prompt.score
        numbers = [log_weight, score, 0]  # the key seeds the draws: without the 0 all would be others
        digest.update(np.array(numbers, dtype=np.float64).tobytes())
    return digest.digest()


def _most_voted(answers: Sequence[Answer], prompts: Readings) -> Answer:
    """Return the answer of the largest sum of weight x exp(mean log-probability of a token), or an empty one."""
    if not answers:
        return Answer("", [], {})
    weights, totals = [], defaultdict[str, float](float)
    texts = [answer.text.strip() for answer in answers]
    for answer, text, log_weight in zip(answers, texts, prompts.log_weights_K.tolist(), strict=True):
        likelihood = 0.0 if np.isnan(answer.log_prob) else answer.log_prob / max(1, len(answer.tokens))
        weights.append(float(np.exp(log_weight + likelihood)) if answer.tokens else 0.0)
        totals[text] += weights[-1]
    best = max(totals, key=lambda text: totals[text])
    shares_K = [
        weight / totals[best] if text == best and weight else 0.0 for text, weight in zip(texts, weights, strict=True)
    ]
    return Answer(best, answers[texts.index(best)].pieces, shares_by_passage(prompts, shares_K))
