"""Encoding in pieces gives the tokens and spans of the whole text, for every kind of fast tokenizer."""

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ralm.errors import TextError
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.long_texts import Cuts, Window, WindowSizes, encode_in_pieces, join_pieces, stage_kinds, text_chunks
from ralm.reading.plan import PlanOptions
from ralm.reading.tokens import prepare_text, read_beginning
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
    own = Tokenizer(backend.model)
    if pre_tokenizer is None:
        own.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        own.pre_tokenizer = pre_tokenizer
    own.add_special_tokens(["<unk>", "</s>"])  # only these are looked for in the text
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", unk_token="<unk>")


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


BYTE_LEVEL = [kind for kind in KINDS if "byte" in kind]
HUNDRED = WindowSizes(first=100, longest=100, overlap=20)


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
    "the thing They isn't a I caf\u00e9 cafe\u0301 \u00e9 \u0301 e\u0301\u0301 12 12345678 return x_y _ .,!' ... "
    "\u043a\u043e\u0440\u0430\u0431\u043b\u044c \u4e2d\u6587\u6587\u672c \u6ca1 \u3000 \u0e01\u0e33 "
    "\u0915\u094d\u0937 \ufb01ne \u00bd \uff9e \U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \u200d \ufeff "
    "\U0001f1eb\U0001f1f7 \u0d4e \u0600 \u1100\u1161 \ufffd </s> <unk> <mask> <s> [UNK] [EOS] <0x0A> \u2581 \u2581the "
    "## ##ing".split(" ")
)
SPACES = st.sampled_from(
    [" "] * 6 + ["  ", "   ", "\n", "\n", "\n\n", " \n", "\r\n", "\t", "\xa0", "", "\uff0c", "\u3002\n"]
)
RUNS = st.builds(
    lambda word, times: word * times, st.sampled_from(["x", "th", "\u4e2d", " ", "\n", "1"]), st.integers(9, 60)
)
CHINESE = "\u4e2d\u6587\u6587\u672c\uff0c\u6ca1\u6709\u7a7a\u683c\u3002"
PLAIN = st.sampled_from("the thing They isn a I is return x caf\u00e9 12 2024 \u043a\u043e\u0440 \u4e2d\u6587".split())


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Plain words with odd words, odd spaces and long runs between them."""
    stretches = st.lists(st.tuples(st.lists(PLAIN, max_size=9), st.sampled_from(" \n")), min_size=1, max_size=5)
    lines = st.sampled_from(["", "", CHINESE, CHINESE * 3, CHINESE + "\n", "They are it.\nA ", "x\n\u3000\u3000\u4e2d"])
    odd = st.one_of(WORDS, WORDS, WORDS, st.text(max_size=6), RUNS)
    text = ""
    for _ in range(draw(st.integers(1, 5))):
        text += "".join(space.join(words) + space for words, space in draw(stretches)) + draw(lines)
        text += "".join(draw(odd) + draw(SPACES) for _ in range(draw(st.integers(0, 3))))
    return text.encode(errors="ignore").decode()


SIZES = st.builds(
    lambda first, times, overlap: WindowSizes(first=first, longest=first * times, overlap=overlap),
    st.integers(5, 50),
    st.integers(1, 4),
    st.integers(4, 24),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(text=texts(), sizes=SIZES, chunk=st.integers(1, 90))
def test_pieces_are_the_whole(kind: str, text: str, sizes: WindowSizes, chunk: int) -> None:
    tokenizer = tokenizer_of(kind)
    assert_same(tokenizer, text, in_pieces(tokenizer, text, sizes, chunk))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("the thing is that they are there and it is so\n" * 40, [*KINDS]),
        (CHINESE * 100, BYTE_LEVEL),
        ("theythingthere,\n" * 100, [*BYTE_LEVEL, "Unigram", "WordPiece", "wordpiece"]),
    ],
    ids=["at spaces", "at signs", "at the beginning of a line"],
)
def test_texts_are_cut(text: str, kinds: list[str]) -> None:
    for tokenizer in map(tokenizer_of, kinds):
        pieces = in_pieces(tokenizer, text, HUNDRED)
        assert len(pieces) > 5
        assert_same(tokenizer, text, pieces)


def test_no_window_is_much_longer_than_the_longest() -> None:
    tokenizer, encoded = tokenizer_of("byte-level BPE"), []
    sizes = WindowSizes(first=100, longest=1000, overlap=50)

    def encode(text: str) -> Window:
        encoded.append(len(text))
        return ModelTokenizer(tokenizer)._window(text)

    text = "The thing is that they are there, and it is so.\n" * 400
    pieces = list(encode_in_pieces(text_chunks(text), encode, Cuts(tokenizer).separate, sizes))
    assert_same(tokenizer, text, pieces)
    assert encoded[0] == 100
    assert max(encoded) < 1500
    assert sum(encoded) < 1.5 * len(text)


@pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece", "Unigram", "SentencePiece BPE"])
def test_long_runs_without_a_place_to_cut_are_one_piece(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, plain = tokenizer_of(kind), "the thing is there " * 20
    for run in ("x" * 3000, " " * 3000, "1" * 3000, ". " * 1500, "\u4e2d" * 3000, "\u0301" * 3000, "</s>" * 500):
        with caplog.at_level(logging.INFO, "ralm"):
            pieces = in_pieces(tokenizer, plain + run + plain, WindowSizes(first=64, longest=256, overlap=24))
        assert_same(tokenizer, plain + run + plain, pieces)
        assert max(len(piece.text) for piece in pieces) >= len(run)
    assert "no place to cut the text" in caplog.text


@pytest.mark.slow
def test_pieces_of_real_text_with_the_tokenizer_of_gpt2() -> None:
    folder = shared("data", "gpt2_bpe")
    backend = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.add_special_tokens(["<|endoftext|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    for text in (
        shared("data", "wikitext_raw", "test.txt").read_text(encoding="utf-8"),
        shared("data", "xquad", "xquad.en.json").read_text(encoding="utf-8"),
    ):
        whole, whole_spans_N2 = at_once(tokenizer, text)
        for longest in (500, 20_000):
            pieces = in_pieces(tokenizer, text, WindowSizes(first=400, longest=longest, overlap=100), chunk=10_000)
            assert len(pieces) > len(text) / (2 * longest)
            tokens, spans_N2 = join_pieces(pieces)
            assert np.array_equal(tokens, whole)
            assert np.array_equal(spans_N2, whole_spans_N2)


def test_only_as_many_chunks_are_read_as_the_tokens_need() -> None:
    tokenizer, read = ModelTokenizer(tokenizer_of("byte-level BPE")), []

    def endless() -> Iterator[str]:
        for chunk in itertools.repeat("the thing is there and " * 1000):
            read.append(chunk)
            yield chunk

    text = read_beginning(endless(), tokenizer, 100)
    assert len(read) < 10
    plan = PlanOptions(max_length=64, document_tokens=8)
    prepared = prepare_text(text, tokenizer, plan, limit_tokens=100)
    tokens, spans_N2 = at_once(tokenizer_of("byte-level BPE"), "".join(read))
    assert prepared.tokens.tolist() == tokens[:100].tolist()
    assert prepared.text == "".join(read)[: spans_N2[99, 1]]


def test_a_text_with_fewer_tokens_than_the_limit_is_read_whole() -> None:
    tokenizer, text = ModelTokenizer(tokenizer_of("byte-level BPE")), "the thing is there \n" * 3000
    count = len(tokenizer.encode(text))
    assert read_beginning(text_chunks(text), tokenizer, count) == text
    assert read_beginning(text_chunks(text), tokenizer, None) == text
    assert len(read_beginning(text_chunks(text), tokenizer, count // 4)) < len(text)


def test_a_window_that_disagrees_with_the_next_one_is_not_cut() -> None:
    """A made-up tokenizer that writes every word by its number in the window."""

    def encode(text: str) -> Window:
        found = list(re.finditer(r"\w+", text))
        spans_N2 = np.array([word.span() for word in found], np.int64).reshape(-1, 2)
        return Window(text=text, tokens=np.arange(len(found)), spans_N2=spans_N2, word_of=int)

    text = "some words and more " * 50
    pieces = list(encode_in_pieces([text], encode, lambda window, place: True, WindowSizes(first=50, overlap=10)))
    assert [len(piece.tokens) for piece in pieces] == [200]


@pytest.mark.parametrize("change", ["pre-tokens of fixed length", "dropout", "a space", "a normalised space"])
def test_other_tokenizers_read_the_text_at_once(change: str, caplog: pytest.LogCaptureFixture) -> None:
    """Byte-level BPE that cannot be cut; the spaces are in added tokens."""
    backend = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).backend_tokenizer
    match change:
        case "pre-tokens of fixed length":
            parts = [pre_tokenizers.FixedLength(7), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
        case "dropout":
            backend.model.dropout = 0.5
        case "a space":
            backend.add_tokens(["the thing"])
        case _:
            backend.normalizer = normalizers.Replace("_", " ")
            backend.add_tokens([AddedToken("the_thing", normalized=True)])
    own = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer = ModelTokenizer(own)
    text = "the thing is there and they are too " * 8000
    assert not Cuts(tokenizer._tokenizer).exist
    with caplog.at_level(logging.INFO, "ralm"):
        (piece,) = tokenizer.encode_pieces(text_chunks(text))
    assert piece.text == text
    assert "texts of this tokenizer cannot be cut" in caplog.text
    if change != "dropout":
        assert_same(tokenizer._tokenizer, text, [piece])


def test_a_unigram_text_that_is_one_pre_token_is_not_cut() -> None:
    backend = unigram_tokenizer().backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    text = "the thing is there and it is so " * 40
    pieces = in_pieces(tokenizer, text, HUNDRED)
    assert len(pieces) == 1
    assert_same(tokenizer, text, pieces)


def test_bpe_of_one_pre_token_is_not_cut_where_a_token_crosses_the_space() -> None:
    backend = tokenizer_of("SentencePiece BPE").backend_tokenizer
    state = json.loads(backend.to_str())
    number = len(state["model"]["vocab"])
    state["model"]["vocab"]["e\u2581"] = number
    state["model"]["merges"].insert(0, ["e", "\u2581"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), unk_token="<unk>")
    assert len(in_pieces(tokenizer, "the are the one " * 40, HUNDRED)) == 1
    text = "the thing is one that is " * 40
    pieces = in_pieces(tokenizer, text, HUNDRED)
    assert len(pieces) > 5
    assert all(piece.text[-1] != "e" for piece in pieces)
    assert_same(tokenizer, text, pieces)


def test_half_of_a_character_far_into_a_text_is_found() -> None:
    tokenizer = ModelTokenizer(tokenizer_of("byte-level BPE"))
    text = "the thing " * 200_000 + "\ud800"
    for encode in (tokenizer.encode_with_spans, tokenizer.encode):
        with pytest.raises(TextError, match=r"character 2,000,000 of the text is half a character"):
            encode(text)
    plan = PlanOptions(max_length=64, document_tokens=8)
    assert len(prepare_text(text, tokenizer, plan, limit_tokens=50).tokens) == 50, "what is not read decides nothing"


class InPython:
    """A part of a tokenizer that is written in Python, or one whose state a later library gives in another way."""

    def pre_tokenize(self, text: object) -> None:
        """Nothing is split."""

    def __getstate__(self) -> bytes:
        raise TypeError("state has another form")


def test_only_parts_in_python_have_no_kind() -> None:
    own = pre_tokenizers.PreTokenizer.custom(InPython())
    assert [*stage_kinds(own)] == [*stage_kinds(pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(), own]))] == [""]
    with pytest.raises(TypeError, match="another form"):
        list(stage_kinds(InPython()))
