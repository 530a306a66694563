"""Answers questions with a frozen language model, each answer with its sources and how they are known."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from html import escape

import numpy as np
from pydantic import JsonValue

from ralm.answering.answers import NO_TOKENS, Answer, AnswerStreams, answer_all, room_for_prompts
from ralm.answering.citations import AnswerSource, citations
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, Cut, QuestionPrompt
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder, QuestionInput, QuestionSource, found_passages
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading import mixture, pieces
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.provenance import TracedText, gain_as_json
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, Passages, Request
from ralm.validation import check_strings, scores_given_texts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcedAnswer:
    """An answer, its tokens with their log-probabilities with passages and without, and its sources, best first."""

    question: str
    answer: Answer
    text: TracedText
    sources: Sequence[AnswerSource]
    cut: Cut

    def as_json(self) -> dict[str, JsonValue]:
        """Return everything about the answer; without passages, there is no gain."""
        tokens = zip(self.text.texts, self.text.log_probs_T.tolist(), self.text.baseline_T.tolist(), strict=True)
        fields: dict[str, JsonValue] = {
            "question": self.question,
            "answer": self.answer.text,
            "log_prob": self.answer.log_prob,
            "tokens": [dict(zip(("text", "log_prob", "baseline_log_prob"), token, strict=True)) for token in tokens],
            "certified": self.answer.certified,
            "cut": asdict(self.cut),
        }
        if self.sources:
            fields["baseline_log_prob"] = float(self.text.baseline_T.sum(dtype=np.float64))
            fields["gain"] = gain_as_json(self.text)
            fields["sources"] = [source.with_passage() for source in self.sources]
        return fields

    def _repr_html_(self) -> str:
        """Return the answer and its sources, which notebooks show."""
        sources = "".join(
            f"<li><b>{escape(source.passage.title or source.passage.document_id)}</b> ({escape(source.evidence)}): "
            f"{escape(source.passage.text)}</li>"
            for source in self.sources
        )
        return f"<p>{escape(self.answer.text)}</p><ol>{sources}</ol>"


class Answerer:
    """Answers questions with a frozen language model, and gives the sources of each answer.

    If several passages share a prompt, an answer is scored after each of them alone, and they share its gain as an
    ensemble would.

    Args:
        model: The frozen model.
        prompt: How a question is asked; a chat takes the last message of the user in a `Conversation`, too.
        source: Where passages come from; without it there are none.
        parts: How passages are read; by default one in context. An ensemble is averaged for every token.
        options: How answers are drawn.
        measured: Score an answer also after the same prompt without passages.
        ranking: How a model that ranks passages reads them.

    Raises:
        UsageError: The options do not fit the model.
    """

    def __init__(
        self,
        model: WritingModel,
        prompt: QuestionPrompt,
        source: QuestionSource | FromRetriever | None = None,
        *,
        parts: Parts = IN_CONTEXT,
        options: AnswerOptions | None = None,
        measured: bool = True,
        ranking: GenerationOptions | None = None,
    ) -> None:
        self._model = model
        self._options = options or AnswerOptions()
        if self._options.join != "tokens":
            raise UsageError('answers with their sources are drawn token by token: leave out `join="answers"`.')
        self._source = source
        self._ranking = ranking
        self._parts = parts
        parts.check_generation(model)
        self._scorer = Scorer(model, progress=False)
        self._prompt = prompt
        self._room = room_for_prompts(model, self._options)
        self._with_passages = PromptBuilder(prompt, model.tokenizer, self._room, parts)
        self._measures = measured and source is not None and scores_given_texts(model)

    def answers(self, questions: Sequence[str | Conversation]) -> Iterator[SourcedAnswer]:
        """Yield the answers to questions, in their order; some are answered together.

        Raises:
            UsageError: A question is empty or does not fit into the model.
            ChatError: The model's chat template rejects a conversation.
        """
        check_strings("questions", questions)
        inputs, passages = self._inputs(questions)
        for number, answer, _ in answer_all(inputs, self._model, self._options):
            yield self._with_sources(inputs[number], passages, answer)

    def stream(self, question: str | Conversation, seeds: Sequence[int] | None = None) -> AnswerStreams[SourcedAnswer]:
        """Return the answer to a question piece by piece, or one for each seed; raises what `answers` raises."""
        [asked], passages = self._inputs([question])
        seeds = [self._options.seed] if seeds is None else seeds
        return AnswerStreams(asked, self._model, self._options, seeds, partial(self._with_sources, asked, passages))

    def _inputs(self, questions: Sequence[str | Conversation]) -> tuple[list[QuestionInput], Passages]:
        conversations = [Conversation.of(question) for question in questions]
        for place, conversation in enumerate(conversations, 1):
            which = "the question" if len(conversations) == 1 else f"question {place}"
            for text, name in ((conversation.question, which), (conversation.search_query, f"the query of {which}")):
                if not text.strip():
                    raise UsageError(f"{name} is empty: ask with at least one word.")
        queries = [Question(str(place), asked.search_query) for place, asked in enumerate(conversations, 1)]
        hits, passages = found_passages(queries, self._source, self._parts, self._model, options=self._ranking)
        inputs = [
            self._with_passages.build(Question(str(row + 1), asked.question), hits.of(row), passages, asked)
            for row, asked in enumerate(conversations)
        ]
        return inputs, passages

    def _with_sources(self, question: QuestionInput, passages: Passages, answer: Answer) -> SourcedAnswer:
        numbers = [number for prompt in question.prompts for number in prompt.passages]
        words = self._prompt.same_words(several=len(numbers) > len(question.prompts))
        tokens, baseline_T, alone = self._compared(question, passages, answer.tokens, numbers)
        text = TracedText.of_tokens("", pieces.texts_of_tokens(answer.pieces)[1], tokens, baseline_T, passages)
        asked = question.conversation or Conversation.of(question.question.text)
        asked = asked.after(words.system).with_question(str(words.text(question.question.text, ())))
        without = "\n".join(message.content for message in asked.messages)
        numbered = words.numbers_passages and len(question.prompts) == 1
        read = [passages[number] for number in numbers]
        by_number = dict(zip(numbers, AnswerSource.of_text(answer.text, read, without, numbered=numbered), strict=True))
        spans = citations(text, without, alone)
        gains = {row.passage: row.gain for row in text.contributions} if self._measures else {}
        shares = pieces.passage_shares(tokens) if gains else {}
        sources = [
            replace(by_number[number], share=shares.get(number), gain=gains.get(number), spans=spans.get(number, ()))
            for number in numbers
        ]
        asked_text = question.question.text
        return SourcedAnswer(question=asked_text, answer=answer, text=text, sources=sources, cut=question.cut)

    def _compared(
        self,
        question: QuestionInput,
        passages: Passages,
        tokens: Sequence[pieces.GeneratedToken],
        numbers: Sequence[int],
    ) -> tuple[Sequence[pieces.GeneratedToken], FloatArray, Mapping[int, float]]:
        """Return the tokens with posteriors, log-probabilities without passages, and the gain after each alone."""
        if not (self._measures and tokens and numbers):
            without = [math.nan if numbers else token.log_prob for token in tokens]
            return tokens, np.array(without, dtype=np.float32), {}
        several = len(numbers) > len(question.prompts)

        def scored(shown: Sequence[int], place: int = 1) -> FloatArray:
            words = self._prompt.same_words(several=several, number=place)
            builder = PromptBuilder(words, self._model.tokenizer, self._room)
            hits = [(number, 0.0) for number in shown]
            [prompt] = builder.build(question.question, hits, passages, question.conversation).prompts
            targets = np.array([token.token for token in tokens], dtype=np.int64)
            [log_probs_T] = self._scorer.log_probs([Request(prompt.tokens, NO_TOKENS, targets)])
            return log_probs_T

        baseline_T, alone = scored([]), dict[int, float]()
        if several:
            places = {number: place for place, number in enumerate(numbers, 1)}
            log_probs_KT = np.stack([scored([number], places[number]) for number in numbers])
            gains_K = (log_probs_KT.astype(np.float64) - baseline_T).sum(axis=1).tolist()
            alone = dict(zip(numbers, gains_K, strict=True))
            shares_TK = mixture.shares(log_probs_KT, np.zeros(len(numbers))).astype(np.float32)
            numbers_K = np.array(numbers, dtype=np.int64)
            tokens = [
                replace(token, passages_K=numbers_K, posteriors_K=shares_K)
                for token, shares_K in zip(tokens, shares_TK, strict=True)
            ]
        return tokens, baseline_T, alone
