"""Read questions with their answers or choices, in the formats of published data sets (docs/answering.md#questions).

JSON Lines and datasets of the hub have named fields; DPR's reader and SQuAD are JSON, DPR's questions tables with tabs.
MMLU is a folder of CSV files, whose names are the subjects. Files may be gzipped.
"""

import ast
import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, StrictInt, ValidationError

from ralm.answering.options import QuestionFields
from ralm.answering.prompts import LETTERS
from ralm.corpus import documents, files, folder
from ralm.corpus.formats import arrow, records
from ralm.errors import CorpusError, InputError, UsageError
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.validation import check_strings

_ANSWERS: Final = ("answers", "answer", "possible_answers")
_TABLE: Final = ".csv"
_SPLIT: Final = re.compile(r"_(dev|val|test)$")
_MIN_CHOICES: Final = 2
_Record: TypeAlias = tuple[str, Mapping[str, Any]]
"""A name for the place of a record, for messages, and the record."""
_Kind = TypeVar("_Kind", bound=BaseModel)
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the answers that count as right, and the passages that its file has for it, best first.

    `id` is the one in the file, or its place there, from 1. `stem` is the question alone if `text` lists its choices.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    passages: tuple[RetrievedPassage, ...] = ()
    choices: tuple[str, ...] = ()
    stem: str | None = None

    def __post_init__(self) -> None:
        check_strings("answers", self.answers)
        check_strings("choices", self.choices)


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its choices, the index of the right one (`gold`), its subject, and the passages of its file.

    Raises:
        UsageError: There are not 2 to 26 choices, one is empty, or `gold` is none of them.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    gold: int
    subject: str = ""
    passages: tuple[RetrievedPassage, ...] = ()

    def __post_init__(self) -> None:
        check_strings("choices", self.choices)
        if not _MIN_CHOICES <= len(self.choices) <= len(LETTERS):
            raise UsageError(
                f"question {self.id} has {len(self.choices)} choices; {_MIN_CHOICES} to {len(LETTERS)} can be asked."
            )
        if empty := [letter for letter, choice in zip(LETTERS, self.choices, strict=False) if not choice.strip()]:
            raise UsageError(f"choice {empty[0]} of question {self.id} is empty.")
        if not 0 <= self.gold < len(self.choices):
            raise UsageError(
                f"the answer of question {self.id} is choice {self.gold}, counted from 0, of {len(self.choices)}."
            )

    @property
    def letters(self) -> str:
        """The letters of the choices, in order."""
        return LETTERS[: len(self.choices)]

    @property
    def query(self) -> Question:
        """The query of a retriever: question and choices, as in the code of REPLUG."""
        listed = (f"({letter}) {choice}" for letter, choice in zip(self.letters, self.choices, strict=True))
        return Question(self.id, "\n".join([self.text, *listed]), passages=self.passages, stem=self.text)

    @property
    def with_letter(self) -> Question:
        """The question for a prompt, with the letter of its right choice as its answer."""
        return Question(self.id, self.text, (self.letters[self.gold],), choices=self.choices)


def identity_of(questions: Sequence[Question | ChoiceQuestion], *, with_passages: bool = False) -> str:
    """Return a hash of what is asked and what is right, and of the passages that questions have if these are read."""
    digest = hashlib.sha256()
    for asked in questions:
        content: list[Any] = [asked.id, asked.text]
        content += asked.answers if isinstance(asked, Question) else ([*asked.choices], asked.gold, asked.subject)
        if with_passages:
            content += [[passage.title, passage.text, passage.score] for passage in asked.passages]
        digest.update(json.dumps(content).encode())
    return digest.hexdigest()


def read_questions(
    source: Path | str, fields: QuestionFields | None = None, *, limit: int | None = None
) -> list[Question]:
    """Read the questions of a file or of a hub dataset (`hf:NAME[:CONFIG][:SPLIT]`), at most the first `limit`.

    Raises:
        InputError: The source is missing, empty or malformed; the message names the line or the place.
        MissingExtraError: A dataset needs the extra `datasets`.
    """
    with _input_errors():
        questions = []
        for place, record in enumerate(islice(_records(str(source)), limit), 1):
            asked = _parsed(_Open, record, fields or QuestionFields(), _ANSWERS)
            answers = tuple(dict.fromkeys(asked.answers))
            questions.append(Question(asked.id or str(place), asked.question, answers, asked.ctxs))
    return _not_empty(source, questions)


def read_choice_questions(
    source: Path | str, fields: QuestionFields | None = None, *, limit: int | None = None
) -> list[ChoiceQuestion]:
    """Read questions with choices as `read_questions`, also from a folder of CSV files; `limit` counts by subject."""
    taken: Counter[str] = Counter()
    questions = []
    with _input_errors():
        for place, record in enumerate(_records(str(source)), 1):
            question = _choice_question(record, str(place), fields or QuestionFields())
            taken[question.subject] += 1
            if limit is None or taken[question.subject] <= limit:
                questions.append(question)
    return _not_empty(source, questions)


def has_choices(source: str, fields: QuestionFields) -> bool:
    """Return whether the questions of a source are multiple choice: MMLU's files, or lines or rows with choices."""
    if files.suffix_of(Path(source).name) in (".json", ".tsv"):
        return False
    with _input_errors():
        return any(record.get(fields.choices) is not None for _, record in islice(_records(source), 1))


def _not_empty(source: Path | str, questions: list[_Read]) -> list[_Read]:
    if not questions:
        raise InputError(f"{source} has no questions.")
    return questions


@contextmanager
def _input_errors() -> Iterator[None]:
    try:
        yield
    except CorpusError as error:
        raise InputError(f"{documents.without_advice(error)}.") from None


def _records(source: str) -> Iterator[_Record]:
    if source.startswith(folder.HUB_PREFIX):
        rows = arrow.dataset_records(source.removeprefix(folder.HUB_PREFIX), lambda schema: schema.names)
        return ((f"{source}, row {place}", _with_line_feeds(row)) for place, row in enumerate(rows))
    path = Path(source)
    suffix = _TABLE if path.is_dir() else files.suffix_of(path.name)
    if suffix not in _READERS:
        raise InputError(f"{source} has no suffix of a file of questions: use one of {', '.join(_READERS)}.")
    paths = sorted(file for file in path.iterdir() if files.suffix_of(file.name) == _TABLE) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"{path} has no questions: a folder has {_TABLE} files as those of MMLU.")
    return ((where, _with_line_feeds(row)) for file in paths for where, row in _READERS[suffix](file))


def _with_line_feeds(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_line_feeds(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_line_feeds(item) for item in value]
    return files.line_feeds(value) if isinstance(value, str) else value


def _json_records(path: Path) -> Iterator[_Record]:
    """Yield the records of an array (DPR), or of SQuAD's articles."""
    for where, record in records.records_of_json(path):
        if isinstance(articles := record.get("data"), list):
            yield from _squad(path, articles)
        else:
            yield where, record


def _squad(path: Path, articles: Sequence[Any]) -> Iterator[_Record]:
    """Yield the questions of SQuAD's articles, each with its paragraph as its only passage."""
    number = 0
    try:
        for article in articles:
            title = str(article.get("title", "")).replace("_", " ")
            for paragraph in article["paragraphs"]:
                passage = {"title": title, "text": paragraph["context"]}
                for row in paragraph["qas"]:
                    number += 1
                    answers = [answer["text"] for answer in row["answers"]]
                    asked = {"id": row.get("id"), "question": row["question"], "answers": answers, "ctxs": [passage]}
                    yield f"{path}, question {number}", asked
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}, after question {number}, is not in SQuAD's format: {error!r}.") from None


def _table_records(path: Path) -> Iterator[_Record]:
    """Yield the rows of DPR's table with tabs: a question, and its answers in Python's notation."""
    for where, row in _table_rows(path, "\t"):
        if len(row) != 2:
            raise InputError(f"{where} has {len(row)} tab-separated fields, not 2: question, answers.")
        if _list_in(row[1]) is None:
            raise InputError(f"{where}: its answers are not a list in Python's notation: {row[1][:60]!r}.")
        yield where, {"question": row[0], "answers": row[1]}


def _csv_records(path: Path) -> Iterator[_Record]:
    """Yield the questions of a file of MMLU; DPR's tables may be called .csv, but have tabs."""
    rows = [*_table_rows(path, ",")]
    if any("\t" in field for _, row in rows[:1] for field in row):
        yield from _table_records(path)
        return
    subject = _SPLIT.sub("", files.File(path, path.name).title)
    for number, (where, (text, *choices)) in enumerate(rows, 1):
        letter = choices.pop().strip() if choices else ""
        if len(choices) < _MIN_CHOICES or letter not in tuple(LETTERS[: len(choices)]):
            raise InputError(
                f"{where} is not a question, at least {_MIN_CHOICES} choices and the letter of the right one."
            )
        row = {"question": text, "choices": choices, "answer": LETTERS.index(letter), "subject": subject}
        yield where, {"id": f"{subject}:{number}", **row}


def _table_rows(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(files.whole_text(path, InputError), newline=""), delimiter=delimiter)
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{where} is not quoted like CSV: {error}.") from None
        if row:
            yield where, row


_READERS: Final[Mapping[str, Callable[[Path], Iterator[_Record]]]] = {
    ".jsonl": records.records_of_lines,
    ".json": _json_records,
    ".tsv": _table_records,
    _TABLE: _csv_records,
}
"""Readers of records, by the suffix of a file."""


def _listed(value: Any) -> Any:
    """Return a list from a text, a list or one in a text (PopQA), texts by name, or a value with aliases (TriviaQA)."""
    if isinstance(value, Mapping):
        if "text" in value:
            return _listed(value["text"])
        aliases = _listed(value.get("aliases", []))
        return [value.get("value"), *aliases] if isinstance(aliases, Sequence) else aliases
    if not isinstance(value, str):
        return value
    return [value] if (texts := _list_in(value)) is None else texts


def _list_in(text: str) -> list[Any] | None:
    """Return the list that a text is, in JSON or in Python's notation; None for another text."""
    if text.strip().startswith("[") and text.strip().endswith("]"):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                return [*read(text.strip())]
    return None


_Name = Annotated[str, BeforeValidator(str)]


class _QuestionFields(BaseModel):
    """Fields of every record; the descriptions end the sentence "its FIELD must be ..."."""

    id: _Name | None = None
    question: Annotated[str, Field(pattern=r"\S", description="a text with at least one word")]
    ctxs: Annotated[tuple[RetrievedPassage, ...], Field(description="a list of passages, each with a `text`")] = ()


class _Open(_QuestionFields):
    answers: Annotated[
        tuple[str, ...],
        BeforeValidator(_listed),
        Field(description="a text or a list of texts"),
    ]


class _Choice(_QuestionFields):
    choices: Annotated[tuple[str, ...], Field(description="a list of texts")]
    answers: Annotated[
        StrictInt | str, Field(description="the letter, the index from 0 or the text of the right choice")
    ]
    subject: _Name = ""


def _parsed(kind: type[_Kind], record: _Record, fields: QuestionFields, answers: Sequence[str]) -> _Kind:
    """Return the fields of a record; InputError if one is missing or malformed."""
    where, row = record
    names = {"id": "id", "ctxs": "ctxs", **asdict(fields)}
    names["answers"] = fields.answers or next((name for name in answers if name in row), answers[0])
    values = {field: row[name] for field, name in names.items() if row.get(name) is not None}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    (field, *place), name = map(str, first["loc"]), names[str(first["loc"][0])]
    if name not in row:
        raise InputError(f"{where} has no field {name!r}; its fields are {', '.join(map(str, row)) or 'none'}.")
    if field == "ctxs" and place:
        where += f", passage {int(place[0]) + 1}"
        raise InputError(f"{where}: {'.'.join(place[1:]) or 'it'}: {first['msg']}.")
    expected = kind.model_fields[field].description
    raise InputError(f"{where}: its {name} must be {expected}, not {str(row[name])[:60]!r}.")


def _choice_question(record: _Record, place: str, names: QuestionFields) -> ChoiceQuestion:
    asked = _parsed(_Choice, record, names, ("answer",))
    try:
        gold = _gold(asked.answers, asked.choices)
        return ChoiceQuestion(asked.id or place, asked.question, asked.choices, gold, asked.subject, asked.ctxs)
    except UsageError as error:
        raise InputError(f"{record[0]}: {error}") from None


def _gold(answer: int | str, choices: Sequence[str]) -> int:
    """Return the index of the right choice, from its index, letter or text; UsageError if it is none or several."""
    if isinstance(answer, int):
        return answer
    places = {place for place, both in enumerate(zip(LETTERS, choices, strict=False)) if answer in both}
    if len(places) != 1:
        fault = "several of its choices" if places else "neither the letter nor the text of one of its choices"
        raise UsageError(f"its answer {answer[:60]!r} is {fault}.")
    return places.pop()
