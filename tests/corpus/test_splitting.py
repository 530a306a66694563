"""Splitting: no word lost, none twice, every passage a slice of its document."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.corpus.splitting import Splitting, make_passages, split_by_model_tokens, split_by_words, split_document
from ralm.errors import UsageError
from ralm.records import Document, IntArray
from tests.fakes import WordTokenizer
from tests.shared_data import shared

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\t\x1c\x85\u3000é中😀")))


class ByteTokenizer:
    """A token a byte, so that every character beyond ASCII has several."""

    def encode(self, text: str) -> IntArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        return bytes(tokens.astype(np.uint8)).decode(errors="replace")


class TidyingTokenizer(ByteTokenizer):
    """Takes the spaces before full stops away as it decodes, and those at the beginning, as some models' do."""

    def decode(self, tokens: IntArray) -> str:
        return super().decode(tokens).replace(" .", ".").removeprefix(" ")


class LowerCaseTokenizer(ByteTokenizer):
    """Forgets case."""

    def encode(self, text: str) -> IntArray:
        return super().encode(text.lower())


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
    pieces = list(split_by_model_tokens(text, ByteTokenizer(), tokens))
    assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
    assert_slices_in_order(pieces, text)
    for piece in pieces:
        length = len(piece.encode())
        assert length <= max(tokens, 4) or "\ufffd" in text


def test_by_tokens_worked_out_by_hand() -> None:
    tokenizer = ByteTokenizer()
    assert list(split_by_model_tokens("abc défg", tokenizer, 6)) == ["abc d", "éfg"]
    assert list(split_by_model_tokens("abcdefg", tokenizer, 3)) == ["abc", "def", "g"]
    assert list(split_by_model_tokens("a😀😀b", tokenizer, 2)) == ["a", "😀", "😀", "b"]
    assert "".join(split_by_model_tokens("a\ufffd\ufffdb", tokenizer, 4)) == "a\ufffd\ufffdb"
    assert list(split_by_model_tokens(" \n ", tokenizer, 2)) == []


def test_a_tokenizer_that_tidies_white_space_gives_slices_all_the_same() -> None:
    text = "One  two . Three .\n Four . Five"
    pieces = list(split_by_model_tokens(text, TidyingTokenizer(), 10))
    assert_slices_in_order(pieces, text)
    assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
    assert " ." in "".join(pieces)


def test_a_tokenizer_that_changes_letters_gives_what_it_decodes() -> None:
    assert list(split_by_model_tokens("ABC DEF", LowerCaseTokenizer(), 3)) == ["abc", "de", "f"]


def test_a_document_is_split_as_was_asked() -> None:
    tokenizer = WordTokenizer()
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
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = shared("data", "gpt2_bpe")
    bpe = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()

    class GPT2Tokenizer(ByteTokenizer):
        def encode(self, text: str) -> IntArray:
            return np.array(bpe.encode(text).ids, dtype=np.int64)

        def decode(self, tokens: IntArray) -> str:
            return str(bpe.decode(tokens.tolist()))

    text = shared("data", "wikitext_raw", "test.txt").read_text(encoding="utf-8")[:200_000] + "中文😀 ᚠᛇᚻ " * 200
    for tokens in (1, 7, 128):
        pieces = list(split_by_model_tokens(text, GPT2Tokenizer(), tokens))
        assert "".join("".join(piece.split()) for piece in pieces) == "".join(text.split())
        assert_slices_in_order(pieces, text)
