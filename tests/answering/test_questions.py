"""Questions from every format in which they are published, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest

from ralm.answering import questions
from ralm.answering.options import QuestionFields
from ralm.answering.questions import Question, read_questions
from ralm.errors import QuestionFileError
from tests.shared_data import shared


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


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
    path = written(tmp_path, "nq.csv", 'who?\t[\'A\', "B\'s"]\nwhat?\t"[\'C ""D""\']"\n')
    assert read_questions(path) == [Question("1", "who?", ("A", "B's")), Question("2", "what?", ('C "D"',))]


def test_trivia_qa_as_published(tmp_path: Path) -> None:
    row = {
        "QuestionId": "tc_1",
        "Question": "who?",
        "Answer": {"Value": "A", "Aliases": ["A", "a b"], "NormalizedAliases": []},
    }
    assert read_questions(written(tmp_path, "t.json", {"Data": [row]})) == [Question("tc_1", "who?", ("A", "a b"))]
    hub = {"question": "who?", "answer": {"value": "A", "aliases": ["B"]}}
    assert read_questions(written(tmp_path, "t.jsonl", hub)) == [Question("1", "who?", ("A", "B"))]


def test_squad(tmp_path: Path) -> None:
    answers = [{"text": "A", "answer_start": 0}, {"text": "A", "answer_start": 0}]
    paragraph = {"context": "A is here.", "qas": [{"id": "q1", "question": "who?", "answers": answers}]}
    path = written(tmp_path, "s.json", {"data": [{"title": "A_title", "paragraphs": [paragraph]}]})
    [question] = read_questions(path)
    assert (question.id, question.text, question.answers) == ("q1", "who?", ("A",))
    assert [(one.title, one.text) for one in question.passages] == [("A title", "A is here.")]
    rows = {"question": "who?", "answers": {"text": ["A"], "answer_start": [0]}}
    assert read_questions(written(tmp_path, "hub.jsonl", rows))[0].answers == ("A",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"question": "x", "answer": "y"}\n{"query": 1}', "line 2 has no field 'question'; its fields"),
        ("b.jsonl", '{"question": "x", "gold": "y"}', "line 1 has no field 'answers' or 'answer'"),
        ("c.jsonl", '{"question": " ", "answer": "y"}', "line 1: its question is ' ', not text"),
        ("d.jsonl", '{"question": "x", "answer": [1]}', "line 1: its answers are neither text nor a list of texts"),
        ("e.jsonl", '{"question": "x"\n', "line 1 is not JSON"),
        ("f.json", [{"question": "x", "answers": ["y"], "ctxs": [{"title": "t"}]}], "question 1, passage 1: text"),
        ("g.json", [{"question": "x", "answers": ["y"], "ctxs": "t"}], "question 1: its `ctxs` are not a list"),
        ("h.json", {"rows": []}, "neither an array of questions"),
        ("i.json", [3], "question 1 is not an object"),
        ("j.json", "[", "is not JSON: Expecting value in line 1"),
        ("k.tsv", "who?\tA\n", "line 1: its answers are not a list in Python's notation"),
        ("l.tsv", "who?\n", "line 1 has 1 tab-separated fields"),
        ("m.json", {"data": [{"paragraphs": [{"qas": []}]}]}, "after question 0, is not in SQuAD's format"),
        ("n.jsonl", "\n", "has no questions"),
        ("o.txt", "who?", "has no suffix of a file of questions"),
        ("p.json", "", "is empty"),
        ("q.json", '[{"question": "x", "answers": ["y\\ud800"]}]', "q.json, question 1 holds a lone surrogate"),
        ("r.json", '[{"question": "x", "answers": [], "ctxs": [{"id": "\\udc00", "text": ""}]}]', "lone surrogate"),
        ("s.json", SQUAD.replace("T", "\\ud800"), "s.json, question 1 holds a lone surrogate"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, content: object, said: str) -> None:
    with pytest.raises(QuestionFileError) as raised:
        read_questions(written(tmp_path, name, content))
    assert said in str(raised.value)
    assert "skip" not in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match="does not exist"):
        read_questions(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("path", "count", "question", "answer"),
    [
        (("nq_open", "NQ-open.dev.jsonl"), 3610, "when was the last time anyone was on the moon", "December 1972"),
        (("trivia_qa", "trivia.dev.tsv.gz"), 8837, "The VS-300 was a type of what?", "Helicopter"),
        (("xquad", "xquad.en.json"), 1190, "How many points did the Panthers defense surrender?", "308"),
        (
            ("golden", "official_qa", "questions.nq_oracle.jsonl"),
            100,
            "who got the first nobel prize in physics",
            "Wilhelm Conrad Röntgen",
        ),
    ],
)
def test_published_files(path: tuple[str, ...], count: int, question: str, answer: str) -> None:
    found = read_questions(shared(*(path if path[0] == "golden" else ("data", *path))))
    assert len(found) == count
    assert found[0].text == question
    assert answer in found[0].answers


def test_aliases_that_are_one_text_are_one_answer(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"question": "Who?", "answer": {"value": "United States", "aliases": "USA"}}) + "\n")
    assert read_questions(file)[0].answers == ("United States", "USA")


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"question": "x", "answer": "y"}\nbroken\n')
    assert [one.text for one in read_questions(file, limit=1)] == ["x"]


def test_json_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def looking(text: str) -> bool:
        looked.append(text)
        return False

    monkeypatch.setattr(questions, "has_surrogates", looking)
    rows = [{"question": f"q{number}", "answers": ["a"]} for number in range(30)]
    assert len(read_questions(written(tmp_path, "a.json", rows))) == 30
    assert len(looked) == 1


def test_a_field_may_be_long(tmp_path: Path) -> None:
    long = "why " * 40_000
    assert read_questions(written(tmp_path, "a.tsv", f"{long}\t['y']\n"))[0].text == long
