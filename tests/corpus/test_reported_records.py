"""Records and messages as users have them: ids that are none, truth values, charsets that nobody knows, surrogates."""

import json
from pathlib import Path

import pytest

from ralm.errors import UsageError
from ralm.records import Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.update import update_index
from tests.corpus.reading import only, read


@pytest.mark.parametrize(
    ("record", "identifier", "title"),
    [
        ({"id": ""}, "1", ""),
        ({"id": None}, "1", ""),
        ({"id": "  "}, "1", ""),
        ({"id": float("nan")}, "1", ""),
        ({"id": 0}, "0", ""),
        ({"id": True, "title": False}, "true", "false"),
        ({"id": "True", "title": None}, "True", ""),
    ],
)
def test_ids_and_titles(record: dict[str, object], identifier: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({**record, "text": "text"}))
    (tmp_path / "x.json").write_text(json.dumps([{**record, "text": "text"}]))
    for name in ("x.jsonl", "x.json"):
        document = only(tmp_path / name)
        assert (document.id, document.title) == (identifier, title)


def test_ids_that_are_none_in_tables_and_folders(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,text\n,one\n \t,two\nb,three\n")
    assert [document.id for document in read(tmp_path / "x.csv")] == ["2", "3", "b"]
    assert [document.id for document in read(tmp_path)] == ["x.csv:2", "x.csv:3", "b"]
    (tmp_path / "x.tsv").write_text("\tone\ttitle\n")
    assert only(tmp_path / "x.tsv").id == "1"


def test_the_title_of_front_matter(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("---\ntitle: true\ndraft: true\n---\ntext")
    document = only(tmp_path / "x.md")
    assert (document.title, document.metadata) == ("true", {"draft": True})


@pytest.mark.parametrize("kind", ["plain", "html"])
@pytest.mark.parametrize(
    ("charset", "content", "text"),
    [
        ("klingon", "café".encode(), "café"),
        ("klingon", b"caf\xe9 au lait", "caf\N{REPLACEMENT CHARACTER} au lait"),
        ("rot13", "café".encode(), "café"),
        ("undefined", "café".encode(), "café"),
        ('"x\0y"', "café".encode(), "café"),
        ("us-ascii", "café".encode(), "café"),
        ("", "café".encode(), "café"),
        ("utf-8", b"caf\xe9 au lait", "caf\N{REPLACEMENT CHARACTER} au lait"),
        ("iso-8859-1", b"caf\xe9", "café"),
    ],
)
def test_messages_of_any_charset(charset: str, content: bytes, text: str, kind: str, tmp_path: Path) -> None:
    head = f"Subject: =?klingon?q?hi=E9?=\nContent-Type: text/{kind}; charset={charset}\n\n".encode()
    (tmp_path / "x.eml").write_bytes(head + content)
    assert only(tmp_path / "x.eml").text == text


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"text": "a\ud800b"}, "passage 0, of the document 'bad', holds a lone surrogate"),
        ({"title": "\udfff"}, "passage 0, of the document 'bad', holds a lone surrogate"),
        ({"document_id": "\ud800"}, r"passage 0, of the document '\\ud800', holds a lone surrogate"),
        ({"metadata": {"key": "\ud800"}}, "the metadata of the document 'bad' is not JSON"),
        ({"metadata": {"\ud800": 1}}, "the metadata of the document 'bad' is not JSON"),
    ],
)
def test_passages_with_half_of_a_character(bad: dict[str, object], says: str, tmp_path: Path) -> None:
    given: dict[str, object] = {"number": 0, "document_id": "bad", "title": "title", "text": "text", **bad}
    passage = Passage(**given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=says):
        build_index([passage], tmp_path / "new")
    build_index([Passage(0, "good", "title", "text")], tmp_path / "index")
    with pytest.raises(UsageError, match=says):
        update_index(tmp_path / "index", [passage])
