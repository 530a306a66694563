"""Which files of a folder are read, and how: patterns, other suffixes, notebooks and e-mail."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from ralm.corpus.documents import BROKEN_LINES, NOT_CHOSEN, UNKNOWN, Skipped
from ralm.corpus.folder import FileSelection, _Choice
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
        (FileSelection(), ["README", "a.txt", "docs/b.md", "docs/build/c.html", "docs/build/d.md"]),
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


def test_files_without_a_suffix_are_read_by_their_content(tmp_path: Path) -> None:
    contents = {
        "LICENSE": "You may read größe.".encode() * 999,
        "page": b"\n <!DOCTYPE html><title>Wide</title><p>A page.",
        "program": b"\x7fELF\x02\0\0 text",
        "latin": b"gr\xfc\xdfe",
        "empty": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    skipped = Skipped()
    read = {one.id: one.title for one in read_documents(str(tmp_path), skipped=skipped)}
    assert read == {"LICENSE": "LICENSE", "page": "Wide"}
    assert skipped.counts == {UNKNOWN: 4}
    assert [one.text for one in read_documents(str(tmp_path / "page"))] == ["A page."]
    with pytest.raises(CorpusError, match="program is of an unknown type"):
        list(read_documents(str(tmp_path / "program")))


FRONT = '---\ntitle: "On  Radium: a note"\ntags: [a, b]\ndate: 2024-01-02\nid: 7\n---\n# Heading\n\nIt glows.\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FRONT, ("On Radium: a note", {"tags": ["a", "b"], "date": "2024-01-02"}, "# Heading\n\nIt glows.\n")),
        ("---\r\ndraft: true\r\n...\r\nIt glows.", ("x", {"draft": True}, "It glows.")),
        ("---\na: &a [1]\nb: *a\n---\n# H\n", ("H", {}, None)),
        ("---\nA rule above: [and\n---\n# H\n", ("H", {}, None)),
        ("---\nbetween rules\n---\n# H\n", ("H", {}, None)),
        ("---\n" + "- " * 9999 + "\n---\n# H\n", ("H", {}, None)),
        ("---\ndate: 2024-13-45\n---\n# H\n", ("H", {}, None)),
    ],
)
def test_front_matter(text: str, expected: tuple[str, dict[str, object], str | None], tmp_path: Path) -> None:
    (tmp_path / "x.md").write_bytes(text.encode())
    [document] = read_documents(str(tmp_path / "x.md"))
    title, metadata, rest = expected
    assert (document.metadata, document.text) == (metadata, text if rest is None else rest)
    assert document.title == title


def test_all_that_is_skipped_is_listed(folder: Path, tmp_path: Path) -> None:
    for number in range(20):
        (folder / f"{number}.exe").write_text("x")
    (folder / "bad.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    done("index", folder, "--out", tmp_path / "index", "--skipped", tmp_path / "skipped.jsonl")
    listed = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert Counter(one["reason"] for one in listed) == {UNKNOWN: 21, BROKEN_LINES: 1}
    assert {"reason": UNKNOWN, "skipped": f"{folder}/notes.log"} in listed
    done("sync", tmp_path / "index", "--skipped", tmp_path / "again.jsonl", "--dry-run")
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 22, "what is skipped in unchanged files, too"
    missing = ralm("index", folder, "--out", tmp_path / "x", "--skipped", tmp_path / "no" / "file")
    assert missing.err == f"ralm: {tmp_path}/no/file: No such file or directory\n"


def test_bad_selections(folder: Path) -> None:
    with pytest.raises(CorpusError, match=r"folder has no file that matches '\*\.rst': correct the pattern"):
        list(read_documents(str(folder), selection=FileSelection(include=("*.rst", "*.md"))))
    for bad in (".log", ".log=.exe", "log=.txt"):
        with pytest.raises(UsageError, match="`read_as` must be like .log=.txt"):
            FileSelection(read_as=(bad,))
    for bad in ("\\", "!", "docs/\\"):
        with pytest.raises(UsageError, match=r"patterns of .gitignore; correct this one: Invalid git pattern: '.+'\."):
            FileSelection(exclude=(bad,))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("a*" * 20, "a" * 250), ("[!b]*" * 20, "a" * 250), ("**/a*/" * 20, "a/" * 2_000), ("*a/**/" * 20, "a/" * 2_000)],
)
def test_patterns_take_linear_time(pattern: str, path: str) -> None:  # for ever if they went back
    skipped = Skipped()
    choice = _Choice(FileSelection(include=(f"{pattern}b",)), skipped)
    for end in "bc":
        choice.suffix(path, f"{path}{end}", is_empty=False)
    assert skipped.counts == {UNKNOWN: 1, NOT_CHOSEN: 1}


def test_sync_keeps_to_what_was_selected(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("index", folder, "--include", "docs/", "--include", "*.log", "--read-as", ".log=.txt", "--out", index)
    (folder / "more.log").write_text("Ducks swim.")
    (folder / "more.txt").write_text("Geese fly.")
    (folder / "notes.log").write_text("The whales dive.")
    assert "1 added, 1 replaced, 0 removed, 3 unchanged" in done("sync", index).out


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
    assert found.text == "Whales sing.\n\nDucks do not."
