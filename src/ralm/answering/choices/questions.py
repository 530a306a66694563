"""Questions with choices, from the files in which data sets of multiple choice are published.

MMLU          CSV without a header: the question, its choices, and the letter of the right one; the name of the file
              is the subject, without _dev, _val or _test. A folder is all CSV files in it
JSON Lines    `question`; `choices`, a list of texts; `answer`, the letter, the index from 0, or the text of the right
              choice; `subject`, if there are several
hub datasets  hf:NAME, with the fields of JSON Lines (cais/mmlu)

Files may be gzipped. Knows files; knows nothing of models or retrieval.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ralm.answering.options import ChoiceFields
from ralm.answering.prompts import LETTERS
from ralm.answering.questions import (
    HUB,
    Question,
    field_of,
    hub_rows,
    identifier,
    line_rows,
    passages_of,
    question_text,
    table_rows,
)
from ralm.answering.sources import GivenPassages
from ralm.corpus.formats.file import File, suffix_of
from ralm.corpus.maker import without_remedy
from ralm.errors import CorpusError, QuestionFileError, UsageError
from ralm.retrieval.retrieval_file import RetrievedPassage

_TABLE: Final = ".csv"
_LINES: Final = ".jsonl"
_SPLIT: Final = re.compile(r"_(dev|val|test)$")
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its choices, the place of the right one (`gold`, from 0), and the passages that its file brings.

    `subject` is empty where the file names none. Raises UsageError if there are not 2 to 26 choices, if one is empty,
    or if `gold` is none of them.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    gold: int
    subject: str = ""
    passages: tuple[RetrievedPassage, ...] = ()

    def __post_init__(self) -> None:
        if not _FEWEST <= len(self.choices) <= len(LETTERS):
            raise UsageError(
                f"question {self.id} has {len(self.choices)} choices; {_FEWEST} to {len(LETTERS)} can be asked."
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
        """What a retriever is asked with: question and choices, as in the code of REPLUG."""
        listed = (f"({letter}) {choice}" for letter, choice in zip(self.letters, self.choices, strict=True))
        return Question(self.id, "\n".join([self.text, *listed]), passages=self.passages)

    def answered(self, answer: str) -> Question:
        """The question to put into a prompt, with what stands behind it when the answer is right."""
        return Question(self.id, self.text, (answer,), choices=self.choices)


def read_choice_questions(
    source: Path | str, fields: ChoiceFields | None = None, *, limit: int | None = None
) -> list[ChoiceQuestion]:
    """The questions of a file, of the CSV files in a folder, or of a hub dataset (`hf:NAME[:CONFIG][:SPLIT]`); of each
    subject at most the first `limit`.

    Raises QuestionFileError, naming the line or the place, if the source is missing, empty or malformed, or if a
    question lacks a field, has not 2 to 26 choices, or an answer that is none of them; MissingExtraError if a dataset
    needs the extra `datasets`.
    """
    taken: Counter[str] = Counter()
    questions: list[ChoiceQuestion] = []
    try:
        for question in _questions(str(source), fields or ChoiceFields()):
            taken[question.subject] += 1
            if limit is None or taken[question.subject] <= limit:
                questions.append(question)
    except CorpusError as error:
        raise QuestionFileError(f"{without_remedy(error)}.") from None
    if not questions:
        raise QuestionFileError(f"{source} has no questions.")
    return questions


def given_passages(file: Path | str, fields: ChoiceFields | None = None) -> GivenPassages:
    """The passages in a file of questions with choices (`ctxs`), found by question and choices.

    Raises QuestionFileError if it is no such file, or if no question has passages.
    """
    return GivenPassages.of_file(file, [one.query for one in read_choice_questions(file, fields)])


def has_fields(source: str) -> bool:
    """Whether the questions of a source are records with named fields."""
    return source.startswith(HUB) or not (Path(source).is_dir() or suffix_of(Path(source).name) == _TABLE)


def _questions(source: str, fields: ChoiceFields) -> Iterator[ChoiceQuestion]:
    if source.startswith(HUB):
        return _of_records(hub_rows(source), fields)
    path = Path(source)
    if path.is_dir():
        return _of_folder(path)
    match suffix_of(path.name):
        case ".csv":
            return _of_table(path)
        case ".jsonl":
            return _of_records(line_rows(path), fields)
    raise QuestionFileError(
        f"{path} is no file of multiple choice: give one that ends in {_TABLE} or {_LINES}, or a folder of {_TABLE}."
    )


def _of_folder(folder: Path) -> Iterator[ChoiceQuestion]:
    paths = sorted(path for path in folder.iterdir() if suffix_of(path.name) == _TABLE)
    if not paths:
        raise QuestionFileError(f"{folder} has no files that end in {_TABLE}.")
    return (question for path in paths for question in _of_table(path))


def _of_table(path: Path) -> Iterator[ChoiceQuestion]:
    """The questions of one of MMLU's files."""
    subject = _SPLIT.sub("", File(path, path.name).title)
    for number, (where, row) in enumerate(table_rows(path, ","), 1):
        if len(row) < _FEWEST + 2:
            raise QuestionFileError(
                f"{where} has {len(row)} fields separated by commas; a question, {_FEWEST} choices and a letter are "
                f"{_FEWEST + 2}."
            )
        letter = row[-1].strip()
        if letter not in tuple(LETTERS[: len(row) - 2]):
            raise QuestionFileError(
                f"{where}: its last field is {letter[:60]!r}, not the letter of one of its choices."
            )
        answer = LETTERS.index(letter)
        record = {"question": row[0], "choices": row[1:-1], "answer": answer, "subject": subject}
        yield _question(record, where, f"{subject}:{number}", ChoiceFields())


def _of_records(rows: Iterator[tuple[str, Mapping[str, Any]]], fields: ChoiceFields) -> Iterator[ChoiceQuestion]:
    return (_question(row, where, str(place), fields) for place, (where, row) in enumerate(rows, 1))


def _question(row: Mapping[str, Any], where: str, place: str, fields: ChoiceFields) -> ChoiceQuestion:
    text = question_text(row, where, fields.question)
    choices = field_of(row, where, fields.choices)
    if (
        not isinstance(choices, Sequence)
        or isinstance(choices, str)
        or not all(isinstance(one, str) for one in choices)
    ):
        raise QuestionFileError(f"{where}: its choices are not a list of texts: {str(choices)[:60]!r}.")
    subject = row.get(fields.subject)
    try:
        return ChoiceQuestion(
            id=identifier(row, place),
            text=text,
            choices=tuple(choices),
            gold=_gold(field_of(row, where, fields.answer), choices),
            subject="" if subject is None else str(subject),
            passages=passages_of(row, where),
        )
    except UsageError as error:
        raise QuestionFileError(f"{where}: {error}") from None


def _gold(answer: object, choices: Sequence[str]) -> int:
    """The place of the right choice: its index from 0, its letter or its text; UsageError if it is none or several."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    letters = LETTERS[: len(choices)]
    places = {place for place, both in enumerate(zip(letters, choices, strict=False)) if answer in both}
    if len(places) != 1:
        fault = "several of its choices" if places else f"neither a letter up to {letters[-1:]} nor one of its choices"
        raise UsageError(f"its answer {str(answer)[:60]!r} is {fault}.")
    return places.pop()
