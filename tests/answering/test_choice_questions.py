"""Questions with choices from every format, the subjects of MMLU, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest

from ralm.answering.multiple_choice import CATEGORIES, category_of
from ralm.answering.options import ChoiceFields
from ralm.answering.questions import ChoiceQuestion, has_fields, read_choice_questions
from ralm.answering.sources import GivenPassages
from ralm.errors import QuestionFileError, UsageError
from tests.shared_data import shared


def test_mmlus_files(tmp_path: Path) -> None:
    (tmp_path / "anatomy_test.csv").write_text('Who?,a,"b, c",d,B\n\n"What\nis?",C,A, A\n')
    [first, second] = read_choice_questions(tmp_path / "anatomy_test.csv")
    assert first == ChoiceQuestion("anatomy:1", "Who?", ("a", "b, c", "d"), 1, "anatomy")
    assert second == ChoiceQuestion("anatomy:2", "What\nis?", ("C", "A"), 0, "anatomy"), "the letter, not the text"
    assert first.query.text == "Who?\n(A) a\n(B) b, c\n(C) d"
    (tmp_path / "virology_dev.csv.gz").write_bytes(gzip.compress(b"x,y,z,A\nx,y,z,A\nx,y,z,A\n"))
    (tmp_path / "README.txt").write_text("MMLU")
    folder = read_choice_questions(tmp_path, limit=2)
    assert [one.id for one in folder] == ["anatomy:1", "anatomy:2", "virology:1", "virology:2"], "2 of each subject"


@pytest.mark.parametrize(("answer", "gold"), [("B", 1), (1, 1), ("two", 1), ("A", 0)])
def test_json_lines(tmp_path: Path, answer: object, gold: int) -> None:
    row = {"question": "x?", "choices": ["one", "two", "3"], "answer": answer, "subject": "law", "id": 7}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    assert read_choice_questions(tmp_path / "own.jsonl") == [
        ChoiceQuestion("7", "x?", ("one", "two", "3"), gold, "law")
    ]


def test_named_fields(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"q": "x?", "options": ["one", "two"], "right": 0, "topic": 3}\n')
    fields = ChoiceFields(question="q", choices="options", answer="right", subject="topic")
    assert read_choice_questions(tmp_path / "own.jsonl", fields) == [ChoiceQuestion("1", "x?", ("one", "two"), 0, "3")]
    assert has_fields(str(tmp_path / "own.jsonl"))
    assert has_fields("hf:cais/mmlu:all:test")
    assert not has_fields(str(tmp_path))
    assert not has_fields("anatomy_test.csv.gz")


def test_a_dataset_of_the_hub(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"question": ["x?"], "subject": ["anatomy"], "choices": [["a", "b", "c", "d"]], "answer": [3]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "mmlu")
    [question] = read_choice_questions(f"hf:{tmp_path / 'mmlu'}")
    assert question == ChoiceQuestion("1", "x?", ("a", "b", "c", "d"), 3, "anatomy")


def test_given_passages_belong_to_question_and_choices(tmp_path: Path) -> None:
    rows = [
        {"question": "x?", "choices": ["a", "b"], "answer": 0, "ctxs": [{"text": "first"}]},
        {"question": "x?", "choices": ["a", "c"], "answer": 0, "ctxs": [{"text": "second"}, {"text": "third"}]},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = read_choice_questions(path)
    hits, passages = GivenPassages.read(path, ChoiceFields()).find([one.query for one in questions], 1)
    assert [passages[number].text for row in (0, 1) for number, _ in hits.of(row)] == ["first", "second"]
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"question": "x?", "choices": ["a", "b"], "answer": 0}\n')
    with pytest.raises(QuestionFileError, match="has no passages"):
        GivenPassages.read(bare, ChoiceFields())


LINE = {"question": "x", "choices": ["a", "b"], "answer": 0}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", LINE | {"question": None}, "line 2 has no field 'question'; its fields are question, choices"),
        ("b.jsonl", {"question": "x", "answer": 0}, "line 2 has no field 'choices'"),
        ("c.jsonl", {"question": "x", "choices": ["a", "b"]}, "line 2 has no field 'answer'"),
        ("d.jsonl", LINE | {"choices": "a b"}, "line 2: its choices are not a list of texts: 'a b'"),
        ("e.jsonl", LINE | {"choices": ["a", 2]}, "line 2: its choices are not a list of texts"),
        ("f.jsonl", LINE | {"choices": ["a"]}, "line 2: question 2 has 1 choices; 2 to 26 can be asked"),
        ("g.jsonl", LINE | {"choices": [*map(str, range(27))]}, "line 2: question 2 has 27 choices; 2 to 26"),
        ("h.jsonl", LINE | {"choices": ["a", " "]}, "line 2: choice B of question 2 is empty"),
        ("i.jsonl", LINE | {"answer": 2}, "line 2: the answer of question 2 is choice 2, counted from 0, of 2"),
        ("j.jsonl", LINE | {"answer": -1}, "line 2: the answer of question 2 is choice -1"),
        (
            "k.jsonl",
            LINE | {"answer": "C"},
            "line 2: its answer 'C' is neither a letter up to B nor one of its choices",
        ),
        ("l.jsonl", LINE | {"answer": True}, "line 2: its answer 'True' is neither a letter"),
        ("m.jsonl", LINE | {"choices": ["a", "A"], "answer": "A"}, "line 2: its answer 'A' is several of its choices"),
        ("n.jsonl", LINE | {"choices": ["a", "a"], "answer": "a"}, "line 2: its answer 'a' is several of its choices"),
        ("o.jsonl", LINE | {"ctxs": "x"}, "line 2: its `ctxs` are not a list"),
        ("p.jsonl", [1], "line 2 is JSON but not an object"),
        (
            "q.csv",
            "x,a,b,A\nx,A\n",
            "line 2 has 2 fields separated by commas; a question, 2 choices and a letter are 4",
        ),
        ("r.csv", "x,a,b,A\nx,a,b,C\n", "line 2: its last field is 'C', not the letter of one of its choices"),
        ("s.csv", "question,A,B,answer\n", "line 1: its last field is 'answer', not the letter"),
        ("t.csv", " ,a,b,A\n", "line 1: its question is ' ', not text"),
        ("u.csv", "", "is empty"),
        ("v.txt", "x", "v.txt is no file of multiple choice: give one that ends in .csv or .jsonl"),
        ("w.csv", "\n", "has no questions"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, content: object, said: str) -> None:
    text = content if isinstance(content, str) else f"{json.dumps(LINE)}\n{json.dumps(content)}\n"
    (tmp_path / name).write_text(text)
    with pytest.raises(QuestionFileError) as raised:
        read_choice_questions(tmp_path / name)
    assert said in str(raised.value)


def test_a_folder_without_questions(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match=r"has no files that end in \.csv"):
        read_choice_questions(tmp_path)
    with pytest.raises(QuestionFileError, match="does not exist"):
        read_choice_questions(tmp_path / "none.csv")


def test_a_question_of_ones_own() -> None:
    with pytest.raises(UsageError, match="question x has 1 choices"):
        ChoiceQuestion("x", "who?", ("a",), 0)


def test_every_subject_of_mmlu_has_a_category() -> None:
    subjects = [subject for own in CATEGORIES.values() for subject in own]
    assert len(subjects) == len(set(subjects)) == 57
    assert [len(own) for own in CATEGORIES.values()] == [13, 12, 19, 13]
    assert all(list(own) == sorted(own) for own in CATEGORIES.values())
    assert category_of("anatomy") == "STEM"
    assert category_of("Anatomy") is None


@pytest.mark.parametrize(("split", "count"), [("dev", 285), ("test", 14042)])
def test_mmlu(split: str, count: int) -> None:
    questions = read_choice_questions(shared("data", "mmlu", split))
    assert len(questions) == count
    subjects = {one.subject for one in questions}
    assert len(subjects) == 57
    assert None not in {category_of(subject) for subject in subjects}
    assert {len(one.choices) for one in questions} == {4}
    first = questions[0]
    assert (first.id, first.subject, first.letters[first.gold]) == ("abstract_algebra:1", "abstract_algebra", "B")
