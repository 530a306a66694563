"""Line ends: a text is the same text with LF, CRLF and CR, wherever it comes from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from ralm.answering.questions import read_questions
from ralm.cli.options import read_input
from ralm.corpus.files import read_text
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages

TEXT: Final = "# One\n\nThe first sheep\nstands here.\n\n- an item\n- another\n\nTwo\n---\n\nThe last one.\n"
MAIL: Final = f"From: a@b.org\nSubject: sheep\nContent-Type: text/plain; charset=utf-8\n\n{TEXT}"


def json_text(end: str) -> str:
    return json.dumps({"id": "d", "title": "sheep", "text": TEXT.replace("\n", end)}) + "\n"


FILES: Final[dict[str, Callable[[str], str]]] = {
    "a.txt": lambda end: TEXT.replace("\n", end),
    "a.md": lambda end: f"---\ntitle: sheep\n---\n{TEXT}".replace("\n", end),
    "a.rst": lambda end: TEXT.replace("\n", end),
    "a.html": lambda end: f"<h1>One</h1>\n<pre>{TEXT}</pre>\n<p>some\nwords</p>".replace("\n", end),
    "a.eml": lambda end: MAIL.replace("\n", end),
    "a.ipynb": lambda end: json.dumps({"cells": [{"cell_type": "markdown", "source": [TEXT.replace("\n", end)]}]}),
    "a.jsonl": lambda end: json_text(end) * 2,
    "b.jsonl": lambda end: (json_text("\n") * 2).replace("\n", end),
    "a.csv": lambda end: f'id,title,text\nd,sheep,"{TEXT}"\ne,sheep,more\n'.replace("\n", end),
    "a.tsv": lambda end: f'id\ttext\ttitle\nd\t"{TEXT}"\tsheep\n'.replace("\n", end),
    "a.json": json_text,
}


def passages_of(file: Path) -> list[tuple[str, str]]:
    documents = [*read_documents(str(file))]
    return [(one.title, one.text) for one in make_passages(documents, Splitting(split="structure", words=5))]


@pytest.mark.parametrize("name", FILES)
def test_passages_do_not_depend_on_line_ends(tmp_path: Path, name: str) -> None:
    passages = []
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / name).write_bytes(FILES[name](end).encode())
        passages.append(passages_of(tmp_path / name))
    assert len(passages[0]) > 1
    assert passages[0] == passages[1] == passages[2]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_texts_prompts_and_questions_do_not_depend_on_line_ends(tmp_path: Path, end: str) -> None:
    text, lines, questions = tmp_path / "text.txt", tmp_path / "prompts.txt", tmp_path / "questions.jsonl"
    text.write_bytes(TEXT.replace("\n", end).encode())
    assert read_text(text) == TEXT
    lines.write_bytes(f"first{end}second{end}".encode())
    assert read_input(None, lines, "prompt") == ["first", "second"]
    assert read_input(f"one{end}two", None, "prompt") == ["one\ntwo"]
    questions.write_text(json.dumps({"question": f"Who{end}is it?", "answers": [f"a{end}sheep"]}))
    [question] = read_questions(questions)
    assert (question.text, question.answers) == ("Who\nis it?", ("a\nsheep",))
