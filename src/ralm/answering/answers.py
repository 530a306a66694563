"""Answers of a language model to questions, with passages in the prompt, and how likely the gold answers are.

    p(y | q) = sum over prompts d of  weight_d  p(y | prompt_d)          (REPLUG, Eq. 2, token by token)

With one prompt this is In-Context RALM, section 7. Knows prompts, passages and models; knows nothing of files or of how
answers are judged. Letters of shapes: K prompts of a question.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from ralm.answering.conversation import Conversation
from ralm.answering.likelihoods import Likelihood, likelihoods
from ralm.answering.options import AnswerOptions, AnswerSemantics
from ralm.answering.prompt_tokens import Cut, Encoded, PromptEncoder, tokens_behind
from ralm.answering.prompts import PromptText, QuestionPrompt
from ralm.answering.questions import Question
from ralm.errors import UsageError
from ralm.lm.journal import MemoryJournal
from ralm.lm.scoring import Scorer
from ralm.lm.shared import SharedCache
from ralm.protocols import LanguageModel, Reader, Tokenizer, WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.reading.generate import Decoder, pieces_of
from ralm.reading.in_context import InContext
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, shares
from ralm.reading.rows import PromptState
from ralm.reading.sampling import GenerationOptions, Sampling
from ralm.reading.score import fronts_of
from ralm.records import NO_PASSAGE, FloatArray, Front, IntArray, Passage, Passages
from ralm.validation import check_length, tells_scores

_TEXTS_AT_ONCE: Final = 32
"""Prompts that are continued together."""
_KEY_BYTES: Final = 16
_NUMBERS: Final = 4
"""What the journal of answers holds of a token, besides the share of each prompt."""
_NOTHING: IntArray = np.zeros(0, dtype=np.int64)

GoldScore: TypeAlias = tuple[float, int]
"""The natural log-probability of a gold answer, and its number of tokens."""
Answered_co = TypeVar("Answered_co", bound=tuple[Any, ...], covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class AskedQuestion:
    """The prompts of a question: each front is a whole prompt, with its weight and the passages in it; and what was cut
    of each. A question without prompts is not asked. It may be a message of a `conversation`."""

    question: Question
    fronts: Sequence[Front]
    cuts: Sequence[Cut]
    conversation: Conversation | None = None

    @property
    def most_cut(self) -> Cut:
        """The most tokens that were cut of a prompt's demonstrations, and of its documents."""
        demonstrations, documents = (
            [getattr(cut, part) for cut in self.cuts] for part in ("demonstrations", "documents")
        )
        return Cut(max(demonstrations, default=0), max(documents, default=0))


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


class Asker:
    """Puts questions and passages into prompts, as token ids that leave room for an answer.

    `demonstrations` stand before every prompt, except before a question that is one of them. With `official` semantics
    such a question has no prompts, as in the code of REPLUG; too long a prompt loses its special tokens first, and the
    wording for several passages goes by how many were asked for, as in the code of In-Context RALM.
    """

    def __init__(
        self,
        prompt: QuestionPrompt,
        tokenizer: Tokenizer,
        room: int,
        reader: Reader | None = None,
        demonstrations: Sequence[tuple[Question, Sequence[Passage]]] = (),
        *,
        semantics: AnswerSemantics = "paper",
    ) -> None:
        self._prompt = prompt
        self._reader = reader or InContext()
        self._official = semantics == "official"
        self._encoder = PromptEncoder(tokenizer, room, keep_first=not self._official, chat=prompt.chat)
        self._demonstrations = [
            (one, prompt.demonstration(one.text, _first_answer(one), passages, one.choices))
            for one, passages in demonstrations
        ]

    def ask(
        self,
        question: Question,
        hits: Sequence[tuple[int, float]],
        passages: Passages,
        conversation: Conversation | None = None,
    ) -> AskedQuestion:
        """The prompts of a question with the passages of its hits, best first; without hits, the prompt without.

        With a chat prompt, the question may be one message of a `conversation`. Raises UsageError if the question does
        not fit into the model, ChatError if the model's chat template refuses the conversation.
        """
        if self._official and any(_are_equal(one, question) for one, _ in self._demonstrations):
            return AskedQuestion(question, (), ())
        encode = partial(
            self._encoder.encode,
            demonstrations=self._before(question),
            name=f"question {question.id}",
            conversation=conversation,
        )
        documents = _PromptDocuments(question, passages, self._prompt, encode)
        if isinstance(self._reader, Concatenation) and hits:
            fronts: Sequence[Front] = [documents.joined([number for number, _ in hits], self._several)]
        else:
            fronts = fronts_of(self._reader, hits, documents)
        return AskedQuestion(question, fronts, [documents.cut_of(front) for front in fronts], conversation)

    @property
    def _several(self) -> bool | None:
        return self._reader.hits > 1 if self._official else None

    def _before(self, question: Question) -> str:
        return "".join(shown for one, shown in self._demonstrations if not _are_equal(one, question))


def _are_equal(one: Question, other: Question) -> bool:
    return (one.text, one.choices) == (other.text, other.choices)


def _first_answer(question: Question) -> str:
    if not question.answers:
        raise UsageError(f"the demonstration {question.text!r} has no answer.")
    return question.answers[0]


class _PromptDocuments:
    """The prompts of one question, by passage: what a reader puts in front."""

    def __init__(
        self,
        question: Question,
        passages: Passages,
        prompt: QuestionPrompt,
        encode: Callable[[PromptText], Encoded],
    ) -> None:
        self._question = question
        self._passages = passages
        self._prompt = prompt
        self._encode = encode
        self._cuts: dict[tuple[int, ...], Cut] = {}

    def __getitem__(self, number: int) -> IntArray:
        return self._encoded(() if number == NO_PASSAGE else (number,), None)

    def passage(self, number: int) -> Passage:
        return self._passages[number]

    def encode(self, text: str) -> IntArray:
        raise UsageError(self._one_by_one(text))

    def encode_next(self, text: str) -> IntArray:
        raise UsageError(self._one_by_one(text))

    def joined(self, numbers: Sequence[int], several: bool | None) -> Front:
        """The prompt with several passages in it."""
        return Front(self._encoded(tuple(numbers), several), tuple(numbers))

    def cut_of(self, front: Front) -> Cut:
        """What was cut of a prompt."""
        return self._cuts.get(front.passages, Cut())

    def _encoded(self, numbers: tuple[int, ...], several: bool | None) -> IntArray:
        passages = [self._passages[number] for number in numbers]
        text = self._prompt.text(self._question.text, passages, self._question.choices, several=several)
        encoded = self._encode(text)
        self._cuts[numbers] = encoded.cut
        return encoded.tokens

    def _one_by_one(self, text: str) -> str:
        return (
            f"this reader puts text of its own in front ({text[:30]!r}), and prompts of questions hold whole passages: "
            "read them in context, as an ensemble or concatenated."
        )


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """What keeps the scores of gold answers, and the answers themselves, for a later process."""

    scores: MemoryJournal | None = None
    answers: MemoryJournal | None = None


def answer_all(
    asked: Sequence[AskedQuestion],
    model: WritingModel,
    options: AnswerOptions | None = None,
    journal: MemoryJournal | None = None,
) -> Iterator[tuple[int, Answer]]:
    """The answers to questions, each with the number of its question, as soon as they are known.

    Some questions are answered together; an answer does not depend on the others. What a `journal` holds is not
    generated again.
    """
    way = _AnswerAll(options or AnswerOptions())
    return _answered(way, asked, model, KeptAnswers(answers=journal))


def answer_and_score(
    asked: Sequence[AskedQuestion],
    prompt: QuestionPrompt,
    model: WritingModel,
    options: AnswerOptions | None = None,
    kept: KeptAnswers | None = None,
) -> Iterator[tuple[int, Answer, GoldScore | None]]:
    """As `answer_all`, each answer with what `gold_log_probs` gives: a prompt is read once for both."""
    return _answered(_AnswerAndScore(prompt, options or AnswerOptions()), asked, model, kept or KeptAnswers())


class Answering(Protocol[Answered_co]):
    """A way of answering: small, so that it can be sent to another machine."""

    def __call__(self, asked: Sequence[AskedQuestion], model: WritingModel, kept: KeptAnswers) -> Iterator[Answered_co]:
        """What becomes of each question, its number first, in order."""


def _answered(
    way: Answering[Answered_co], asked: Sequence[AskedQuestion], model: WritingModel, kept: KeptAnswers
) -> Iterator[Answered_co]:
    """Answer questions in a way. A model with a method `answer_elsewhere` does so itself, on other machines."""
    elsewhere: Callable[..., Iterator[Answered_co]] | None = getattr(model, "answer_elsewhere", None)
    return way(asked, model, kept) if elsewhere is None else elsewhere(way, asked, kept)


@dataclass(frozen=True, slots=True)
class _AnswerAll:
    options: AnswerOptions

    def __call__(
        self, asked: Sequence[AskedQuestion], model: WritingModel, kept: KeptAnswers
    ) -> Iterator[tuple[int, Answer]]:
        writing = _Writing(model, self.options, SharedCache(model), kept.answers)
        for group in groups_of(asked):
            yield from zip(group, writing.answers([asked[number] for number in group]), strict=True)


@dataclass(frozen=True, slots=True)
class _AnswerAndScore:
    prompt: QuestionPrompt
    options: AnswerOptions

    def __call__(
        self, asked: Sequence[AskedQuestion], model: WritingModel, kept: KeptAnswers
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
    return Answer("".join(piece.text for piece in pieces), pieces, shares(tokens))


class DrawnAnswers:
    """Several answers to one question, one for each seed, drawn together from the average over its prompts.

    Iterating over it draws them: each piece with the number of its answer.
    """

    def __init__(self, asked: AskedQuestion, model: WritingModel, options: AnswerOptions, seeds: Sequence[int]) -> None:
        self._most = options.new_tokens
        self._decoder = _decoder(model, options)
        for seed in seeds:
            key = _key(asked.fronts, replace(options, seed=seed))
            self._decoder.add(PromptState(_NOTHING, None, asked.fronts), _generator(key))
        self._texts = [StoppedText(asked.fronts[0].tokens, model.tokenizer, options.stop) for _ in seeds]
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


def _texts(asked: AskedQuestion, options: AnswerOptions) -> list[Sequence[Front]]:
    """The texts that are continued for a question: one behind all its prompts, or one behind each; none if it has no
    prompts."""
    if options.join == "tokens":
        return [asked.fronts] if asked.fronts else []
    return [[Front(front.tokens, front.passages)] for front in asked.fronts]


def gold_log_probs(
    asked: Sequence[AskedQuestion], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """The natural log-probability of each question's first gold answer behind its prompts, and its number of tokens.

    None for a question without answers or prompts, for an answer of no tokens, where prompt and answer do not fit into
    `max_length` tokens (None: the model's), and for all if the model tells no log-probabilities of given texts.
    """
    if not tells_scores(model):
        return [None] * len(asked)
    longest = max_length or model.max_length
    answers = [_gold_tokens(one, prompt, model.tokenizer) for one in asked]
    fits = [
        0 < len(gold) <= longest + 1 - max((len(front.tokens) for front in one.fronts), default=longest + 1)
        for one, gold in zip(asked, answers, strict=True)
    ]
    texts = [(one.fronts, gold) for one, gold, fit in zip(asked, answers, fits, strict=True) if fit]
    found = iter(likelihoods(texts, Scorer.of(model)))
    return [_sum_and_count(next(found)) if fit else None for fit in fits]


def _sum_and_count(gold: Likelihood) -> GoldScore:
    return gold.log_prob, gold.tokens


def _gold_tokens(asked: AskedQuestion, prompt: QuestionPrompt, tokenizer: Tokenizer) -> IntArray:
    if not (asked.question.answers and asked.fronts):
        return _NOTHING
    return tokens_behind(asked.fronts[0].tokens, prompt.answered(asked.question.answers[0]), tokenizer)


def room_for_prompts(model: WritingModel, options: AnswerOptions) -> int:
    """The most tokens of a prompt; UsageError if the model cannot read `max_length`, or if no prompt fits."""
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    if length <= options.new_tokens:
        raise UsageError(
            f"an answer of `new_tokens` {options.new_tokens} leaves no room for a prompt in the model length {length}."
        )
    return length - options.new_tokens


def groups_of(asked: Sequence[AskedQuestion]) -> Iterator[list[int]]:
    """Numbers of questions, in order, that are answered together."""
    group: list[int] = []
    texts = 0
    for number, one in enumerate(asked):
        if group and texts + len(one.fronts) > _TEXTS_AT_ONCE:
            yield group
            group, texts = [], 0
        group.append(number)
        texts += len(one.fronts)
    if group:
        yield group


class _Writing:
    """Writes answers behind prompts, and reads from a journal those that were written before."""

    def __init__(
        self, model: WritingModel, options: AnswerOptions, cache: SharedCache, journal: MemoryJournal | None
    ) -> None:
        self._model = model
        self._options = options
        self._cache = cache
        self._journal = journal

    @cached_property
    def _decoder(self) -> Decoder:
        """One for all questions: what their prompts share with those before is not read again."""
        return _decoder(self._model, self._options, self._cache)

    def answers(self, asked: Sequence[AskedQuestion]) -> list[Answer]:
        """The answer to each question; all are written together."""
        texts = [_texts(one, self._options) for one in asked]
        written = iter(self._behind([text for some in texts for text in some]))
        several = [[next(written) for _ in some] for some in texts]
        return [_joined(answers, one, self._options) for answers, one in zip(several, asked, strict=True)]

    def _behind(self, texts: Sequence[Sequence[Front]]) -> list[Answer]:
        """The answer behind each group of prompts."""
        keys = [_key(fronts, self._options) for fronts in texts]
        known = {key: found for key in keys if (found := self._known(key)) is not None}
        new = {key: fronts for key, fronts in zip(keys, texts, strict=True) if key not in known}
        for key, drawn in zip(new, self._drawn(new) if new else [], strict=True):
            known[key] = drawn
            if self._journal is not None:
                self._journal.add([(self._kept_as(key), drawn)])
        return [self._answer(fronts, known[key]) for key, fronts in zip(keys, texts, strict=True)]

    def _known(self, key: bytes) -> FloatArray | None:
        return None if self._journal is None else self._journal.get(self._kept_as(key))

    def _kept_as(self, key: bytes) -> bytes:
        """The key of an answer in the journal: where an answer ends counts, too."""
        ends = repr((_NUMBERS, self._options.new_tokens, self._options.stop))
        return blake2b(key + ends.encode(), digest_size=_KEY_BYTES).digest()

    def _drawn(self, texts: Mapping[bytes, Sequence[Front]]) -> list[FloatArray]:
        """The tokens behind each group of prompts as numbers: of each token its id, the numbers of a `GeneratedToken`
        and the share of each prompt. An id is below 2^24, so float32 holds it exactly. The key of a group seeds its
        draws."""
        numbers = [
            self._decoder.add(PromptState(_NOTHING, None, fronts), _generator(key)) for key, fronts in texts.items()
        ]
        written = dict(zip(numbers, map(self._text_behind, texts.values()), strict=True))
        drawn: dict[int, list[FloatArray]] = {number: [] for number in numbers}
        while self._decoder.unfinished:
            for number, token in self._decoder.step():
                values = [token.token, token.log_prob, token.unlisted, token.certified]
                drawn[number].append(np.concatenate([np.array(values, dtype=np.float32), token.posteriors_K]))
                written[number].add(token)
                if written[number].found:
                    self._decoder.end(number)
        return [np.concatenate(rows) if rows else np.zeros(0, dtype=np.float32) for rows in drawn.values()]

    def _answer(self, fronts: Sequence[Front], drawn: FloatArray) -> Answer:
        """The answer that these tokens are."""
        passages_K = np.array([front.passage for front in fronts], dtype=np.int64)
        text = self._text_behind(fronts)
        found: list[GeneratedText] = []
        for row in drawn.reshape(-1, _NUMBERS + len(fronts)):
            token, log_prob, unlisted, certified = row[:_NUMBERS].tolist()
            shares_K = row[_NUMBERS:]
            found += text.add(GeneratedToken(int(token), log_prob, passages_K, shares_K, unlisted, certified == 1))
        return answer_of([*found, *text.rest()])

    def _text_behind(self, fronts: Sequence[Front]) -> StoppedText:
        return StoppedText(fronts[0].tokens, self._model.tokenizer, self._options.stop)


def _decoder(model: WritingModel, options: AnswerOptions, cache: SharedCache | None = None) -> Decoder:
    drawn = {option.name: getattr(options, option.name) for option in fields(Sampling)}
    return Decoder(model, GenerationOptions(new_tokens=options.new_tokens, **drawn), model.max_length, cache)


def _generator(key: bytes) -> np.random.Generator:
    """The random generator of an answer: the same for the same prompts, whatever is answered with them."""
    return np.random.default_rng(int.from_bytes(key, "little"))


def _key(fronts: Sequence[Front], sampling: Sampling) -> bytes:
    """A hash of prompts, their weights, and what decides the draws of an answer that is not greedy."""
    digest = blake2b(digest_size=_KEY_BYTES)
    if sampling.temperature > 0:
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
        digest.update(repr(drawn).encode())
    for front in fronts:
        digest.update(len(front.tokens).to_bytes(8, "little"))
        digest.update(front.tokens.tobytes())
        digest.update(np.float64(front.log_weight).tobytes())
    return digest.digest()


def _joined(answers: Sequence[Answer], asked: AskedQuestion, options: AnswerOptions) -> Answer:
    """The answer to a question, of those of its texts; an empty one if it has none."""
    if not answers:
        return Answer("", [], {})
    return answers[0] if options.join == "tokens" else _added_up(answers, asked.fronts)


def _added_up(answers: Sequence[Answer], fronts: Sequence[Front]) -> Answer:
    """Of the answers of several prompts the one with the largest sum of weight x exp(mean log-probability of a token);
    of equal ones the first. Answers are equal without the white space around them; an answer of no tokens counts 0.
    All answers of a model that gives text alone are equally likely.
    """
    worths = [_worth(answer, front) for answer, front in zip(answers, fronts, strict=True)]
    totals: dict[str, float] = {}
    for answer, worth in zip(answers, worths, strict=True):
        totals[answer.text.strip()] = totals.get(answer.text.strip(), 0.0) + worth
    best = max(totals, key=lambda text: totals[text])
    first = next(answer for answer in answers if answer.text.strip() == best)
    given: dict[int, float] = {}
    for answer, front, worth in zip(answers, fronts, worths, strict=True):
        if answer.text.strip() == best and worth > 0:
            given[front.passage] = given.get(front.passage, 0.0) + worth / totals[best]
    return Answer(best, first.pieces, dict(sorted(given.items(), key=lambda item: -item[1])))


def _worth(answer: Answer, front: Front) -> float:
    """What an answer counts, by its prompt and its likelihood, if that is known."""
    if not answer.tokens:
        return 0.0
    likelihood = 0.0 if np.isnan(answer.log_prob) else answer.log_prob / len(answer.tokens)
    return float(np.exp(front.log_weight + likelihood))
