"""Answers with their sources: what each passage gave to an answer, and which words of it cite which passage.

What a passage gave to a token is its posterior times the gain of the token over the prompt without passages, in nats
(`ralm.reading.provenance`). The rule of citations:

1. A passage is cited only if it gave the answer at least one bit (ln 2 nats) in all: with it, the answer is at least
   twice as likely. That is little beside what a passage that holds the answer gives, and much beside rounding errors.
2. Each token goes to that one of these passages that gave it most, if the passage made it likelier.
3. A passage is cited for the runs of tokens to which it gave most, on balance: each token counts what the passage gave
   it, less 0.1 nats, so that a run ends where tokens are as likely without the passage; a run holds no token that goes
   to another passage. The best run counts, and all others of at least one bit. A passage without a run is not cited.
4. Runs are widened to whole words, as far as no other run is there, and white space at their ends is left out. A run
   that has no other characters is left out.

Nothing is cited if the model returns no log-probabilities.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, Literal, TypeAlias
from unicodedata import category, east_asian_width

import numpy as np
from pydantic import JsonValue

from ralm.answering.answers import Answer, DrawnAnswers, answer_all, check_mixer, room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, Cut, QuestionPrompt
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder, QuestionInput, QuestionSource, found_passages
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import Reader, WritingModel
from ralm.reading import ensemble, in_context, pieces
from ralm.reading.provenance import TracedText, attributed, gain_as_json, passage_as_json, used_passages
from ralm.records import DoubleArray, FloatArray, IntArray, Passage, Passages, Provenance, Request
from ralm.terminal import one_line
from ralm.validation import scores_given_texts

Credit = Literal["none", "prompts", "passages"]
"""Which passages get the gain of an answer, see `Answerer`."""
_NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)
ONE_BIT: Final = math.log(2)
"""The minimum gain of a cited passage, in nats."""
_OF_A_TOKEN: Final = 0.1
"""The gain of a token, in nats, above which it extends a run of tokens."""
_NO_ONE: Final = -1
_OF_WORDS: Final = "LMN"
"""Unicode categories of the characters of words: letters, marks and numbers."""
_WIDE: Final = ("W", "F")
"""Widths of the characters of scripts without spaces, which are not joined to words."""
_ADDRESSES: Final = ("url", "source", "link", "uri")
"""Metadata with the address of a document, in order of preference."""
_WEB: Final = re.compile(r"https?://[^\s\x00-\x1f]+", re.IGNORECASE)
_Span: TypeAlias = tuple[int, int]
"""The first and one past the last of some tokens, or of some characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """A passage that an answer was read with.

    `share` is the part of the answer's probability that came from it, the mean over tokens; `gain` is what it gave in
    nats: over all tokens, the posterior times the gain over the prompt without passages. Both are None for a passage
    that shares its prompt with a better one, which gets the credit, and for an answer of no tokens.
    """

    passage: Passage
    share: float | None
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcedAnswer:
    """An answer and its sources.

    `text` holds the tokens of the answer with their log-probabilities, with passages and without. `sources` are the
    passages in the prompts, best first by the retriever. `cut` is the largest cut of a prompt.
    """

    question: str
    answer: Answer
    text: TracedText
    sources: Sequence[AnswerSource]
    cut: Cut

    def as_json(self) -> dict[str, JsonValue]:
        """Everything about the answer; without passages, there is no gain."""
        tokens = zip(self.text.texts, self.text.log_probs_T.tolist(), self.text.baseline_T.tolist(), strict=True)
        found: dict[str, JsonValue] = {
            "question": self.question,
            "answer": self.answer.text,
            "log_prob": self.answer.log_prob,
            "tokens": [{"text": text, "log_prob": own, "baseline_log_prob": without} for text, own, without in tokens],
            "certified": self.answer.certified,
            **({} if self.answer.robust is None else {"robust": self.answer.robust}),
            "cut": asdict(self.cut),
        }
        if self.sources:
            found["baseline_log_prob"] = float(self.text.baseline_T.sum(dtype=np.float64))
            found["gain"] = gain_as_json(self.text)
            found["sources"] = [
                {**passage_as_json(one.passage), "text": one.passage.text, "share": one.share, "gain": one.gain}
                for one in self.sources
            ]
        return found


class Answerer:
    """Answers questions with a frozen language model, and gives the sources of each answer.

    A question may be the last message of the user in a `Conversation`, if `prompt` is a chat. The passages are those of
    `source`, without it there are none; `reader` says how they are read, one in context by default. An ensemble is
    averaged for every token.

    `credit` says which passages get the gain of an answer over the prompt without passages. With `prompts`, the first
    of several passages in one prompt gets it for all of them; with `passages`, the answer is also scored after each of
    them alone, and they share the gain as an ensemble would; with `none`, it is not measured. Raises UsageError if the
    options do not fit the model.
    """

    def __init__(
        self,
        model: WritingModel,
        prompt: QuestionPrompt,
        source: QuestionSource | None = None,
        *,
        reader: Reader | None = None,
        options: AnswerOptions | None = None,
        credit: Credit = "prompts",
    ) -> None:
        self._model = model
        self._options = options or AnswerOptions()
        if self._options.join != "tokens":
            raise UsageError('answers with their sources are drawn token by token: leave out `join="answers"`.')
        self._source = source
        self._reader = reader or in_context.InContext()
        check_mixer(self._reader, model, self._options)
        self._scorer = Scorer(model, progress=False)
        room = room_for_prompts(model, self._options)
        self._with_passages = PromptBuilder(prompt, model.tokenizer, room, self._reader)
        self._alone = PromptBuilder(prompt, model.tokenizer, room)
        self._credit = credit if scores_given_texts(model) else "none"

    def answers(self, questions: Sequence[str | Conversation]) -> Iterator[SourcedAnswer]:
        """The answers to questions, in their order; some are answered together.

        Raises UsageError if a question is empty or does not fit into the model, ChatError if the model's chat template
        rejects a conversation.
        """
        inputs, passages = self._inputs(questions)
        for number, answer in answer_all(inputs, self._model, self._options):
            yield self._with_sources(inputs[number], passages, answer)

    def stream(self, question: str | Conversation) -> "AnswerStream":
        """The answer to one question, piece by piece; raises what `answers` raises."""
        return AnswerStream(self.streams(question, [self._options.seed]))

    def streams(self, question: str | Conversation, seeds: Sequence[int]) -> "AnswerStreams":
        """Several answers to one question, one for each seed, drawn together; raises what `answers` raises."""
        [one], passages = self._inputs([question])
        return AnswerStreams(one, self._model, self._options, seeds, partial(self._with_sources, one, passages))

    def _inputs(self, questions: Sequence[str | Conversation]) -> tuple[list[QuestionInput], Passages]:
        """The prompts of questions, and the passages that were found for them."""
        conversations = [Conversation.of(one) for one in questions]
        for place, one in enumerate(conversations, 1):
            which = "the question" if len(conversations) == 1 else f"question {place}"
            for text, name in ((one.question, which), (one.search_query, f"the query of {which}")):
                if not text.strip():
                    raise UsageError(f"{name} is empty: ask with at least one word.")
        found = [Question(str(place), one.search_query) for place, one in enumerate(conversations, 1)]
        hits, passages = found_passages(found, self._source, self._reader.hits)
        inputs = [
            self._with_passages.build(Question(str(row + 1), one.question), hits.of(row), passages, one)
            for row, one in enumerate(conversations)
        ]
        return inputs, passages

    def _with_sources(self, question: QuestionInput, passages: Passages, answer: Answer) -> SourcedAnswer:
        """An answer with the gain that each passage gave to it."""
        tokens = self._credited(question, passages, answer)
        provenance = Provenance.of_rows([(token.passages_K, token.posteriors_K) for token in tokens])
        text = TracedText(
            before="",
            texts=pieces.texts_of_tokens(answer.pieces)[1],
            log_probs_T=np.array([token.log_prob for token in tokens], dtype=np.float32),
            baseline_T=self._log_probs_without(question, answer),
            provenance=provenance,
            passages=used_passages(provenance, passages),
        )
        return SourcedAnswer(
            question=question.question.text,
            answer=answer,
            text=text,
            sources=_sources(question, passages, pieces.passage_shares(tokens), text),
            cut=question.largest_cut,
        )

    def _credited(self, question: QuestionInput, passages: Passages, answer: Answer) -> Sequence[pieces.GeneratedToken]:
        """The tokens of an answer, each with its passages and their shares."""
        numbers = [number for prompt in question.prompts for number in prompt.passages]
        if self._credit != "passages" or not answer.tokens or len(numbers) <= len(question.prompts):
            return answer.tokens
        scored = [self._log_probs(question, answer, [(number, 0.0)], passages) for number in numbers]
        shares_TK = ensemble.posterior(np.stack(scored), np.zeros(len(numbers), dtype=np.float64))
        passages_K = np.array(numbers, dtype=np.int64)
        return [
            replace(token, passages_K=passages_K, posteriors_K=shares_K)
            for token, shares_K in zip(answer.tokens, shares_TK, strict=True)
        ]

    def _log_probs_without(self, question: QuestionInput, answer: Answer) -> FloatArray:
        """The log-probabilities (float32, T) of the answer's tokens after the prompt without passages; NaN if they are
        not measured."""
        if self._source is None or not answer.tokens:
            return np.array([token.log_prob for token in answer.tokens], dtype=np.float32)
        if self._credit == "none":
            return np.full(len(answer.tokens), np.nan, dtype=np.float32)
        return self._log_probs(question, answer, [], ())

    def _log_probs(
        self, question: QuestionInput, answer: Answer, hits: Sequence[tuple[int, float]], passages: Passages
    ) -> FloatArray:
        """The log-probabilities (float32, T) of the answer's tokens after the prompt with at most one passage."""
        [prompt] = self._alone.build(question.question, hits, passages, question.conversation).prompts
        tokens = np.array([token.token for token in answer.tokens], dtype=np.int64)
        [log_probs_T] = self._scorer.log_probs([Request(document=prompt.tokens, context=_NO_TOKENS, targets=tokens)])
        return log_probs_T


class AnswerStreams(DrawnAnswers):
    """Several answers to one question: the pieces of all, each with the number of its answer; then each answer with its
    sources."""

    def __init__(
        self,
        question: QuestionInput,
        model: WritingModel,
        options: AnswerOptions,
        seeds: Sequence[int],
        source: Callable[[Answer], SourcedAnswer],
    ) -> None:
        super().__init__(question, model, options, seeds)
        self._source = source

    def with_sources(self, number: int) -> SourcedAnswer:
        """An answer with its sources, once all are complete; pieces that were not read are drawn first."""
        return self._source(self.answer(number))


class AnswerStream:
    """The pieces of an answer, each as soon as it cannot belong to a stop string; then the answer with its sources."""

    def __init__(self, streams: AnswerStreams) -> None:
        self._streams = streams

    def __iter__(self) -> Iterator[pieces.GeneratedText]:
        return (piece for _, piece in self._streams)

    def with_sources(self) -> SourcedAnswer:
        """The answer with its sources, once it is complete; pieces that were not read are drawn first."""
        return self._streams.with_sources(0)


def _sources(
    question: QuestionInput, passages: Passages, given: Mapping[int, float], text: TracedText
) -> list[AnswerSource]:
    """The passages in the prompts of a question, with what each gave to the answer."""
    gains = {row.passage: row.gain for row in text.contributions}
    return [
        AnswerSource(passage=passages[number], share=given.get(number), gain=gains.get(number))
        for prompt in question.prompts
        for number in prompt.passages
    ]


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer cites, with its gain in nats, and the spans of the text that it is cited for: the first
    and one past the last character of each, in ascending order."""

    passage: Passage
    gain: float
    spans: Sequence[_Span]


def citations(text: TracedText) -> list[Citation]:
    """The passages that an answer cites, largest gain first, by the rule of this module.

    Characters count from the beginning of the text, what is `before` the first token included. No two spans overlap.
    """
    if not np.isfinite(text.gain_T).all():
        return []
    gains = {row.passage: row.gain for row in text.contributions if row.gain >= ONE_BIT}
    spans: dict[int, list[_Span]] = {number: [] for number in gains}
    given_TK = attributed(text.provenance, text.gain_T)
    given = {number: np.where(text.provenance.passages_TK == number, given_TK, 0).sum(axis=1) for number in gains}
    runs = _runs(given)
    for (_, number), span in zip(runs, _words(text, [run for run, _ in runs]), strict=True):
        if span[0] < span[1]:
            spans[number].append(span)
    return [Citation(text.passages[number], gain, spans[number]) for number, gain in gains.items() if spans[number]]


def _runs(given: Mapping[int, DoubleArray]) -> list[tuple[_Span, int]]:
    """The runs of tokens for which passages are cited, each with its passage, in ascending order. `given` is what each
    passage gave to each token (float64, T), in nats."""
    if not given:
        return []
    given_PT = np.array([*given.values()], dtype=np.float64)
    owner_T = np.where(given_PT.max(axis=0) > 0, given_PT.argmax(axis=0), _NO_ONE)
    found = []
    for row, number in enumerate(given):
        value_T = np.where((owner_T == row) | (owner_T == _NO_ONE), given_PT[row] - _OF_A_TOKEN, -np.inf)
        found += [(run, number) for run in _best_runs(value_T.tolist())]
    return sorted(found)


def _best_runs(values: Sequence[float]) -> Iterator[_Span]:
    """The run of the largest sum, if that is positive; beside it the best ones of at least one bit."""
    parts, minimum = [(0, len(values))], 0.0
    while parts:
        begin, end = parts.pop()
        total, first, last = _best_run(values, begin, end)
        if total > 0 and total >= minimum:
            yield first, last
            parts += [(begin, first), (last, end)]
            minimum = ONE_BIT


def _best_run(values: Sequence[float], begin: int, end: int) -> tuple[float, int, int]:
    """The largest sum of a run of some tokens, its first token and the one past its last; 0 if none is positive."""
    best, total, first = (0.0, begin, begin), 0.0, begin
    for place in range(begin, end):
        if total <= 0:
            total, first = 0.0, place
        total += values[place]
        if total > best[0]:
            best = (total, first, place + 1)
    return best


def _words(text: TracedText, runs: Sequence[_Span]) -> Iterator[_Span]:
    """The characters of runs of tokens, in ascending order: whole words, as far as no other run is there."""
    written = text.before + "".join(text.texts)
    ends = list(accumulate(map(len, text.texts), initial=len(text.before)))
    exact = [(ends[begin], ends[end]) for begin, end in runs]
    free = len(text.before)
    for (begin, end), (until, _) in pairwise([*exact, (len(written), len(written))]):
        while begin > free and _joined(written, begin):
            begin -= 1
        while end < until and _joined(written, end):
            end += 1
        free = end
        words = written[begin:end]
        yield begin + len(words) - len(words.lstrip()), begin + len(words.rstrip())


def _joined(text: str, place: int) -> bool:
    """Whether the characters before and after a place belong to one word."""
    return 0 < place < len(text) and all(
        category(one)[0] in _OF_WORDS and east_asian_width(one) not in _WIDE for one in text[place - 1 : place + 1]
    )


def web_address(passage: Passage) -> str | None:
    """The web address of a passage in the metadata of its document; None if it has none."""
    found = (passage.metadata.get(name) for name in _ADDRESSES)
    return next((one for one in found if isinstance(one, str) and _WEB.fullmatch(one)), None)


def name_of(passage: Passage) -> str:
    """The title of a passage, or else the id of its document, as one line."""
    return one_line(" ".join(passage.title.split()) or passage.document_id)


def sources_text(cited: Sequence[Citation], addresses: Sequence[str]) -> str:
    """The sources of an answer as text to stand behind it, each with its address; empty without sources."""
    lines = [
        f"\n[{place}] {name_of(one.passage)}: {address}"
        for place, (one, address) in enumerate(zip(cited, addresses, strict=True), 1)
    ]
    return "\n\nSources:" + "".join(lines) if lines else ""
