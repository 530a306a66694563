"""Evaluation texts: as they are in the file, or one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ralm.corpus.files import read_text, read_text_in_chunks
from ralm.errors import TextError


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (" \r\n é\n\n".encode(), " \r\n é\n\n"),
        (b"\0one\0two\0\0", "\0one\0two\0\0"),
        ("\ufeffone\ufeff".encode(), "one\ufeff"),
        (b" \n" * 1_000_000 + b"x", " \n" * 1_000_000 + "x"),
    ],
)
def test_a_text_is_read_as_it_is(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    assert read_text(tmp_path / "x.txt") == text


@pytest.mark.parametrize("read", [read_text, read_text_in_chunks])
def test_texts_that_are_none(read: Callable[[Path], object], tmp_path: Path) -> None:
    for content, said in {
        b"": "x.txt is empty",
        b" \n" * 1_000_000: "x.txt is empty",
        "\ufeff \n".encode(): "x.txt is empty",
        "the thing".encode("utf-16"): "it seems to be UTF-16",
        b"x" * 1234 + b"\xff": "x.txt is not UTF-8: byte 1,234 is 0xff",
    }.items():
        (tmp_path / "x.txt").write_bytes(content)
        with pytest.raises(TextError, match=said):
            read(tmp_path / "x.txt")
    with pytest.raises(TextError, match="y.txt does not exist"):
        read(tmp_path / "y.txt")
    with pytest.raises(TextError, match="is a folder, not a file"):
        read(tmp_path)


@pytest.mark.parametrize("character", ["\u00e9", "\u4e2d", "\U0001f600"])
def test_chunks_are_the_text_whatever_character_stands_at_their_ends(tmp_path: Path, character: str) -> None:
    path = tmp_path / "x.txt"
    for before in range(4):
        text = "x" * before + " \r\n" + character * 700_000
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        chunks = list(read_text_in_chunks(path))
        assert len(chunks) > 1
        assert "".join(chunks) == text


def test_a_chunk_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"x" * 3_000_000 + b"\xff" + b"x" * 3_000_000)
    chunks = read_text_in_chunks(path)
    assert next(chunks).startswith("x")
    with pytest.raises(TextError, match="x.txt is not UTF-8: byte 3,000,000 is 0xff"):
        list(chunks)
    path.write_bytes(b"x" * 2_000_000 + "\u4e2d".encode()[:2])
    with pytest.raises(TextError, match="x.txt is not UTF-8: byte 2,000,000 is 0xe4"):
        list(read_text_in_chunks(path))
