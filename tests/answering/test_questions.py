"""Questions with answers or choices, from every format in which they are published, and rejected files."""

import gzip
import json
from pathlib import Path

import pytest

from ralm.answering.multiple_choice import CATEGORIES, category_of
from ralm.answering.options import QuestionFields
from ralm.answering.questions import (
    ChoiceQuestion,
    Question,
    has_choices,
    read_choice_questions,
    read_questions,
)
from ralm.answering.sources import GivenPassages
from ralm.errors import InputError, UsageError
from tests.shared_data import shared


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


GOLDEN = ("golden", "official_qa", "questions.nq_oracle.jsonl")
SQUAD = '{"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]}'


def test_json_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "nq.jsonl",
        '\ufeff{"question": "who?", "answer": ["A", "B", "A"]}\n\n{"id": 7, "question": "x", "answer": "y"}\n',
    )
    assert read_questions(path) == [Question("1", "who?", ("A", "B")), Question("7", "x", ("y",))]
    assert read_questions(path, limit=1) == [Question("1", "who?", ("A", "B"))]


def test_named_fields(tmp_path: Path) -> None:
    path = written(tmp_path, "own.jsonl", '{"ask": "who?", "right": ["A"], "question": 3, "answers": 4}\n')
    assert read_questions(path, QuestionFields(question="ask", answers="right")) == [Question("1", "who?", ("A",))]


def test_dprs_reader_format(tmp_path: Path) -> None:
    row = {
        "question": "who?",
        "answers": ["A"],
        "ctxs": [
            {"id": "wiki:1", "title": "T", "text": "a text", "score": "81.5", "has_answer": True},
            {"text": "b", "id": 2},
        ],
    }
    for name in ("nq.json", "nq.json.gz"):
        [question] = read_questions(written(tmp_path, name, [row]))
        first, second = question.passages
        assert (first.title, first.text, first.score, first.id) == ("T", "a text", 81.5, "wiki:1")
        assert (second.title, second.text, second.score, second.id) == ("", "b", 0.0, "2")


def test_dprs_questions(tmp_path: Path) -> None:
    long = "why " * 40_000
    assert read_questions(written(tmp_path, "a.tsv", f"{long}\t['y']\n"))[0].text == long
    path = written(tmp_path, "nq.csv", 'who?\t[\'A\', "B\'s"]\nwhat?\t"[\'C ""D""\']"\n')
    assert read_questions(path) == [Question("1", "who?", ("A", "B's")), Question("2", "what?", ('C "D"',))]


@pytest.mark.parametrize(
    ("answers", "read"),
    [
        ({"answer": {"value": "A", "aliases": ["B"]}}, ("A", "B")),
        ({"answer": {"value": "United States", "aliases": "USA"}}, ("United States", "USA")),
        ({"answers": {"text": ["A"], "answer_start": [0]}}, ("A",)),
        ({"possible_answers": '["pol", "élu"]'}, ("pol", "élu")),
        ({"answers": "['its', 'b']"}, ("its", "b")),
        ({"answers": ["[Ni(CO)4]", "[sic"]}, ("[Ni(CO)4]", "[sic")),
    ],
)
def test_answers_as_in_datasets_of_the_hub(tmp_path: Path, answers: dict[str, object], read: tuple[str, ...]) -> None:
    path = written(tmp_path, "a.jsonl", {"id": 42, "question": "who?", **answers})
    assert read_questions(path) == [Question("42", "who?", read)]
    assert read_questions(path, QuestionFields(answers=next(iter(answers))))[0].answers == read


def test_squad(tmp_path: Path) -> None:
    answers = [{"text": "A", "answer_start": 0}, {"text": "A", "answer_start": 0}]
    paragraph = {"context": "A is here.", "qas": [{"id": "q1", "question": "who?", "answers": answers}]}
    path = written(tmp_path, "s.json", {"data": [{"title": "A_title", "paragraphs": [paragraph]}]})
    [question] = read_questions(path)
    assert (question.id, question.text, question.answers) == ("q1", "who?", ("A",))
    assert [(one.title, one.text) for one in question.passages] == [("A title", "A is here.")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"question": "x", "answer": "y"}\n{"query": 1}', "line 2 has no field 'question'; its fields"),
        ("b.jsonl", '{"question": "x", "gold": "y"}', "line 1 has no field 'answers'; its fields are question, gold"),
        ("c.jsonl", '{"question": " ", "answer": "y"}', "line 1: its question must be a text with"),
        ("d.jsonl", '{"question": "x", "answer": [1]}', "line 1: its answer must be a text or a list of texts"),
        ("e.jsonl", '{"question": "x"\n', "line 1 is not JSON"),
        ("f.json", [{"question": "x", "answers": ["y"], "ctxs": [{"title": "t"}]}], "passage 1: text: Field required"),
        ("g.json", [{"question": "x", "answers": ["y"], "ctxs": "t"}], "object 1: its ctxs must be a list"),
        ("h.json", {"rows": []}, "object 1 has no field 'question'; its fields are rows"),
        ("i.json", [3], "object 1 is JSON but not an object"),
        ("j.json", "[", "is not JSON"),
        ("k.tsv", "who?\tA\n", "line 1: its answers are not a list in Python's notation"),
        ("l.tsv", "who?\n", "line 1 has 1 tab-separated fields"),
        ("m.json", {"data": [{"paragraphs": [{"qas": []}]}]}, "after question 0, is not in SQuAD's format"),
        ("n.jsonl", "\n", "has no questions"),
        ("o.txt", "who?", "has no suffix of a file of questions"),
        ("p.json", "", "is empty"),
        ("q.json", '[{"question": "x", "answers": ["y\\ud800"]}]', "q.json, object 1 holds a lone surrogate"),
        ("r.json", '[{"question": "x", "answers": [], "ctxs": [{"id": "\\udc00", "text": ""}]}]', "lone surrogate"),
        ("t.jsonl", {"question": "x", "answers": "[1, 2]"}, "its answers must be a text or a list of texts"),
        ("s.json", SQUAD.replace("T", "\\ud800"), "s.json, object 1 holds a lone surrogate"),
    ],
)
def test_rejected_files(tmp_path: Path, name: str, content: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_questions(written(tmp_path, name, content))
    assert message in str(raised.value)
    assert "skip" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "count", "question", "answer"),
    [
        (("nq_open", "NQ-open.dev.jsonl"), 3610, "when was the last time anyone was on the moon", "December 1972"),
        (("trivia_qa", "trivia.dev.tsv.gz"), 8837, "The VS-300 was a type of what?", "Helicopter"),
        (("xquad", "xquad.en.json"), 1190, "How many points did the Panthers defense surrender?", "308"),
        (GOLDEN, 100, "who got the first nobel prize in physics", "Wilhelm Conrad Röntgen"),
    ],
)
def test_published_files(path: tuple[str, ...], count: int, question: str, answer: str) -> None:
    found = read_questions(shared(*(path if path == GOLDEN else ("data", *path))))
    assert len(found) == count
    assert found[0].text == question
    assert answer in found[0].answers


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"question": "x", "answer": "y"}\nbroken\n')
    assert [one.text for one in read_questions(file, limit=1)] == ["x"]


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
def test_choices_json_lines(tmp_path: Path, answer: object, gold: int) -> None:
    row = {"question": "x?", "choices": ["one", "two", "3"], "answer": answer, "subject": "law", "id": 7}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    assert read_choice_questions(tmp_path / "own.jsonl") == [
        ChoiceQuestion("7", "x?", ("one", "two", "3"), gold, "law")
    ]


def test_choices_named_fields(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"q": "x?", "options": ["one", "two"], "right": 0, "topic": 3}\n')
    fields = QuestionFields(question="q", choices="options", answers="right", subject="topic")
    assert read_choice_questions(tmp_path / "own.jsonl", fields) == [ChoiceQuestion("1", "x?", ("one", "two"), 0, "3")]


def test_questions_with_choices_are_told_from_others(tmp_path: Path) -> None:
    chosen = {"mmlu.csv": "Who?,a,b,A\n", "own.jsonl": f"\n{json.dumps(LINE)}\n"}
    others = {"dpr.csv": "who?\t['a', 'b']\n", "a.jsonl": '{"question": "x?", "answer": "a"}\n'}
    for name, text in (chosen | others).items():
        source = str(written(tmp_path, name, text))
        assert has_choices(source, QuestionFields()) is (name in chosen)
        assert not has_choices(source, QuestionFields(choices="options"))


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
    hits, passages = GivenPassages.read(path).find([one.query for one in questions], 1)
    assert [passages[number].text for row in (0, 1) for number, _ in hits.of(row)] == ["first", "second"]
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"question": "x?", "choices": ["a", "b"], "answer": 0}\n')
    with pytest.raises(InputError, match="has no passages"):
        GivenPassages.read(bare)


LINE = {"question": "x", "choices": ["a", "b"], "answer": 0}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", LINE | {"question": None}, "line 2: its question must be a text with"),
        ("b.jsonl", {"question": "x", "answer": 0}, "line 2 has no field 'choices'"),
        ("c.jsonl", {"question": "x", "choices": ["a", "b"]}, "line 2 has no field 'answer'"),
        ("d.jsonl", LINE | {"choices": "a b"}, "line 2: its choices must be a list of texts, not 'a b'"),
        ("e.jsonl", LINE | {"choices": ["a", 2]}, "line 2: its choices must be a list of texts"),
        ("f.jsonl", LINE | {"choices": ["a"]}, "line 2: question 2 has 1 choices; 2 to 26 can be asked"),
        ("g.jsonl", LINE | {"choices": [*map(str, range(27))]}, "line 2: question 2 has 27 choices; 2 to 26"),
        ("h.jsonl", LINE | {"choices": ["a", " "]}, "line 2: choice B of question 2 is empty"),
        ("i.jsonl", LINE | {"answer": 2}, "line 2: the answer of question 2 is choice 2, counted from 0, of 2"),
        ("j.jsonl", LINE | {"answer": -1}, "line 2: the answer of question 2 is choice -1"),
        ("k.jsonl", LINE | {"answer": "C"}, "line 2: its answer 'C' is neither the letter nor the text of"),
        ("l.jsonl", LINE | {"answer": True}, "line 2: its answer must be the letter, the index from 0"),
        ("m.jsonl", LINE | {"choices": ["a", "A"], "answer": "A"}, "line 2: its answer 'A' is several of its choices"),
        ("n.jsonl", LINE | {"choices": ["a", "a"], "answer": "a"}, "line 2: its answer 'a' is several of its choices"),
        ("o.jsonl", LINE | {"ctxs": "x"}, "line 2: its ctxs must be a list"),
        ("p.jsonl", [1], "line 2 is JSON but not an object"),
        ("q.csv", "x,a,b,A\nx,A\n", "line 2 is not a question, at least 2 choices and the letter"),
        ("r.csv", "x,a,b,A\nx,a,b,C\n", "line 2 is not a question, at least 2 choices and the letter of the right one"),
        ("s.csv", "question,A,B,answer\n", "line 1 is not a question, at least 2 choices"),
        ("t.csv", " ,a,b,A\n", "line 1: its question must be a text with at least one word"),
        ("u.csv", "", "is empty"),
        ("v.txt", "x", "v.txt has no suffix of a file of questions"),
        ("w.csv", "\n", "has no questions"),
    ],
)
def test_rejected_choice_files(tmp_path: Path, name: str, content: object, message: str) -> None:
    text = content if isinstance(content, str) else f"{json.dumps(LINE)}\n{json.dumps(content)}\n"
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as raised:
        read_choice_questions(tmp_path / name)
    assert message in str(raised.value)


def test_where_there_are_no_questions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="has no questions: a folder has .csv files"):
        read_choice_questions(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
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
def test_mmlu_as_published(split: str, count: int) -> None:
    questions = read_choice_questions(shared("data", "mmlu", split))
    assert len(questions) == count
    subjects = {one.subject for one in questions}
    assert len(subjects) == 57
    assert None not in {category_of(subject) for subject in subjects}
    assert {len(one.choices) for one in questions} == {4}
    first = questions[0]
    assert (first.id, first.subject, first.letters[first.gold]) == ("abstract_algebra:1", "abstract_algebra", "B")
