"""Answers questions with a frozen language model, each answer with its sources and how they are known."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from pydantic import JsonValue

from ralm.answering.answers import Answer, AnswerStreams, answer_all, room_for_prompts
from ralm.answering.citations import AnswerSource, citations
from ralm.answering.likelihoods import NO_TOKENS, likelihoods
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, Cut, QuestionPrompt, tokens_after
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder, QuestionInput, QuestionSource, found_passages
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading import concatenation, pieces
from ralm.reading.mixture import shares
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.provenance import TracedText, gain_as_json, passage_as_json
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, Passages, Request
from ralm.validation import check_strings, scores_given_texts


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
            "cut": asdict(self.cut),
        }
        if self.sources:
            found["baseline_log_prob"] = float(self.text.baseline_T.sum(dtype=np.float64))
            found["gain"] = gain_as_json(self.text)
            found["sources"] = [
                {**passage_as_json(one.passage), "text": one.passage.text, **one.as_json()} for one in self.sources
            ]
        return found


class Answerer:
    """Answers questions with a frozen language model, and gives the sources of each answer.

    A question may be the last message of the user in a `Conversation`, if `prompt` is a chat. The passages are those of
    `source`, without it there are none; `parts` say how they are read, one in context by default. A model that ranks
    them reads as `ranking` says. An ensemble is averaged for every token.

    With `measured`, an answer is also scored after the same prompt without passages. If several passages share a
    prompt, it is scored after each of them alone, and they share the gain as an ensemble would. Raises UsageError if
    the options do not fit the model.
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
        """The answers to questions, in their order; some are answered together.

        Raises UsageError if a question is empty or does not fit into the model, ChatError if the model's chat template
        rejects a conversation.
        """
        check_strings("questions", questions)
        inputs, passages = self._inputs(questions)
        for number, answer, _ in answer_all(inputs, self._model, self._options):
            yield self._with_sources(inputs[number], passages, answer)

    def stream(self, question: str | Conversation, seeds: Sequence[int] | None = None) -> AnswerStreams[SourcedAnswer]:
        """The answer to one question, or one for each of several seeds, piece by piece; raises what `answers`
        raises."""
        [one], passages = self._inputs([question])
        seeds = [self._options.seed] if seeds is None else seeds
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
        hits, passages = found_passages(found, self._source, self._parts, self._model, options=self._ranking)
        inputs = [
            self._with_passages.build(Question(str(row + 1), one.question), hits.of(row), passages, one)
            for row, one in enumerate(conversations)
        ]
        return inputs, passages

    def given(self, question: str | Conversation, text: str) -> SourcedAnswer:
        """A text as the answer to a question, with its sources; raises what `answers` raises."""
        [one], passages = self._inputs([question])
        tokens = tokens_after(one.prompts[0].tokens, text, self._model.tokenizer)
        [read] = likelihoods([(one, tokens)], self._scorer)
        numbers_K = one.prompts.passages_K
        written = pieces.StoppedText(one.prompts[0].tokens, self._model.tokenizer)
        found: list[pieces.GeneratedText] = []
        for token, log_prob, shares_K in zip(tokens.tolist(), read.log_probs_T.tolist(), read.shares_TK, strict=True):
            found += written.add(pieces.GeneratedToken(token, log_prob, numbers_K, shares_K))
        return self._with_sources(one, passages, Answer.of([*found, *written.rest()]))

    def _with_sources(self, question: QuestionInput, passages: Passages, answer: Answer) -> SourcedAnswer:
        """An answer with what each passage gave to it, and what its text says about them."""
        numbers = [number for prompt in question.prompts for number in prompt.passages]
        words = self._prompt.same_words(several=len(numbers) > len(question.prompts))
        tokens, baseline_T, alone = self._compared(question, passages, answer.tokens, numbers)
        text = TracedText.of_tokens("", pieces.texts_of_tokens(answer.pieces)[1], tokens, baseline_T, passages)
        asked = question.conversation or Conversation.of(question.question.text)
        asked = asked.after(words.system).with_question(str(words.text(question.question.text, ())))
        own = "\n".join(one.content for one in asked.messages)
        placed = self._in_prompt(numbers)
        numbered = words.numbers_passages and len(question.prompts) == 1
        in_text = AnswerSource.of_text(answer.text, [passages[number] for number in placed], own, numbered=numbered)
        by_number = dict(zip(placed, in_text, strict=True))
        spans = citations(text, own, alone)
        gains = {row.passage: row.gain for row in text.contributions} if self._measures else {}
        shares = pieces.passage_shares(tokens) if gains else {}
        sources = [
            replace(by_number[number], share=shares.get(number), gain=gains.get(number), spans=spans.get(number, ()))
            for number in numbers
        ]
        asked_text = question.question.text
        return SourcedAnswer(question=asked_text, answer=answer, text=text, sources=sources, cut=question.cut)

    def _in_prompt(self, numbers: Sequence[int]) -> Sequence[int]:
        """Passages, given best first, in the order in which a prompt has them."""
        reader = self._parts.reader
        return reader.in_order(tuple(numbers)) if isinstance(reader, concatenation.Concatenation) else numbers

    def _compared(
        self,
        question: QuestionInput,
        passages: Passages,
        tokens: Sequence[pieces.GeneratedToken],
        numbers: Sequence[int],
    ) -> tuple[Sequence[pieces.GeneratedToken], FloatArray, Mapping[int, float]]:
        """Return the tokens of an answer with the posteriors of its passages; their log-probabilities (float32, T)
        without these, NaN if they are not measured; and by number, the gain of the text after each passage alone in
        nats, if they share a prompt."""
        if not (self._measures and tokens and numbers):
            without = [math.nan if numbers else token.log_prob for token in tokens]
            return tokens, np.array(without, dtype=np.float32), {}
        several = len(numbers) > len(question.prompts)

        def scored(some: Sequence[int], place: int = 1) -> FloatArray:
            words = self._prompt.same_words(several=several, number=place)
            builder = PromptBuilder(words, self._model.tokenizer, self._room)
            hits = [(number, 0.0) for number in some]
            [prompt] = builder.build(question.question, hits, passages, question.conversation).prompts
            targets = np.array([token.token for token in tokens], dtype=np.int64)
            [log_probs_T] = self._scorer.log_probs([Request(prompt.tokens, NO_TOKENS, targets)])
            return log_probs_T

        baseline_T, alone = scored([]), dict[int, float]()
        if several:
            places = {number: place for place, number in enumerate(self._in_prompt(numbers), 1)}
            log_probs_KT = np.stack([scored([number], places[number]) for number in numbers])
            gains_K = (log_probs_KT.astype(np.float64) - baseline_T).sum(axis=1).tolist()
            alone = dict(zip(numbers, gains_K, strict=True))
            shares_TK = shares(log_probs_KT, np.zeros(len(numbers))).astype(np.float32)
            numbers_K = np.array(numbers, dtype=np.int64)
            tokens = [
                replace(token, passages_K=numbers_K, posteriors_K=shares_K)
                for token, shares_K in zip(tokens, shares_TK, strict=True)
            ]
        return tokens, baseline_T, alone
