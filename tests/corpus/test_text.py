"""Evaluation texts: as they are in the file, or one sentence."""

from pathlib import Path

import pytest

from ralm.corpus.text import read_text
from ralm.errors import TextError


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(" \r\n é\n\n".encode())
    assert read_text(path) == " \r\n é\n\n"


def test_texts_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    with pytest.raises(TextError, match="x.txt does not exist"):
        read_text(path)
    with pytest.raises(TextError, match="is a folder, not a file"):
        read_text(tmp_path)
    path.write_text(" \n")
    with pytest.raises(TextError, match="x.txt is empty"):
        read_text(path)
    path.write_bytes(b"x" * 1234 + b"\xff")
    with pytest.raises(TextError, match="x.txt is not UTF-8: byte 1,234 is 0xff"):
        read_text(path)
