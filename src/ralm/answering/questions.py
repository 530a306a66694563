"""Reads questions with their answers or choices, in the formats of published data sets.

NQ-open           JSON Lines with `question` and `answer`, a list
DPR's reader      a JSON array of `question`, `answers` and `ctxs`, the retrieved passages
DPR's questions   TSV without a header: the question, and a list of answers in Python's notation (NQ, TriviaQA, ...)
TriviaQA          a JSON object with `Data`; an answer has a value and aliases
SQuAD, XQuAD      a JSON object with `data`; a question comes with its paragraph
PopQA             TSV with a header: `question`, and `possible_answers`, a JSON list in a text
MMLU              CSV without a header: the question, its choices, and the letter of the right one; the name of the file
                  is the subject, without _dev, _val or _test. A folder is all CSV files in it
multiple choice   JSON Lines with `question`; `choices`, a list of texts; `answer`, the letter, the index from 0, or the
                  text of the right choice; `subject`, if there are several
hub datasets      hf:NAME, with the fields of any of these

Files may be gzipped.
"""

import ast
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from ralm.answering.options import QuestionFields
from ralm.answering.prompts import LETTERS
from ralm.corpus import documents, files
from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.formats import arrow, tables
from ralm.corpus.formats.json_records import check_surrogates, has_surrogates, record_of_line
from ralm.errors import CorpusError, InputError, UsageError
from ralm.retrieval.retrieval_file import RetrievedPassage

_ANSWERS: Final = ("answers", "answer", "possible_answers")
_QUESTION: Final = "question"
_ALIASES: Final = ("aliases", "Aliases")
_VALUES: Final = ("value", "Value")
_SUFFIXES: Final = (".jsonl", ".json", ".tsv", ".csv")
_TABLE: Final = ".csv"
_LINES: Final = ".jsonl"
_SPLIT: Final = re.compile(r"_(dev|val|test)$")
_MIN_CHOICES: Final = 2
_PASSAGES: Final = TypeAdapter(list[RetrievedPassage])
_Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""A name for the place of a record, for messages, and the record."""
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the answers that count as right, and the passages that its file has for it, best first.

    `id` is the one in the file, or its place there, from 1. Without `answers`, an answer cannot be judged. `choices`
    are for prompts that show them; `stem` is the question alone if `text` lists them too.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    passages: tuple[RetrievedPassage, ...] = ()
    choices: tuple[str, ...] = ()
    stem: str | None = None


def read_questions(
    source: Path | str, fields: QuestionFields | None = None, *, limit: int | None = None
) -> list[Question]:
    """The questions of a file or of a hub dataset (`hf:NAME[:CONFIG][:SPLIT]`), at most the first `limit`.

    Raises InputError, naming the line or the place, if the source is missing, empty or malformed, or if a
    question is empty or has no field of answers; MissingExtraError if a dataset needs the extra `datasets`.
    """
    names = fields or QuestionFields()
    rows = enumerate(islice(_rows(str(source)), limit), 1)
    return _all_of(source, (_question(row, where, str(place), names) for place, (where, row) in rows))


def _all_of(source: Path | str, questions: Iterator[_Read]) -> list[_Read]:
    with _input_errors():
        if found := [*questions]:
            return found
    raise InputError(f"{source} has no questions.")


@contextmanager
def _input_errors() -> Iterator[None]:
    """Turn errors of reading a corpus into InputError."""
    try:
        yield
    except CorpusError as error:
        raise InputError(f"{documents.without_advice(error)}.") from None


def _rows(source: str) -> Iterator[_Row]:
    """The records of a source."""
    if source.startswith(HUB_PREFIX):
        return _hub_rows(source)
    path = Path(source)
    suffix = files.suffix_of(path.name)
    if suffix == _LINES:
        return _line_rows(path)
    if suffix == ".json":
        return _json(path)
    if suffix in (".tsv", ".csv"):
        return _table(path)
    raise InputError(f"{path} has no suffix of a file of questions: use one of {', '.join(_SUFFIXES)}.")


def _hub_rows(source: str) -> Iterator[_Row]:
    """The records of a hub dataset (`hf:NAME`)."""
    records = arrow.dataset_records(source.removeprefix(HUB_PREFIX), lambda schema: schema.names)
    for row, record in enumerate(records):
        yield f"{source}, row {row}", record


def _line_rows(path: Path) -> Iterator[_Row]:
    """The records of JSON Lines; blank lines are ignored."""
    for number, offset, line in files.lines_of(path):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, record_of_line(line, where, offset)


def _json(path: Path) -> Iterator[_Row]:
    text = _text(path)
    rows = _json_rows(path, text)
    if not has_surrogates(text):
        yield from rows
    for where, row in rows:
        check_surrogates(row, where)
        yield where, row


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}.") from None
    if isinstance(content, dict):
        if isinstance(content.get("data"), list):
            yield from _squad(path, content["data"])
            return
        content = content.get("Data")
    if not isinstance(content, list):
        raise InputError(
            f"{path} is neither an array of questions (DPR) nor an object with `data` (SQuAD) or `Data` (TriviaQA)."
        )
    for number, row in enumerate(content, 1):
        where = f"{path}, question {number}"
        if not isinstance(row, dict):
            raise InputError(f"{where} is not an object with fields.")
        if "Question" in row and "question" not in row:  # TriviaQA
            row = {"id": row.get("QuestionId"), "question": row["Question"], "answers": row.get("Answer")}
        yield where, row


def _squad(path: Path, articles: Sequence[Any]) -> Iterator[_Row]:
    """The questions of SQuAD's articles, each with its paragraph as its only passage."""
    number = 0
    try:
        for article in articles:
            title = str(article.get("title", "")).replace("_", " ")
            for paragraph in article["paragraphs"]:
                passage = {"title": title, "text": paragraph["context"]}
                for row in paragraph["qas"]:
                    number += 1
                    answers = [answer["text"] for answer in row["answers"]]
                    yield (
                        f"{path}, question {number}",
                        {"id": row.get("id"), "question": row["question"], "answers": answers, "ctxs": [passage]},
                    )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}, after question {number}, is not in SQuAD's format: {error!r}.") from None


def _table(path: Path) -> Iterator[_Row]:
    """Rows of question and answers, a list in Python's notation; or records, if the first row names `question`."""
    header: list[str] | None = None
    for where, row in _table_rows(path, "\t"):
        if header is None and _QUESTION in row:
            header = row
            continue
        if len(row) != len(header or (1, 2)):
            expected = f"its header has {len(header)}" if header else "a question and its answers are 2"
            raise InputError(f"{where} has {len(row)} tab-separated fields; {expected}.")
        if header:
            yield where, dict(zip(header, row, strict=True))
            continue
        try:
            answers = ast.literal_eval(row[1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise InputError(f"{where}: its answers are not a list in Python's notation: {row[1][:60]!r}.") from None
        yield where, {_QUESTION: row[0], "answers": answers}


def _table_rows(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table without a header, each with a name for its place; empty lines are ignored."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter)
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        try:
            row = tables.next_row(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{where} is not quoted like CSV: {error}.") from None
        if row:
            yield where, row


def _text(path: Path) -> str:
    return files.decode(files.content_of(path), str(path)).removeprefix(files.BYTE_ORDER_MARK)


def _question(row: Mapping[str, Any], where: str, place: str, fields: QuestionFields) -> Question:
    return Question(
        id=place if row.get("id") is None else str(row["id"]),
        text=_question_text(row, where, fields.question),
        answers=_answers(row, where, fields),
        passages=_given_passages(row, where),
    )


def _question_text(row: Mapping[str, Any], where: str, field: str) -> str:
    """The question of a record; InputError if it has none, or if it is empty or no text."""
    text = _field_of(row, where, field)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: its question is {text!r}, not text.")
    return text


def _field_of(row: Mapping[str, Any], where: str, field: str) -> Any:
    """The value of a field of a record; InputError if it has none, with the fields that there are."""
    if row.get(field) is None:
        raise _lacks(repr(field), row, where)
    return row[field]


def _lacks(field: str, row: Mapping[str, Any], where: str) -> InputError:
    return InputError(f"{where} has no field {field}; its fields are {', '.join(map(str, row)) or 'none'}.")


def _answers(row: Mapping[str, Any], where: str, fields: QuestionFields) -> tuple[str, ...]:
    names = _ANSWERS if fields.answers is None else (fields.answers,)
    name = next((name for name in names if name in row), None)
    if name is None:
        raise _lacks(" or ".join(map(repr, names)), row, where)
    value = row[name]
    answers = _listed(value if (inner := _list_in_text(value)) is None else inner)
    if answers is None or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f"{where}: its answers are neither text nor a list of texts: {str(value)[:60]!r}.")
    if inner is None and any(_list_in_text(answer) is not None for answer in answers):
        raise InputError(f"{where}: one of its answers is a list in a text: {str(value)[:60]!r}; give the list.")
    return tuple(dict.fromkeys(answers))


def _list_in_text(value: Any) -> list[Any] | None:
    """The list that a text is, in JSON (PopQA) or in Python's notation; None for another text or value."""
    if not (isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            found = read(value.strip())
            return found if isinstance(found, list) else None
    return None


def _listed(value: Any) -> list[Any] | None:
    """Answers as a list: one text, a list, or a value with its aliases (TriviaQA), or texts by name (SQuAD)."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        if "text" in value:
            return _listed(value["text"])
        values = [value[name] for name in _VALUES if name in value]
        aliases: Any = next((value[name] for name in _ALIASES if name in value), [])
        listed = _listed(aliases) if isinstance(aliases, Sequence) else None
        return None if listed is None or not values else [*values, *listed]
    if isinstance(value, Sequence):
        return list(value)
    return None


def _given_passages(row: Mapping[str, Any], where: str) -> tuple[RetrievedPassage, ...]:
    """The retrieved passages of a record, in DPR's `ctxs`; InputError if they are malformed."""
    given = row.get("ctxs") or []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"{where}: its `ctxs` are not a list of passages.")
    try:
        return tuple(_PASSAGES.validate_python(given))
    except ValidationError as error:
        first = error.errors()[0]
        number, *parts = first["loc"]
        at = ".".join(map(str, parts)) or "it"
        raise InputError(f"{where}, passage {int(number) + 1}: {at}: {first['msg']}.") from None


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its choices, the index of the right one (`gold`), its subject, if the file names one, and the
    passages that the file has for it.

    Raises UsageError if there are not 2 to 26 choices, if one is empty, or if `gold` is none of them.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    gold: int
    subject: str = ""
    passages: tuple[RetrievedPassage, ...] = ()

    def __post_init__(self) -> None:
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

    def with_answer(self, answer: str) -> Question:
        """The question for a prompt, with the text of its right answer."""
        return Question(self.id, self.text, (answer,), choices=self.choices)


def read_choice_questions(
    source: Path | str, fields: QuestionFields | None = None, *, limit: int | None = None
) -> list[ChoiceQuestion]:
    """The questions of a file, of the CSV files in a folder, or of a hub dataset (`hf:NAME[:CONFIG][:SPLIT]`); of each
    subject at most the first `limit`.

    Raises InputError, naming the line or the place, if the source is missing, empty or malformed, or if a question
    lacks a field or is no `ChoiceQuestion`; MissingExtraError if a dataset needs the extra `datasets`.
    """
    taken: Counter[str] = Counter()

    def is_wanted(question: ChoiceQuestion) -> bool:
        taken[question.subject] += 1
        return limit is None or taken[question.subject] <= limit

    return _all_of(source, filter(is_wanted, _choice_questions(str(source), fields or QuestionFields())))


def has_fields(source: str) -> bool:
    """Whether the questions of a source are records with named fields."""
    return source.startswith(HUB_PREFIX) or not (Path(source).is_dir() or files.suffix_of(Path(source).name) == _TABLE)


def has_choices(source: str, fields: QuestionFields) -> bool:
    """Return whether the questions of a source are multiple choice: MMLU's files, or records with choices."""
    path, is_hub = Path(source), source.startswith(HUB_PREFIX)
    with _input_errors():
        if not has_fields(source):  # DPR's tables may be called .csv, but have tabs
            first = [] if path.is_dir() else islice(_table_rows(path, ","), 1)
            return not any("\t" in field for _, row in first for field in row)
        rows = _rows(source) if is_hub or files.suffix_of(path.name) == _LINES else ()
        return any(row.get(fields.choices) is not None for _, row in islice(rows, 1))


def _choice_questions(source: str, fields: QuestionFields) -> Iterator[ChoiceQuestion]:
    path, is_hub = Path(source), source.startswith(HUB_PREFIX)
    if not is_hub and path.is_dir():
        paths = sorted(one for one in path.iterdir() if files.suffix_of(one.name) == _TABLE)
        if not paths:
            raise InputError(f"{path} has no files that end in {_TABLE}.")
        for one in paths:
            yield from _of_table(one)
    elif is_hub or files.suffix_of(path.name) == _LINES:
        for place, (where, row) in enumerate(_rows(source), 1):
            yield _choice_question(row, where, str(place), fields)
    elif files.suffix_of(path.name) == _TABLE:
        yield from _of_table(path)
    else:
        raise InputError(
            f"{path} is no file of multiple choice: give one that ends in {_TABLE} or {_LINES}, or a folder of "
            f"{_TABLE}."
        )


def _of_table(path: Path) -> Iterator[ChoiceQuestion]:
    """The questions of one of MMLU's files."""
    subject = _SPLIT.sub("", files.File(path, path.name).title)
    for number, (where, row) in enumerate(_table_rows(path, ","), 1):
        if len(row) < _MIN_CHOICES + 2:
            raise InputError(
                f"{where} has {len(row)} fields separated by commas; a question, {_MIN_CHOICES} choices and a letter "
                f"are {_MIN_CHOICES + 2}."
            )
        letter = row[-1].strip()
        if letter not in tuple(LETTERS[: len(row) - 2]):
            raise InputError(f"{where}: its last field is {letter[:60]!r}, not the letter of one of its choices.")
        answer = LETTERS.index(letter)
        record = {"question": row[0], "choices": row[1:-1], "answer": answer, "subject": subject}
        yield _choice_question(record, where, f"{subject}:{number}", QuestionFields())


def _choice_question(row: Mapping[str, Any], where: str, place: str, fields: QuestionFields) -> ChoiceQuestion:
    text = _question_text(row, where, fields.question)
    choices = _field_of(row, where, fields.choices)
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not all(isinstance(c, str) for c in choices):
        raise InputError(f"{where}: its choices are not a list of texts: {str(choices)[:60]!r}.")
    subject = row.get(fields.subject)
    try:
        return ChoiceQuestion(
            id=place if row.get("id") is None else str(row["id"]),
            text=text,
            choices=tuple(choices),
            gold=_gold(_field_of(row, where, fields.answers or "answer"), choices),
            subject="" if subject is None else str(subject),
            passages=_given_passages(row, where),
        )
    except UsageError as error:
        raise InputError(f"{where}: {error}") from None


def _gold(answer: object, choices: Sequence[str]) -> int:
    """The index of the right choice, from its index, letter or text; UsageError if it is none or several."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    letters = LETTERS[: len(choices)]
    places = {place for place, both in enumerate(zip(letters, choices, strict=False)) if answer in both}
    if len(places) != 1:
        fault = "several of its choices" if places else f"neither a letter up to {letters[-1:]} nor one of its choices"
        raise UsageError(f"its answer {str(answer)[:60]!r} is {fault}.")
    return places.pop()
