"""Splitting: no word lost, none twice, every passage a slice of its document; passages that end where the text does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given, strategies as st

from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages, split_by_model_tokens, split_by_words, split_document
from ralm.corpus.structure import Piece, split_by_sentences, split_by_structure
from ralm.corpus.words import count_words
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.records import Document, Heading, IntArray, Passage
from tests.cli.program import done, printed, ralm
from tests.fakes import WordTokenizer

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\t\x1c\x85\u3000é中กี้。😀")))
SPACED = st.text(st.sampled_from(" \n\t\x1c\x85\u3000aé\u0301한ж,.!😀"))


class ByteTokenizer(WordTokenizer):
    """A token a byte, so that every character beyond ASCII has several."""

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        spans = [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]
        return np.array([*text.encode()], dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 2)


def assert_slices_in_order(pieces: list[Piece], text: str) -> None:
    """Each is where it says, nothing but white space is lost, and no character is cut from its marks."""
    ends = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    position = 0
    for piece in pieces:
        assert piece.text == piece.text.strip() != ""
        assert piece.text == text[piece.begin : piece.end].strip()
        assert piece.begin >= position
        before = text[position : piece.begin]
        assert before == "" or before.isspace()
        assert piece.begin in ends or text[piece.begin - 1].isspace()
        position = piece.end
    assert text[position:].strip() == ""


@given(SPACED, st.integers(1, 7))
def test_by_words_no_word_is_lost_and_none_is_twice(text: str, words: int) -> None:
    pieces = list(split_by_words(text, words))
    assert [word for piece in pieces for word in piece.text.split()] == text.split()
    assert all(len(piece.text.split()) == words for piece in pieces[:-1])
    assert all(1 <= len(piece.text.split()) <= words for piece in pieces[-1:])
    assert_slices_in_order(pieces, text)


@given(TEXTS, st.integers(1, 7))
def test_scripts_without_spaces_are_cut_between_characters(text: str, words: int) -> None:
    pieces = list(split_by_words(text, words))
    assert_slices_in_order(pieces, text)
    assert all(count_words(piece.text, words) == words for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        ("人人生而自由\uff0c在尊嚴和權利上一律平等。", ["人人生而自由\uff0c", "在尊嚴和權利", "上一律平等。"]),
        ("กำลังกินข้าว", ["กำลังกินข้", "าว"]),
        ("東京 is the 首都です。", ["東京 is the", "首都です。"]),
    ],
)
def test_scripts_without_spaces_worked_out_by_hand(text: str, passages: list[str]) -> None:
    assert [piece.text for piece in split_by_words(text, 3)] == passages


@pytest.mark.parametrize("split", ["words", "sentences", "structure"])
def test_passages_of_text_without_spaces_are_as_short_as_others(split: Any) -> None:
    document = Document("a", "", "人人生而自由在尊嚴和權利上一律平等" * 200 + "\n\n" + "เขากำลังกินข้าวอยู่ที่บ้าน" * 200)
    texts = [piece.text for piece in split_document(document, Splitting(split=split, words=100))]
    assert "".join("".join(texts).split()) == "".join(document.text.split())
    assert max(map(len, texts)) < 600
    assert all(count_words(text, 100) <= 100 for text in texts)


@given(TEXTS, st.integers(1, 20))
def test_by_tokens_nothing_but_white_space_is_lost_and_no_character_is_cut(text: str, tokens: int) -> None:
    pieces = list(split_by_model_tokens(text, full_tokenizer(ByteTokenizer()), tokens))
    assert_slices_in_order(pieces, text)
    longest = max((len(match[0].encode()) for match in regex.finditer(r"\X", text)), default=0)
    for piece in pieces:
        assert len(piece.text.encode()) <= max(tokens, longest)


def texts_of(pieces: Iterable[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


def test_by_tokens_worked_out_by_hand() -> None:
    tokenizer = full_tokenizer(ByteTokenizer())
    assert texts_of(split_by_model_tokens("abc défg", tokenizer, 6)) == ["abc d", "éfg"]
    assert texts_of(split_by_model_tokens("abcdefg", tokenizer, 3)) == ["abc", "def", "g"]
    assert texts_of(split_by_model_tokens("a😀😀b", tokenizer, 2)) == ["a", "😀", "😀", "b"]
    assert "".join(texts_of(split_by_model_tokens("a\ufffd\ufffdb", tokenizer, 4))) == "a\ufffd\ufffdb"
    assert texts_of(split_by_model_tokens(" \n ", tokenizer, 2)) == []


def test_a_document_is_split_as_was_asked() -> None:
    tokenizer = full_tokenizer(WordTokenizer())
    document = Document("a", "", "a b c")
    assert [one.text for one in split_document(document, Splitting(words=2))] == ["a b", "c"]
    assert [one.text for one in split_document(document, Splitting(tokens=1), tokenizer)] == ["a", "b", "c"]
    with pytest.raises(UsageError, match="`words` must be at least 1, not 0"):
        Splitting(words=0)
    with pytest.raises(UsageError, match="`tokens` must be at least 1, not 0"):
        Splitting(tokens=0)


def test_passages_repeat_only_the_beginning_of_a_long_title() -> None:
    [passage] = make_passages([Document("a", "ab" * 1_000_000, "text")])
    assert passage.title == "ab" * 2_048


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
    (tmp_path / "farm.md").write_text(MARKDOWN + "\n## Fish\n\nFish swim in the lake below the farm.\n")
    assert "1 replaced" in done("sync", index).out
    for query, title in (("price of the goat", "The Farm > Prices"), ("fish swim", "The Farm > Fish")):
        assert printed("search", index, query, "-k", "1")["hits"][0]["title"] == title
    refused = ralm("index", tmp_path / "farm.md", "--overlap-words", "5", "--out", tmp_path / "other")
    assert "--overlap-words has no effect" in refused.err
    with pytest.raises(UsageError, match="`overlap_words` must be below `words`"):
        Splitting(split="sentences", words=5, overlap_words=5)
