"""Where the passages of questions come from, and the prompts with them as token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from pydantic import JsonValue

from ralm.answering.options import AnswerSemantics, ChoiceFields, QuestionFields
from ralm.answering.prompts import Conversation, Cut, Encoded, PromptEncoder, PromptText, QuestionPrompt
from ralm.answering.questions import Question, read_choice_questions, read_questions
from ralm.errors import QuestionFileError, UsageError
from ralm.protocols import LanguageModel, Reader, Reranker, Tokenizer
from ralm.reading.concatenation import Concatenation
from ralm.reading.in_context import InContext
from ralm.reading.rows import PromptRows, PromptState
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import chosen, prompt_prefixes_of
from ralm.reading.sources import FromRetriever, file_config
from ralm.reading.tokens import PassageDocuments, first_tokens
from ralm.records import NO_PASSAGE, Hits, IntArray, Passage, Passages, PromptPrefix
from ralm.retrieval.retrieval_file import RetrievedPassage, numbered_passages
from ralm.validation import config_of, retrieve_checked


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
        return retrieve_checked(self.source.retriever, [one.text for one in questions], k, len(passages)), passages


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
        hits = retrieve_checked(self.source.retriever, queries, self.reranker.candidates, len(passages))
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


def given_passages(file: Path | str, fields: ChoiceFields | None = None) -> GivenPassages:
    """The passages in a file of questions with choices (`ctxs`), found by question and choices.

    Raises QuestionFileError if it is no such file, or if no question has passages.
    """
    return GivenPassages.of_file(file, [one.query for one in read_choice_questions(file, fields)])


@dataclass(frozen=True, slots=True, eq=False)
class AskedQuestion:
    """The prompts of a question: each prompt prefix is a whole prompt, with its weight and the passages in it; and what
    was cut of each. A question without prompts is not asked. It may be a message of a `conversation`."""

    question: Question
    prompt_prefixes: Sequence[PromptPrefix]
    cuts: Sequence[Cut]
    conversation: Conversation | None = None

    @property
    def most_cut(self) -> Cut:
        """The most tokens that were cut of a prompt's demonstrations, and of its documents."""
        demonstrations, documents = (
            [getattr(cut, part) for cut in self.cuts] for part in ("demonstrations", "documents")
        )
        return Cut(max(demonstrations, default=0), max(documents, default=0))


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
            prompt_prefixes: Sequence[PromptPrefix] = [documents.joined([number for number, _ in hits], self._several)]
        else:
            prompt_prefixes = prompt_prefixes_of(self._reader, hits, documents)
        return AskedQuestion(
            question,
            prompt_prefixes,
            [documents.cut_of(prompt_prefix) for prompt_prefix in prompt_prefixes],
            conversation,
        )

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

    def joined(self, numbers: Sequence[int], several: bool | None) -> PromptPrefix:
        """The prompt with several passages in it."""
        return PromptPrefix(self._encoded(tuple(numbers), several), tuple(numbers))

    def cut_of(self, prompt_prefix: PromptPrefix) -> Cut:
        """What was cut of a prompt."""
        return self._cuts.get(prompt_prefix.passages, Cut())

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
