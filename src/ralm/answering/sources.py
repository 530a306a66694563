"""Where the passages of questions come from, and the prompts with them as token ids."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from pydantic import JsonValue

from ralm.answering.options import AnswerSemantics, QuestionFields
from ralm.answering.prompts import Conversation, Cut, Encoded, PromptEncoder, PromptText, QuestionPrompt
from ralm.answering.questions import Question, has_choices, read_choice_questions, read_questions
from ralm.errors import InputError, UsageError
from ralm.lm.scoring import common_prefix_length
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading import readers, rows, sampling, sources, tokens
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.records import NO_PASSAGE, NO_READINGS, Hits, IntArray, Passage, Passages, PromptPrefix, Readings
from ralm.retrieval.retrieval_file import RetrievedPassage, numbered_passages


class QuestionSource(Protocol):
    """A source of the passages of questions."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the source that decides which passages it gives."""

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """Return the k best passages of each question, fewer if fewer exist, and the passages that hits number."""


@dataclass(frozen=True, slots=True)
class GivenPassages:
    """Passages in a file of questions (DPR's `ctxs`), found by the text of the question."""

    questions: Sequence[Question]
    config: dict[str, JsonValue]

    @classmethod
    def read(cls, file: Path | str, fields: QuestionFields | None = None) -> Self:
        """Read the passages in a file of questions; if these have choices, they are found by them too.

        Raises:
            InputError: It is no such file, or no question has passages.
        """
        if has_choices(str(file), fields or QuestionFields()):
            questions = [question.query for question in read_choice_questions(file, fields)]
        else:
            questions = read_questions(file, fields)
        if not any(question.passages for question in questions):
            raise InputError(f"{file} has no passages: its questions have no `ctxs`.")
        return cls(questions, sources.file_config(Path(file)))

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """Return the first k passages of each question; InputError if the file lacks it or has several lists for it."""
        by_text: dict[str, list[Question]] = {}
        for question in self.questions:
            by_text.setdefault(question.text, []).append(question)
        hits, passages = numbered_passages([_passages_for(asked, by_text.get(asked.text, [])) for asked in questions])
        return hits.first(k), passages


def _passages_for(question: Question, alike: Sequence[Question]) -> Sequence[RetrievedPassage]:
    """Return the passages of the question in the file with the same text, or else those of the question itself."""
    same = [candidate for candidate in alike if candidate.id == question.id] or alike
    if not same and question.passages:
        return question.passages
    where = f"question {question.id}: {question.text[:60]!r}"
    if not same:
        raise InputError(f"the file of passages does not have {where}.")
    if any(candidate.passages != same[0].passages for candidate in same):
        raise InputError(f"the file of passages has several lists of passages, and none by id, for {where}.")
    return same[0].passages


def found_passages(
    questions: Sequence[Question],
    source: QuestionSource | sources.FromRetriever | None,
    parts: Parts,
    model: LanguageModel,
    k: int | None = None,
    options: sampling.GenerationOptions | None = None,
) -> tuple[Hits, Passages]:
    """Return the k best passages of each question, by default as many as the reader reads; none without a source.

    Retrievers and rerankers get the question as in both papers, retrievers its choices too.
    """
    k = parts.reader.hits if k is None else k
    if source is None:
        return Hits.none(len(questions), 1), ()
    if not isinstance(source, sources.FromRetriever):
        return source.find(questions, k)
    queries, passages = [question.text for question in questions], source.passages
    if parts.reranker is None:
        return source.search(queries, k), passages
    options = options or sampling.GenerationOptions()
    hits = source.search(queries, parts.reranker.candidates)
    documents = tokens.PassageDocuments(passages, model.tokenizer, options.document_tokens, options.bos)
    stems = (model.tokenizer.encode(question.stem or question.text) for question in questions)
    prompts = [rows.PromptState(stem, None, NO_READINGS) for stem in stems]
    prompt_rows = rows.PromptRows(prompts, queries, model, documents, passages, options)
    return parts.choose(prompt_rows, hits, passages, k), passages


@dataclass(frozen=True, slots=True, eq=False)
class QuestionInput:
    """A question's prompts, none if it is not answered; a mixer in `parts` looks at their last `evidence` tokens."""

    question: Question
    prompts: Readings
    cut: Cut = field(default_factory=Cut)
    conversation: Conversation | None = None
    parts: Parts | None = None
    evidence: int = 0


class PromptBuilder:
    """Puts questions and passages into prompts, as token ids that leave room for an answer.

    `demonstrations` stand before every prompt, except before a question that is one of them. With `official` semantics
    such a question has no prompts, as in the code of REPLUG; too long a prompt loses its special tokens first, and the
    wording depends on how many passages were requested, as in the code of In-Context RALM.
    """

    def __init__(
        self,
        prompt: QuestionPrompt,
        tokenizer: Tokenizer,
        room: int,
        parts: Parts = IN_CONTEXT,
        demonstrations: Sequence[tuple[Question, Sequence[Passage]]] = (),
        *,
        semantics: AnswerSemantics = "paper",
    ) -> None:
        self._prompt = prompt
        self._parts = parts
        if parts.evidence and not prompt.asks_after_passages:
            raise UsageError(
                f"the prompt {prompt.name} has the question before the passages, and the mixer weighs these by the "
                "tokens after them: choose another prompt or mixer."
            )
        self._official = semantics == "official"
        self._encoder = PromptEncoder(tokenizer, room, keep_first=not self._official, chat=prompt.chat)
        if unanswered := [shown for shown, _ in demonstrations if not shown.answers]:
            raise UsageError(f"the demonstration {unanswered[0].text!r} has no answer.")
        self._demonstrations = [(shown.text, shown.answers[0], read, shown.choices) for shown, read in demonstrations]

    def build(
        self,
        question: Question,
        hits: Sequence[tuple[int, float]],
        passages: Passages,
        conversation: Conversation | None = None,
    ) -> QuestionInput:
        """Return the prompts of a question with the passages of its hits; LengthError or ChatError if there is none."""
        shown = [parts for parts in self._demonstrations if (parts[0], parts[3]) != (question.text, question.choices)]
        if self._official and len(shown) < len(self._demonstrations):
            return QuestionInput(question, NO_READINGS)
        name = f"question {question.id}"
        asked = conversation
        if self._prompt.system:
            asked = (conversation or Conversation.of(question.text)).after(self._prompt.system)
        text = "".join(self._prompt.demonstration(*parts) for parts in shown)
        encode = partial(self._encoder.encode, demonstrations=text, name=name, conversation=asked)
        documents = _PromptDocuments(question, passages, self._prompt, encode)
        reader = self._parts.reader
        if isinstance(reader, readers.Concatenation) and hits:
            numbers = tuple(number for number, _ in hits)
            tokens_N = documents.encoded(numbers, reader.hits > 1 if self._official else None)
            prompts = Readings.single(PromptPrefix(tokens_N, numbers))
        else:
            prompts = self._parts.readings(hits, documents)
        cuts = [astuple(encoded.cut) for encoded in documents.of(prompts)]
        built = QuestionInput(question, prompts, Cut(*map(max, zip(*cuts, strict=True))), conversation)
        if not self._parts.looks_at(prompts):
            return built
        most = self._parts.evidence
        evidence = min(most, _common_end(name, prompts, documents)) if most else 0
        return replace(built, parts=self._parts, evidence=evidence)


def _common_end(name: str, prompts: Readings, documents: "_PromptDocuments") -> int:
    """Return the number of tokens after the passages that all prompts end with; UsageError if there are none."""
    after = [encoded.after_passages for encoded in documents.of(prompts)]
    ends = [prompt.tokens[:0:-1] for prompt in prompts]  # nothing is before the first token
    common = min(*(common_prefix_length(ends[0], end) for end in ends), *after) if len(after) == len(ends) else 0
    if common == 0:
        raise UsageError(
            f"the prompts of {name} end with different tokens, and the mixer weighs passages by the tokens after them: "
            "choose another prompt or mixer."
        )
    return common


@dataclass(frozen=True, slots=True, eq=False)
class _PromptDocuments:
    """The prompts of one question by passage, for a reader, to which they are documents."""

    question: Question
    passages: Passages
    prompt: QuestionPrompt
    tokens_of: Callable[[PromptText], Encoded]
    written: dict[tuple[int, ...], Encoded] = field(default_factory=dict)

    def __getitem__(self, number: int) -> IntArray:
        return self.encoded(() if number == NO_PASSAGE else (number,))

    def passage(self, number: int) -> Passage:
        return self.passages[number]

    def encode(self, text: str) -> IntArray:
        raise UsageError(
            f"this reader adds text of its own ({text[:30]!r}), and prompts of questions hold whole passages: read "
            "them in context, as an ensemble or concatenated."
        )

    encode_next = encode

    def of(self, prompts: Readings) -> list[Encoded]:
        """Return those of the prompts that were written here, with what was cut of them."""
        return [self.written[prompt.passages] for prompt in prompts if prompt.passages in self.written]

    def encoded(
        self,
        numbers: tuple[int, ...],
        several: bool | None = None,
    ) -> IntArray:
        """Return the prompt with these passages in it, in this order."""
        passages = [self.passages[number] for number in numbers]
        text = self.prompt.text(self.question.text, passages, self.question.choices, several=several)
        self.written[numbers] = self.tokens_of(text)
        return self.written[numbers].tokens
