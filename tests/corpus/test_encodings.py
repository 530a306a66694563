"""Text of any encoding and with any line ends: what a file's beginning tells, what is named, what is said."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from ralm.answering.questions import read_questions
from ralm.cli.options import read_input
from ralm.corpus.documents import Fields
from ralm.corpus.files import read_text
from ralm.corpus.folder import FileSelection
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError, UsageError
from ralm.records import Document
from tests.corpus.reading import without_origins

TABLE = 'Nr;Inhalt;Preis\r\n1;"Größe\r\nzwei ""a""";3,5\r\n2;Äpfel;4,0\r\n'
ROWS = ['Größe zwei "a"', "Äpfel"]
TOKYO = "id,text\n1,東京タワー\n"
LONG = "\n".join(f'{{"text": "line {number} \u00e9\U0001f601"}}' for number in range(20_000))


def read(path: Path, encoding: str | None = None, text: str = "text") -> list[Document]:
    return without_origins(read_documents(str(path), Fields(text=text), selection=FileSelection(encoding=encoding)))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-be"])
@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("x.txt", "a long enough text \u2028 é", ["a long enough text \u2028 é"]),
        ("x.md", "# a long heading", ["# a long heading"]),
        ("x.rst", "a long heading\n==============", ["a long heading\n=============="]),
        ("x.yaml", "key: a long value", ["key: a long value"]),
        ("x.json", '[{"text": "a long \u2028 text"}]', ["a long \u2028 text"]),
        ("x.jsonl", '{"text": "a long \u2028 text"}\n{"text": "b"}', ["a long \u2028 text", "b"]),
        ("x.csv", "id,text,title\n1,a long text,a title", ["a long text"]),
        ("x.tsv", "id\ttext\ttitle\n1\ta long text\ta title", ["a long text"]),
    ],
)
def test_the_beginning_tells_unicode(name: str, content: str, texts: list[str], encoding: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode(encoding))
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode(encoding)))
    for path in tmp_path.iterdir():
        assert [document.text for document in read(path)] == texts


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-be", "gb18030"])
def test_files_longer_than_a_piece(name: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(LONG.encode(encoding))
    documents = read(tmp_path, encoding="gb18030")
    assert [document.text for document in documents] == [f"line {place} é😁" for place in range(20_000)]


@pytest.mark.parametrize("name", ["x.txt", "x.csv", "x.jsonl", "x.json"])
def test_an_encoding_that_is_named_is_that_of_files_that_are_not_utf8(name: str, tmp_path: Path) -> None:
    content = TOKYO if name.endswith(("t", "v")) else '{"text": "東京タワー"}'
    for folder, encoding in (("1", "cp932"), ("2", "utf-8"), ("3", "utf-16")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content.encode(encoding))
    assert all("東京タワー" in document.text for document in read(tmp_path, encoding="shift_jis"))
    with pytest.raises(CorpusError, match=r"0x.., so name its encoding, such as `encoding=\"cp1252\"`, or conv"):
        read(tmp_path / "1" / name)
    with pytest.raises(CorpusError, match="is not ascii"):
        read(tmp_path / "1" / name, encoding="ascii")


def test_lines_without_the_mark_of_the_encoding_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(TOKYO.encode("cp932"))
    with pytest.raises(CorpusError, match="x.csv is not utf-16: UTF-16 stream does not start with BOM"):
        read(tmp_path / "x.csv", encoding="utf-16")


@pytest.mark.parametrize("name", ["klingon", "rot13", "undefined", "iso-2022-jp", "utf-7", "x\0y", ""])
def test_names_of_no_encoding(name: str) -> None:
    with pytest.raises(UsageError, match="`encoding` must be one that Python knows"):
        FileSelection(encoding=name)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    "content",
    [
        TABLE,
        TABLE.replace("\r\n", "\n"),
        TABLE.replace(";", "\t"),
        TABLE.replace(";", "|"),
        TABLE.replace(";", ",").replace("3,5", '"3,5"').replace("4,0", '"4,0"'),
    ],
)
def test_tables_as_excel_writes_them(content: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(content.encode(encoding))
    documents = read(tmp_path / "x.csv", "cp1252", text="Inhalt")
    assert [" ".join(document.text.split()) for document in documents] == ROWS
    assert [document.metadata for document in documents] == [{"Nr": "1", "Preis": "3,5"}, {"Nr": "2", "Preis": "4,0"}]
    with pytest.raises(CorpusError, match="has no field 'text'; its fields are Nr, Inhalt, Preis. Name the right"):
        read(tmp_path / "x.csv", "cp1252")


TEXT: Final = "# One\n\nThe first sheep\nstands here.\n\n- an item\n- another\n\nTwo\n---\n\nThe last one.\n"


def json_text(end: str) -> str:
    return json.dumps({"id": "d", "title": "sheep", "text": TEXT.replace("\n", end)}) + "\n"


FILES: Final[dict[str, Callable[[str], str]]] = {
    "a.txt": lambda end: TEXT.replace("\n", end),
    "a.md": lambda end: f"---\ntitle: sheep\n---\n{TEXT}".replace("\n", end),
    "a.rst": lambda end: TEXT.replace("\n", end),
    "a.html": lambda end: f"<h1>One</h1>\n<pre>{TEXT}</pre>\n<p>some\nwords</p>".replace("\n", end),
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
