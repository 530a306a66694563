"""Signals of questions: how likely each passage makes the gold answer, after the prompt that `ralm qa` asks with.

    log p(first gold answer | prompt of q with d)          the baseline is the prompt without a passage, the closed book

The first gold answer is the one whose log-probability `ralm qa` reports; others are mostly other forms of it, and their
sum would cost a pass for each. The folder is that of other signals (`signals.py`): the query and the prefix are the
question, its id is the document, the continuation is the answer, and `prefix_tokens` are the prompt without a passage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ralm.answering.answers import room_for_prompts
from ralm.answering.likelihoods import gold_tokens, scored_texts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt, prompt_config
from ralm.answering.questions import Question
from ralm.answering.run import identity_of_questions
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import Retriever, WritingModel
from ralm.reading.ensemble import Ensemble
from ralm.reading.mixers import LearnedWeights, PriorWeights
from ralm.records import FloatArray, IntArray
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.terminal import track
from ralm.training.examples import EXAMPLE_SCHEMA
from ralm.training.options import CandidateOptions
from ralm.training.signal_writer import write_signals
from ralm.training.signals import CANDIDATE_SCHEMA, Signals
from ralm.validation import config_of, retrieve_checked

_PART: Final = 8
"""Questions of a part: their prompts hold whole passages, so that each takes long."""
_WEIGHTS: Final = LearnedWeights(temperature=1, rank=0, overlap=0, none=0, eta=0, decay=1)
"""A mixer that needs what `ralm train mixer` learns from; its weights do not count."""


def make_question_signals(
    out: Path | str,
    questions: Sequence[Question],
    index: Index | Path | str,
    model: WritingModel,
    prompt: QuestionPrompt,
    candidates: CandidateOptions | None = None,
    *,
    retriever: Retriever | None = None,
    answering: AnswerOptions | None = None,
    force: bool = False,
) -> Signals:
    """Measure how likely each candidate makes the first gold answer of questions after `prompt`, and write the folder
    `out`.

    The candidates are the passages that `retriever` finds for the question, by default the BM25 of the index; of the
    options for candidates, their number and `evidence` count. `answering` decides the room for a prompt. Questions
    without gold answers are left out. If this is killed, call it again with the same arguments to resume. Raises
    UsageError if no question has a gold answer, and what `make_signals` raises.
    """
    candidates = candidates or CandidateOptions()
    index = index if isinstance(index, Index) else open_index(index)
    retriever = retriever or open_retriever(index)
    asked = [one for one in questions if any(answer.strip() for answer in one.answers[:1])]
    if not asked:
        raise UsageError(
            f"none of the {len(questions):,} questions has a gold answer, and signals are the log-probability of the "
            "first one: give questions with answers."
        )
    room = room_for_prompts(model, answering or AnswerOptions())
    evidence = candidates.evidence and prompt.asks_after_passages
    source = _QuestionSource(asked, index, retriever, model, prompt, candidates.candidates, evidence, room)
    asked_with = prompt_config(prompt, model.tokenizer)
    config: dict[str, JsonValue] = {
        "index": index.fingerprint,
        "retriever": config_of(retriever, "retriever"),
        "model": config_of(model, "language model"),
        "examples": {"gold": "first", "prompt": {"name": prompt.name, **asked_with}, "room": room},
        "candidates": {"candidates": candidates.candidates, "evidence": evidence, "bos": "never"},
        "text": dict(identity_of_questions(asked)),
    }
    return write_signals(out, config, source, index, force=force)


@dataclass(frozen=True, slots=True, eq=False)
class _QuestionSource:
    """Questions with gold answers, as the examples of signals."""

    questions: Sequence[Question]
    index: Index
    retriever: Retriever
    model: WritingModel
    prompt: QuestionPrompt
    candidates: int
    evidence: bool
    room: int

    def sample(self) -> Iterator[pa.Table]:
        """The questions with the tokens of their answers after the prompt without a passage."""
        rows, tokenizer = list[tuple[Any, ...]](), self.model.tokenizer
        for place, one in enumerate(track(self.questions, "Reading")):
            built = self._builder(self.room).build(one, (), ())
            gold = gold_tokens(built, self.prompt, tokenizer)
            if len(gold) >= self.model.max_length:
                raise UsageError(f"the first gold answer of question {one.id} does not fit into {self.model.name}.")
            prefix = tokenizer.decode(tokenizer.encode(one.text))  # as a reranker of `ralm qa` reads it
            rows.append((place, one.id, 0, one.text, prefix, one.answers[0], built.prompts[0].tokens, gold, []))
        for first in range(0, len(rows), _PART):
            yield pa.table([*map(list, zip(*rows[first : first + _PART], strict=True))], EXAMPLE_SCHEMA)

    def measure(self, sampled: pa.Table) -> pa.Table:
        """The log-probability of each answer after each prompt, and of the end that all prompts share."""
        numbers = sampled["example"].to_pylist()
        some = [self.questions[number] for number in numbers]
        golds = [np.array(tokens, dtype=np.int64) for tokens in sampled["continuation_tokens"].to_pylist()]
        passages, queries = self.index.passages, [one.text for one in some]
        hits = retrieve_checked(self.retriever, queries, self.candidates, len(passages))
        texts = [
            (self._input(one, hits.of(row), gold), gold)
            for row, (one, gold) in enumerate(zip(some, golds, strict=True))
        ]
        scored = scored_texts(texts, Scorer(Scorer.of(self.model).model, progress=False))
        rows: list[tuple[Any, ...]] = []
        for row, number in enumerate(numbers):
            built, found = texts[row][0], scored[row]
            rows.append((number, None, None, None, *_parted(found[-1], built.evidence)))
            for prompt, log_probs in zip(built.prompts[:-1], found[:-1], strict=True):
                rows.append((number, prompt.passage, prompt.score, prompt.overlap, *_parted(log_probs, built.evidence)))
        return pa.table([*map(list, zip(*rows, strict=True))], CANDIDATE_SCHEMA)

    def _input(self, question: Question, hits: Sequence[tuple[int, float]], gold: IntArray) -> QuestionInput:
        """The prompts of a question, each with one passage, and the last one without any."""
        room = min(self.room, self.model.max_length + 1 - len(gold))
        return self._builder(room).build(question, hits, self.index.passages)

    def _builder(self, room: int) -> PromptBuilder:
        mixer = _WEIGHTS if self.evidence else PriorWeights()
        reader = Ensemble(documents=self.candidates, mixer=mixer)
        return PromptBuilder(self.prompt, self.model.tokenizer, room, reader)


def _parted(log_probs: FloatArray, evidence: int) -> tuple[FloatArray, FloatArray]:
    """The log-probabilities of the end of a prompt, and of the answer."""
    return log_probs[:evidence], log_probs[evidence:]
