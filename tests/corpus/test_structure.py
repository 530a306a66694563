"""Passages that end where the text ends: sentences, sections, tables, code."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.corpus.structure import split_by_sentences, split_by_structure
from ralm.errors import UsageError
from ralm.records import Heading, Passage
from tests.cli.program import done, printed, ralm

MARKDOWN = """\
---
name: front matter
---

# The Farm

Animals live here. They are many, and all of them are named.

## Dogs

Rex keeps the sheep. He is black.

```python
# no heading

def bark():
    return "loud"
```

## Prices

| animal | price | age |
|---|---|---|
| dog Rex | 120 coins | 3 years |
| sheep Anna | 80 coins | 2 years |
| goat Emil | 70 coins | 1 year |

Ducks
-----

1. Ducks swim in the pond every day.
2. Ducks fly in autumn when it is cold.
"""


def passages(path: Path, **splitting: object) -> list[Passage]:
    return list(make_passages(read_documents(str(path)), Splitting(split="structure", **splitting)))  # type: ignore[arg-type]


def test_markdown(tmp_path: Path) -> None:
    file = tmp_path / "farm.md"
    file.write_text(MARKDOWN)
    found = passages(file, words=20)
    assert [(one.title, one.text.split("\n")[0]) for one in found] == [
        ("The Farm", "# The Farm"),
        ("The Farm > Dogs", "## Dogs"),
        ("The Farm > Prices", "## Prices"),
        ("The Farm > Prices", "| animal | price | age |"),
        ("The Farm > Prices", "| animal | price | age |"),
        ("The Farm > Ducks", "Ducks"),
    ]
    assert found[1].text.endswith('    return "loud"\n```')
    assert found[4].text == "| animal | price | age |\n|---|---|---|\n| goat Emil | 70 coins | 1 year |"
    assert [one.text for one in passages(file, words=14)][1:3] == [
        "## Dogs\n\nRex keeps the sheep. He is black.",
        '```python\n# no heading\n\ndef bark():\n    return "loud"\n```',
    ]
    assert [one.title for one in passages(file, words=500)] == ["The Farm"]


def test_formats_have_the_same_sections(tmp_path: Path) -> None:
    pytest.importorskip("turbohtml")
    docx = pytest.importorskip("docx").Document()
    parts = {"Farm": "Animals, many of them.", "Dogs & cats": "Rex keeps the sheep.", "Old dogs": "# Rex is old."}
    for level, (heading, text) in zip((0, 2, 3), parts.items(), strict=True):
        docx.add_heading(heading, level)
        docx.add_paragraph(text)
    docx.save(tmp_path / "a.docx")
    (tmp_path / "a.html").write_text(
        "<title>Farm</title><h1>Farm</h1><p>Animals live here, many of them.</p><script><h2>no</h2></script>"
        "<h2><div>Dogs &amp; cats</div></h2><p>Rex keeps the sheep on the hill.</p>"
        "<table><tr><th>animal<th>price<tr><td>dog<td>120<tr><td>cat<td>20</table><h3></h3>"
        "<h3>Old dogs<a href='#old'>#</a></h3><ul><li>Rex is old.<li>Emil is not old.</ul>"
    )
    (tmp_path / "a.rst").write_text(
        "====\nFarm\n====\n\nAnimals live here, many of them.\n\nDogs & cats\n-----------\n\n"
        "Rex keeps the sheep on the hill.\n\nOld dogs\n~~~~~~~~\n\n* Rex is old.\n* Emil is not old.\n"
    )
    html, _, word = found = [passages(tmp_path / f"a.{kind}", words=20) for kind in ("html", "rst", "docx")]
    titles = ["Farm", "Farm > Dogs & cats", "Farm > Dogs & cats > Old dogs"]
    assert [[passage.title for passage in file] for file in found] == 3 * [titles]
    assert word[2].text == "### Old dogs\n\\# Rex is old.", "what looks like a heading is none"
    assert html[1].text == "## Dogs & cats\n\nRex keeps the sheep on the hill.\n\nanimal\tprice\ndog\t120\ncat\t20"
    assert html[2].text == "### Old dogs\n\n- Rex is old.\n- Emil is not old."


WORD = st.sampled_from(["sea", "hill.", "Dr.", "dog", "|", "-", "a\tb", "```", "\n", "\n\n", "# x", "Fish!"])


@given(st.lists(WORD, max_size=60).map(" ".join), st.integers(1, 9), st.data())
def test_nothing_is_lost_or_moved(text: str, words: int, data: st.DataObject) -> None:
    lines = [place for place, letter in enumerate(text) if letter == "\n"]
    begins = data.draw(st.lists(st.sampled_from(lines), unique=True, max_size=3).map(sorted)) if lines else []
    headings = [Heading(one + 1, one + 1, 1 + number % 2, f"h{number}") for number, one in enumerate(begins)]
    for found in (split_by_sentences(text, words), split_by_structure(text, headings, words)):
        pieces = list(found)
        assert all(piece.text and piece.text == piece.text.strip() for piece in pieces)
        letters = iter("".join("".join(piece.text for piece in pieces).split()))
        assert all(letter in letters for letter in "".join(text.split()))  # headers of tables may stand there again


@pytest.mark.parametrize("split", ["sentences", "structure"])
def test_sentences_are_whole_and_overlap(split: str) -> None:
    text = "Dr. Anna keeps sheep. Rex is a dog. He barks at night.\n\nThe town sleeps. It is dark there."
    divide = split_by_sentences if split == "sentences" else lambda *given: split_by_structure(given[0], [], *given[1:])
    assert [one.text for one in split_by_sentences(text, 8)] == [
        "Dr. Anna keeps sheep. Rex is a dog.",
        "He barks at night.\n\nThe town sleeps.",
        "It is dark there.",
    ]
    overlapping = [one.text for one in divide(text, 9, 4)]
    assert overlapping[0] == "Dr. Anna keeps sheep. Rex is a dog."
    assert overlapping[1].startswith("Rex is a dog. He barks at night.")
    assert [one.text for one in split_by_sentences("one two three four five", 2)] == ["one two", "three four", "five"]


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "farm.md").write_text(MARKDOWN)
    index = tmp_path / "index"
    done("index", tmp_path / "farm.md", "--split", "structure", "--words", "14", "--out", index)
    [hit] = printed("search", index, "price of the goat", "-k", "1")["hits"]
    assert hit["title"] == "The Farm > Prices"
    assert "goat Emil" in hit["text"]
    (tmp_path / "farm.md").write_text(MARKDOWN + "\n## Fish\n\nFish swim in the lake below the farm.\n")
    assert "1 replaced" in done("sync", index).out
    [hit] = printed("search", index, "fish swim", "-k", "1")["hits"]
    assert hit["title"] == "The Farm > Fish"
    refused = ralm("index", tmp_path / "farm.md", "--overlap-words", "5", "--out", tmp_path / "other")
    assert "--overlap-words has no effect" in refused.err
    with pytest.raises(UsageError, match="`overlap_words` must be below `words`"):
        Splitting(split="sentences", words=5, overlap_words=5)
