"""The passages of questions: found by a retriever that is asked with the question, perhaps chosen among more by a
reranker, or given in a file.

Knows questions, retrievers, rerankers and files; knows nothing of prompts or answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from pydantic import JsonValue

from ralm.answering.options import QuestionFields
from ralm.answering.questions import Question, read_questions
from ralm.errors import QuestionFileError
from ralm.protocols import LanguageModel, Reranker
from ralm.reading.rows import PromptRows, PromptState
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import chosen
from ralm.reading.sources import FromRetriever, file_config
from ralm.reading.tokens import PassageDocuments, first_tokens
from ralm.records import Hits, Passage, Passages
from ralm.retrieval.retrieval_file import RetrievedPassage, numbered_passages
from ralm.validation import ask, config_of


class QuestionSource(Protocol):
    """A source of the passages of questions."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the source that decides which passages it gives."""

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """The k best passages of each question (fewer if fewer exist), and what their numbers refer to."""


@dataclass(frozen=True, slots=True)
class AskedRetriever:
    """Passages that a retriever finds; its query is the question, as in both papers."""

    source: FromRetriever

    @property
    def config(self) -> dict[str, JsonValue]:
        """What the retriever and its corpus are."""
        return self.source.config

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """Ask the retriever with the questions."""
        passages = self.source.passages
        return ask(self.source.retriever, [one.text for one in questions], k, len(passages)), passages


@dataclass(frozen=True, slots=True)
class RerankedPassages:
    """Passages that a reranker chooses among those that a retriever finds; both look at the question.

    A model that ranks reads a passage before the question, cut to the `document_tokens` of `options`; `model` is the
    one that ranks if the reranker has none of its own.
    """

    source: FromRetriever
    reranker: Reranker
    model: LanguageModel
    options: GenerationOptions

    @property
    def config(self) -> dict[str, JsonValue]:
        """What the retriever, its corpus and the reranker are."""
        return {**self.source.config, **config_of(self.reranker, "reranker")}

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """Ask the retriever with the questions, and the reranker for the k best.

        Raises UsageError if the reranker looks at the answer.
        """
        passages, tokenizer = self.source.passages, self.model.tokenizer
        queries = [one.text for one in questions]
        hits = ask(self.source.retriever, queries, self.reranker.candidates, len(passages))
        first = first_tokens(tokenizer, self.options.bos)
        documents = PassageDocuments(passages, tokenizer, self.options.document_tokens, first)
        prompts = [PromptState(tokenizer.encode(text), None, ()) for text in queries]
        rows = PromptRows(prompts, queries, self.model, documents, passages, self.options)
        return chosen(self.reranker, rows, hits, passages, k), passages


@dataclass(frozen=True, slots=True)
class GivenPassages:
    """Passages that stand in a file of questions (DPR's `ctxs`), found by the text of the question."""

    questions: Sequence[Question]
    config: dict[str, JsonValue]

    @classmethod
    def read(cls, file: Path | str, fields: QuestionFields | None = None) -> Self:
        """The passages in a file of questions.

        Raises QuestionFileError if it is no such file, or if no question has passages.
        """
        return cls.of_file(file, read_questions(file, fields))

    @classmethod
    def of_file(cls, file: Path | str, questions: Sequence[Question]) -> Self:
        """The passages of the questions that a file holds; QuestionFileError if no question has any."""
        if not any(one.passages for one in questions):
            raise QuestionFileError(f"{file} has no passages: its questions have no `ctxs`.")
        return cls(questions, file_config(Path(file)))

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """Take the first k passages of each question from the file.

        Raises QuestionFileError if a question is not there, or if its text is there twice with other passages, and no
        id tells which is meant.
        """
        by_text: dict[str, list[Question]] = {}
        for one in self.questions:
            by_text.setdefault(one.text, []).append(one)
        hits, passages = numbered_passages([_given_to(one, by_text.get(one.text, [])) for one in questions])
        return hits.first(k), passages


def _given_to(question: Question, alike: Sequence[Question]) -> Sequence[RetrievedPassage]:
    """The passages of a question, of those in the file that have its text; without any, those that it brings itself."""
    same = [one for one in alike if one.id == question.id] or alike
    if not same and question.passages:
        return question.passages
    where = f"question {question.id}: {question.text[:60]!r}"
    if not same:
        raise QuestionFileError(f"the file of passages does not have {where}.")
    if any(one.passages != same[0].passages for one in same):
        raise QuestionFileError(f"the file of passages has several passages, by no id of a question, for {where}.")
    return same[0].passages


def found_passages(questions: Sequence[Question], source: QuestionSource | None, k: int) -> tuple[Hits, Passages]:
    """The k best passages of each question, and what their numbers refer to; none without a source."""
    return (Hits.none(len(questions), 1), ()) if source is None else source.find(questions, k)


def first_passages(questions: Sequence[Question], source: QuestionSource | None) -> list[Sequence[Passage]]:
    """The first passage of each question, if there is one."""
    hits, passages = found_passages(questions, source if questions else None, 1)
    return [[passages[number] for number, _ in hits.of(row)] for row in range(len(questions))]
