"""Answers with their sources: what each passage gave to an answer, and how likely it is with passages and without.

Knows prompts, sources of passages and models; knows nothing of terminals, or of how answers are judged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from pydantic import JsonValue

from ralm.answering.answers import Answer, AskedQuestion, Asker, answer_all, answer_of, room_for_prompts, stream_answer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_tokens import Cut
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.questions import Question
from ralm.answering.sources import QuestionSource, found_passages
from ralm.asking import tells_scores
from ralm.errors import UsageError
from ralm.evaluation.traces import TracedText, gain_as_json, identified, used_passages
from ralm.lm.scoring import Scorer
from ralm.protocols import Reader, WritingModel
from ralm.reading.in_context import InContext
from ralm.reading.pieces import GeneratedText, texts_of_tokens
from ralm.records import FloatArray, IntArray, Passage, Passages, Provenance, Request

_NOTHING: IntArray = np.zeros(0, dtype=np.int64)


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
    """An answer and where it comes from.

    `text` holds the tokens of the answer with their log-probabilities, with passages and without. `sources` are the
    passages in the prompts, best first by the retriever. `cut` is the most that was cut of a prompt.
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
            "cut": asdict(self.cut),
        }
        if self.sources:
            found["baseline_log_prob"] = float(self.text.baseline_T.sum(dtype=np.float64))
            found["gain"] = gain_as_json(self.text)
            found["sources"] = [
                {**identified(one.passage), "text": one.passage.text, "share": one.share, "gain": one.gain}
                for one in self.sources
            ]
        return found


class Answerer:
    """Answers questions with a frozen language model, and says where each answer comes from.

    The passages are those of `source`, without it there are none; `reader` says how they are read, one in context by
    default. An ensemble is averaged for every token. Raises UsageError if the options do not fit the model.
    """

    def __init__(
        self,
        model: WritingModel,
        prompt: QuestionPrompt,
        source: QuestionSource | None = None,
        *,
        reader: Reader | None = None,
        options: AnswerOptions | None = None,
    ) -> None:
        self._model = model
        self._options = options or AnswerOptions()
        if self._options.join != "tokens":
            raise UsageError('answers with their sources are drawn token by token: leave out `join="answers"`.')
        self._source = source
        self._reader = reader or InContext()
        self._scorer = Scorer.of(model)
        room = room_for_prompts(model, self._options)
        self._with_passages = Asker(prompt, model.tokenizer, room, self._reader)
        self._without = Asker(prompt, model.tokenizer, room)

    def answers(self, questions: Sequence[str]) -> Iterator[SourcedAnswer]:
        """The answers to questions, in their order; some are answered together."""
        asked, passages = self._ask(questions)
        for number, answer in answer_all(asked, self._model, self._options):
            yield self._sourced(asked[number], passages, answer)

    def stream(self, question: str) -> "AnswerStream":
        """The answer to one question, piece by piece."""
        [asked], passages = self._ask([question])
        pieces = stream_answer(asked, self._model, self._options)
        return AnswerStream(pieces, lambda written: self._sourced(asked, passages, answer_of(written)))

    def _ask(self, questions: Sequence[str]) -> tuple[list[AskedQuestion], Passages]:
        """The prompts of questions; UsageError if a question is empty or does not fit into the model."""
        asked = [Question(str(place), text) for place, text in enumerate(questions, 1)]
        for one in asked:
            if not one.text.strip():
                which = "the question" if len(asked) == 1 else f"question {one.id}"
                raise UsageError(f"{which} is empty: ask with at least one word.")
        hits, passages = found_passages(asked, self._source, self._reader.hits)
        return [self._with_passages.ask(one, hits.of(row), passages) for row, one in enumerate(asked)], passages

    def _sourced(self, asked: AskedQuestion, passages: Passages, answer: Answer) -> SourcedAnswer:
        """An answer with what each passage gave to it."""
        provenance = Provenance.of_rows([(token.passages_K, token.posteriors_K) for token in answer.tokens])
        text = TracedText(
            before="",
            texts=texts_of_tokens(answer.pieces)[1],
            log_probs_T=np.array([token.log_prob for token in answer.tokens], dtype=np.float32),
            baseline_T=self._log_probs_without(asked.question, answer),
            provenance=provenance,
            passages=used_passages(provenance, passages),
        )
        return SourcedAnswer(
            question=asked.question.text,
            answer=answer,
            text=text,
            sources=_sources(asked, passages, answer, text),
            cut=asked.most_cut,
        )

    def _log_probs_without(self, question: Question, answer: Answer) -> FloatArray:
        """The log-probabilities (float32, T) of the answer's tokens behind the prompt without passages; NaN if the
        model does not tell them."""
        if self._source is None or not answer.tokens:
            return np.array([token.log_prob for token in answer.tokens], dtype=np.float32)
        tokens = np.array([token.token for token in answer.tokens], dtype=np.int64)
        if not tells_scores(self._model):
            return np.full(len(tokens), np.nan, dtype=np.float32)
        [front] = self._without.ask(question, [], ()).fronts
        [log_probs_T] = self._scorer.log_probs([Request(document=front.tokens, context=_NOTHING, targets=tokens)])
        return log_probs_T


class AnswerStream:
    """The pieces of an answer, each as soon as it cannot belong to a stop string; then the answer with its sources."""

    def __init__(
        self, pieces: Iterator[GeneratedText], sourced: Callable[[Sequence[GeneratedText]], SourcedAnswer]
    ) -> None:
        self._pieces = pieces
        self._sourced = sourced
        self._written: list[GeneratedText] = []

    def __iter__(self) -> Iterator[GeneratedText]:
        for piece in self._pieces:
            self._written.append(piece)
            yield piece

    def sourced(self) -> SourcedAnswer:
        """The answer with its sources, once it is complete; pieces that were not asked for are drawn first."""
        for _ in self:
            pass
        return self._sourced(self._written)


def _sources(asked: AskedQuestion, passages: Passages, answer: Answer, text: TracedText) -> list[AnswerSource]:
    """The passages in the prompts of a question, with what each gave to the answer."""
    gains = {row.passage: row.gain for row in text.contributions}
    return [
        AnswerSource(passage=passages[number], share=answer.shares.get(number), gain=gains.get(number))
        for front in asked.fronts
        for number in front.passages
    ]
