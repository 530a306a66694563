"""Splitting: no word lost, none twice, every passage a slice of its document."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given, strategies as st

from ralm.corpus.splitting import Splitting, make_passages, split_by_model_tokens, split_by_words, split_document
from ralm.corpus.structure import Piece
from ralm.corpus.words import count_words
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.records import Document, IntArray
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
