"""Which files of a folder are read, and how: patterns, other suffixes, notebooks and e-mail."""

import json
from pathlib import Path

import pytest

from ralm.corpus.documents import Skipped
from ralm.corpus.folder import FileSelection
from ralm.corpus.sources import read_documents
from ralm.errors import CorpusError, UsageError
from ralm.records import Document
from tests.cli.program import done, ralm

FILES = ["a.txt", "notes.log", "README", "docs/b.md", "docs/build/c.html", "docs/build/d.md"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The whales sing in {name}.")
    return tmp_path / "folder"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (FileSelection(), ["a.txt", "docs/b.md", "docs/build/c.html", "docs/build/d.md"]),
        (FileSelection(include=("*.md",)), ["docs/b.md", "docs/build/d.md"]),
        (FileSelection(include=("*.md", "/a.txt"), exclude=("build/",)), ["a.txt", "docs/b.md"]),
        (FileSelection(exclude=("*", "!*.html")), ["docs/build/c.html"]),
        (
            FileSelection(include=("/*",), exclude=("docs",), read_as=(".log=.txt", "=.txt")),
            ["README", "a.txt", "notes.log"],
        ),
    ],
)
def test_patterns(folder: Path, selection: FileSelection, expected: list[str]) -> None:
    assert [one.id for one in read_documents(str(folder), skipped=Skipped(), selection=selection)] == expected


def test_bad_selections(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"folder has no file that matches '\*\.rst': correct the pattern"):
        list(read_documents(str(folder), selection=FileSelection(include=("*.rst", "*.md"))))
    for bad in (".log", ".log=.exe", "log=.txt"):
        with pytest.raises(UsageError, match="`read_as` must be like .log=.txt"):
            FileSelection(read_as=(bad,))


def test_sync_keeps_to_what_was_selected(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("index", folder, "--include", "docs/", "--include", "*.log", "--read-as", ".log=.txt", "--out", index)
    (folder / "more.log").write_text("Ducks swim.")
    (folder / "more.txt").write_text("Geese fly.")
    (folder / "notes.log").write_text("The whales dive.")
    assert "1 added, 1 replaced, 0 removed, 3 unchanged" in done("sync", index).out
    assert (
        "no effect with --ray" in ralm("index", folder, "--ray", "auto", "--exclude", "x", "--out", tmp_path / "y").err
    )


def test_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Whales\n", "They sing."]},
        {"cell_type": "code", "source": "sing(3)", "outputs": [{"text": "la la la"}]},
        {"cell_type": "markdown", "source": "## Ducks"},
        {"cell_type": "code", "source": []},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    [found] = read_documents(str(tmp_path / "n.ipynb"))
    assert (found.title, found.text) == ("Whales", "# Whales\nThey sing.\n\n```\nsing(3)\n```\n\n## Ducks")
    assert [(one.level, one.title) for one in found.headings] == [(1, "Whales"), (2, "Ducks")]
    for bad in ("{}", "[1]", '{"cells": [{"cell_type": "code"}]}', "no"):
        (tmp_path / "n.ipynb").write_text(bad)
        with pytest.raises(CorpusError, match="is not a Jupyter notebook of format 4, or damaged"):
            list(read_documents(str(tmp_path / "n.ipynb")))


def test_a_message(tmp_path: Path) -> None:
    head = "From: Anna <a@b.c>\nTo: d@e.f\nSubject: =?utf-8?q?Caf=C3=A9?=\n and whales\n"
    head += "Date: Mon, 1 Jan 2024 10:00:00 +0000\n"
    metadata = {"from": "Anna <a@b.c>", "to": "d@e.f", "date": "Mon, 01 Jan 2024 10:00:00 +0000"}
    file = tmp_path / "m.eml"
    file.write_text(
        f"{head}Content-Type: text/plain; charset=latin-1\nContent-Transfer-Encoding: quoted-printable\n\nThe=E9"
    )
    assert list(read_documents(str(file))) == [Document("m.eml", "Café and whales", "Theé", metadata=metadata)]
    file.write_text(f"{head}Content-Type: text/html\n\n<p>Whales <b>sing</b>.<p>Ducks do not.")
    [found] = read_documents(str(file))
    assert found.text == "Whales sing.\nDucks do not."
    file.write_text(f"{head}Content-Type: text/plain; charset=klingon\n\nx")
    with pytest.raises(CorpusError, match=r"m.eml is not a message of e-mail, or damaged"):
        list(read_documents(str(file)))
