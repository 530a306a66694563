"""Text, Markdown, reStructuredText and notebooks: titles, front matter, and comments, which are no text."""

import json
from pathlib import Path

import pytest

from ralm.errors import CorpusError
from tests.corpus.reading import only


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("x.md", "no heading\n---\n", "x"),
        ("x.md", "Title\n=====\n", "Title"),
        ("x.md", "#hashtag\n", "x"),
        ("x.md", "\n" * 60 + "# Too far down", "x"),
        ("x.rst", "Title\n-----\n", "Title"),
        ("x.rst", "A paragraph longer than\n---\n", "x"),
        ("x.rst", ".. note:: =\n\ntext", "x"),
        ("x.txt", "# Title\n", "x"),
        ("X.TXT", "\ufefflast", "X"),
        ("x.md", "```\n# code\n```\n\n## The heading ##\ntext", "The heading"),
        ("x.rst", "=====\nTitle\n=====\n\ntext", "Title"),
    ],
)
def test_titles_of_text_files(name: str, text: str, title: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    document = only(tmp_path / name)
    assert (document.id, document.title, document.text) == (name, title, text.removeprefix("\ufeff"))


FRONT = '---\ntitle: "On  Radium: a note"\ntags: [a, b]\ndate: 2024-01-02\nid: 7\n---\n# Heading\n\nIt glows.\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FRONT, ("On Radium: a note", {"tags": ["a", "b"], "date": "2024-01-02"}, "# Heading\n\nIt glows.\n")),
        ("---\r\ntitle: true\r\ndraft: true\r\n...\r\nIt glows.", ("true", {"draft": True}, "It glows.")),
        ("---\na: &a [1]\nb: *a\n---\n# H\n", ("H", {}, None)),
        ("---\nA rule above: [and\n---\n# H\n", ("H", {}, None)),
        ("---\nbetween rules\n---\n# H\n", ("H", {}, None)),
        ("---\n" + "- " * 9999 + "\n---\n# H\n", ("H", {}, None)),
        ("---\ndate: 2024-13-45\n---\n# H\n", ("H", {}, None)),
    ],
)
def test_front_matter(text: str, expected: tuple[str, dict[str, object], str | None], tmp_path: Path) -> None:
    (tmp_path / "x.md").write_bytes(text.encode())
    document = only(tmp_path / "x.md")
    title, metadata, rest = expected
    assert (document.metadata, document.text) == (metadata, text if rest is None else rest)
    assert document.title == title


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("x.md", "a<!-- no -->b\n", "ab\n"),
        ("x.markdown", "a\n<!-- no\n\nno --> b\n", "a\n b\n"),
        ("x.md", "a\n<!-- no\n\nno", "a\n"),
        ("x.md", "a <!-- b\n", "a <!-- b\n"),
        ("x.md", "[//]: # (no)\n[comment]: <> (no)\n[1]: http://a.b\n", "\n\n[1]: http://a.b\n"),
        ("x.md", "a `<!-- b -->` ``<!-- ` -->``", "a `<!-- b -->` ``<!-- ` -->``"),
        ("x.md", "```\n<!-- a -->\n```\n<!-- no -->b", "```\n<!-- a -->\n```\nb"),
        ("x.md", "> ~~~\n> <!-- a -->\n> ~~~\n", "> ~~~\n> <!-- a -->\n> ~~~\n"),
        ("x.txt", "a<!-- b -->c", "a<!-- b -->c"),
        ("x.rst", "a\n\n.. no\n\n   no\n.. no: no\n\nb", "a\n\n\n\n\nb"),
        ("x.rst", ".. note:: a\n\n   b\n\n.. _c:\n\n.. [1] d\n", ".. note:: a\n\n   b\n\n.. _c:\n\n.. [1] d\n"),
    ],
)
def test_comments_of_markup(name: str, content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert only(tmp_path / name).text == text


@pytest.mark.parametrize("part", ["<!-- ", "` `` ", "```\n", "```", ".. a\n\n\n", " \n", "[//]: "])
def test_comments_are_found_in_linear_time(part: str, tmp_path: Path) -> None:
    for name in ("x.md", "x.rst"):
        (tmp_path / name).write_text("]: a\n\n" + part * 100_000)
        only(tmp_path / name)


def test_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Whales\n", "They sing."]},
        {"cell_type": "code", "source": "sing(3)", "outputs": [{"text": "la la la"}]},
        {"cell_type": "markdown", "source": "## Ducks"},
        {"cell_type": "code", "source": ["x = '<!-- b -->'"]},
        {"cell_type": "markdown", "source": ["<!-- no -->"]},
        {"cell_type": "code", "source": []},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    found = only(tmp_path / "n.ipynb")
    assert (found.title, found.text) == (
        "Whales",
        "# Whales\nThey sing.\n\n```\nsing(3)\n```\n\n## Ducks\n\n```\nx = '<!-- b -->'\n```",
    )
    assert [(one.level, one.title) for one in found.headings] == [(1, "Whales"), (2, "Ducks")]
    for bad in ("{}", "[1]", '{"cells": [{"cell_type": "code"}]}', "no"):
        (tmp_path / "n.ipynb").write_text(bad)
        with pytest.raises(CorpusError, match="is not a Jupyter notebook of format 4, or damaged"):
            only(tmp_path / "n.ipynb")
