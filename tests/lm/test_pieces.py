"""Encoding in pieces gives the tokens and spans of the whole text, for every kind of fast tokenizer."""

import itertools
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ralm.lm.local.cuts import Cuts
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.pieces import WindowSizes, chunks_of, encode_in_pieces, join_pieces
from ralm.records import EncodedPiece, IntArray
from tests.shared_data import shared
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import llama_tokenizer, unigram_tokenizer, wordpiece_tokenizer

TRAINED_ON = [
    "The thing is that they are there, and the others were not; 12345 of 2024, isn't it?",
    "  indented code():\n\treturn  the(thing)\n\n\nno more   spaces",
    "le caf\u00e9 \u00e9tait ferm\u00e9, na\u00efve fa\u00e7ade",
    "\u043a\u043e\u0440\u0430\u0431\u043b\u044c \u043f\u043b\u044b\u043b \u043f\u043e \u043c\u043e\u0440\u044e",
    "\u4e2d\u6587\u6587\u672c\u6ca1\u6709\u7a7a\u683c\u3002",
] * 3
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(["<unk>", "</s>", AddedToken("<mask>", lstrip=True, rstrip=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """Byte-level BPE."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TRAINED_ON, trainer)
    return wrapped(backend)


def gpt4() -> PreTrainedTokenizerFast:
    """The pattern of GPT-4's and LLaMA 3's byte-level BPE."""
    split = pre_tokenizers.Split(Regex(GPT4), behavior="isolated")
    return byte_level(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)]))


def sentencepiece_bpe(pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> PreTrainedTokenizerFast:
    """LLaMA's and Gemma's: the whole text is one pre-token."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.pre_tokenizer = pre_tokenizers.Split("\u2581", behavior="merged_with_next")
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581\u2581", "\u2581\u2581\u2581\u2581"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=pieces, show_progress=False)
    backend.train_from_iterator(TRAINED_ON, trainer)
    if pre_tokenizer is None:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        backend.pre_tokenizer = None
    else:
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=_without_added(backend), eos_token="</s>", unk_token="<unk>")


def _without_added(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer, in which only `<unk>` and `</s>` are looked for in the text."""
    bare = Tokenizer(backend.model)
    bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    bare.add_special_tokens(["<unk>", "</s>"])
    return bare


def t5() -> PreTrainedTokenizerFast:
    """A trained Unigram model, with the spaces of T5 and XLM-R."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TRAINED_ON, trainer)
    return wrapped(backend)


def bert() -> PreTrainedTokenizerFast:
    """A trained WordPiece model that keeps the case."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["<unk>", "</s>"], show_progress=False)
    backend.train_from_iterator(TRAINED_ON, trainer)
    return wrapped(backend)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": lambda: byte_tokenizer(with_bos=True),
    "byte-level BPE": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte-level BPE with a prefix space": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "byte-level BPE of GPT-4": gpt4,
    "SentencePiece BPE": lambda: sentencepiece_bpe(None),
    "SentencePiece BPE with Metaspace": lambda: sentencepiece_bpe(
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "llama": llama_tokenizer,
    "Unigram": t5,
    "unigram": unigram_tokenizer,
    "WordPiece": bert,
    "wordpiece": wordpiece_tokenizer,
}


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    return KINDS[kind]()


def at_once(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[IntArray, IntArray]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return np.array(encoded["input_ids"], np.int64), np.array(encoded["offset_mapping"], np.int64).reshape(-1, 2)


def in_pieces(tokenizer: PreTrainedTokenizerFast, text: str, sizes: WindowSizes, chunk: int = 7) -> list[EncodedPiece]:
    cuts = Cuts(tokenizer)
    assert cuts.exist
    chunks = (text[begin : begin + chunk] for begin in range(0, len(text), chunk))
    return list(encode_in_pieces(chunks, ModelTokenizer(tokenizer)._window, cuts.separate, sizes))


def assert_same(tokenizer: PreTrainedTokenizerFast, text: str, pieces: list[EncodedPiece]) -> None:
    assert "".join(piece.text for piece in pieces) == text
    tokens, spans_N2 = join_pieces(pieces)
    whole, whole_spans_N2 = at_once(tokenizer, text)
    assert tokens.tolist() == whole.tolist()
    assert spans_N2.tolist() == whole_spans_N2.tolist()


WORDS = st.sampled_from(
    "the thing They isn't a I caf\u00e9 cafe\u0301 \u00e9 \u0301 e\u0301\u0301 12 12345678 2024 return x_y _ .,!' ... "
    "\u043a\u043e\u0440\u0430\u0431\u043b\u044c \u4e2d\u6587\u6587\u672c \u6ca1 \u3000 \u0e01\u0e33 \u0915\u094d\u0937 \ufb01ne \u00bd \uff9e "
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u200d \ufeff \u0d4e \u0600 \u1100\u1161 \ufffd "
    "</s> <unk> <mask> <s> [UNK] [EOS] <0x0A> \u2581 \u2581the ## ##ing".split(" ")
)
SPACES = st.sampled_from([" ", " ", " ", " ", " ", " ", "  ", "   ", "\n", "\n", "\n\n", " \n", "\r\n", "\t", "\xa0", ""])
RUNS = st.builds(lambda word, times: word * times, st.sampled_from(["x", "th", "\u4e2d", " ", "\n", "1"]), st.integers(9, 60))
TEXTS = st.lists(st.one_of(WORDS, WORDS, WORDS, st.text(max_size=6), RUNS), max_size=40).flatmap(
    lambda words: st.lists(SPACES, min_size=len(words), max_size=len(words)).map(
        lambda spaces: "".join(itertools.chain.from_iterable(zip(words, spaces, strict=True)))
    )
)
SIZES = st.builds(
    lambda first, times, overlap: WindowSizes(first=first, longest=first * times, overlap=overlap),
    st.integers(5, 50),
    st.integers(1, 4),
    st.integers(6, 24),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS, sizes=SIZES, chunk=st.integers(1, 90))
def test_pieces_are_the_whole(kind: str, text: str, sizes: WindowSizes, chunk: int) -> None:
    tokenizer = tokenizer_of(kind)
    text = text.encode(errors="ignore").decode()
    assert_same(tokenizer, text, in_pieces(tokenizer, text, sizes, chunk))
