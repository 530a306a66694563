"""Splitting: no word lost, none twice, every passage a slice of its document."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.corpus.splitting import Splitting, make_passages, split_by_model_tokens, split_by_words, split_document
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.records import Document, IntArray
from tests.fakes import WordTokenizer
from tests.shared_data import shared

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\t\x1c\x85\u3000é中😀")))


class ByteTokenizer(WordTokenizer):
    """A token a byte, so that every character beyond ASCII has several."""

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        spans = [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]
        return np.array([*text.encode()], dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 2)


def assert_slices_in_order(pieces: list[str], text: str) -> None:
    position = 0
    for piece in pieces:
        assert piece == piece.strip() != ""
        position = text.index(piece, position) + len(piece)


@given(TEXTS, st.integers(1, 7))
def test_by_words_no_word_is_lost_and_none_is_twice(text: str, words: int) -> None:
    pieces = list(split_by_words(text, words))
    assert [word for piece in pieces for word in piece.split()] == text.split()
    assert all(len(piece.split()) == words for piece in pieces[:-1])
    assert all(1 <= len(piece.split()) <= words for piece in pieces[-1:])
    assert_slices_in_order(pieces, text)


@given(TEXTS, st.integers(1, 20))
def test_by_tokens_nothing_but_white_space_is_lost_and_no_character_is_cut(text: str, tokens: int) -> None:
    pieces = list(split_by_model_tokens(text, full_tokenizer(ByteTokenizer()), tokens))
    assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
    assert_slices_in_order(pieces, text)
    for piece in pieces:
        assert len(piece.encode()) <= max(tokens, 4)


def test_by_tokens_worked_out_by_hand() -> None:
    tokenizer = full_tokenizer(ByteTokenizer())
    assert list(split_by_model_tokens("abc défg", tokenizer, 6)) == ["abc d", "éfg"]
    assert list(split_by_model_tokens("abcdefg", tokenizer, 3)) == ["abc", "def", "g"]
    assert list(split_by_model_tokens("a😀😀b", tokenizer, 2)) == ["a", "😀", "😀", "b"]
    assert "".join(split_by_model_tokens("a\ufffd\ufffdb", tokenizer, 4)) == "a\ufffd\ufffdb"
    assert list(split_by_model_tokens(" \n ", tokenizer, 2)) == []


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


def test_by_tokens_of_gpt2() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = shared("data", "gpt2_bpe")
    bpe = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    class GPT2Tokenizer(WordTokenizer):
        def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
            encoded = bpe.encode(text)
            return np.array(encoded.ids, dtype=np.int64), np.array(encoded.offsets, dtype=np.int64)

    text = shared("data", "wikitext_raw", "test.txt").read_text(encoding="utf-8")[:200_000] + "中文😀 ᚠᛇᚻ " * 200
    for tokens in (1, 7, 128):
        pieces = list(split_by_model_tokens(text, full_tokenizer(GPT2Tokenizer()), tokens))
        assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
        assert_slices_in_order(pieces, text)
