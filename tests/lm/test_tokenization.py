"""Tokenizers of every kind: where their tokens stand, what they do not know, and what tells one from another."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from ralm.errors import ModelError, RalmWarning, TextError
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.lm.tokenizer import align
from ralm.reading.plan import PlanOptions
from ralm.reading.tokens import prepare_text
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import TOKENIZERS, ctrl_tokenizer, unigram_tokenizer, wordpiece_tokenizer

PLAN = PlanOptions(document_tokens=8, max_length=64)
TEXTS = [
    "the thing is, that they are there",
    "  two  spaces,\ttab\n\nlines\r\n ",
    "the \u00e9 and e\u0301, \u4e2d\u6587 \U0001f600 \U0001f469\u200d\U0001f469 end",
    "\ufffd\ufffd a\0b \u0627\u0644 end",
    "<s> </s> <unk> [UNK] </s>",
    "The THING",
    "th" * 300,
]


@pytest.fixture(scope="module", params=[*TOKENIZERS, "bytes"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "bytes":
        byte_tokenizer(with_bos=True).save_pretrained(folder)
    else:
        TOKENIZERS[request.param](folder).save_pretrained(folder)
    return load_model_tokenizer(str(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_stand_in_their_text_one_after_the_other(tokenizer: ModelTokenizer, text: str) -> None:
    tokens, spans_N2 = tokenizer.encode_with_spans(text)
    assert tokens.tolist() == tokenizer.encode(text).tolist()
    assert spans_N2.shape == (len(tokens), 2)
    assert (spans_N2[:, 0] <= spans_N2[:, 1]).all()
    assert (np.diff(spans_N2, axis=0) >= 0).all()
    assert spans_N2.min(initial=0) >= 0
    assert spans_N2.max(initial=0) <= len(text)


@pytest.mark.filterwarnings("ignore::ralm.errors.RalmWarning")
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_cut_is_the_text_of_its_tokens(tokenizer: ModelTokenizer, text: str) -> None:
    for limit in range(2, 40):
        try:
            prepared = prepare_text(text, tokenizer, PLAN, limit_tokens=limit)
            whole = prepare_text(text, tokenizer, PLAN)
        except TextError:
            continue
        assert text.startswith(prepared.text)
        assert len(prepared.tokens) <= limit
        before, texts = prepared.token_texts(np.arange(1, len(prepared.tokens)))
        first = prepared.text[: int(prepared.spans_N2[0, 1])]
        assert before == first
        if len(prepared.tokens) < len(tokenizer.encode(text)):
            assert before + "".join(texts) == prepared.text
        assert prepared.tokens.tolist() == whole.tokens[: len(prepared.tokens)].tolist()
        after = whole.spans_N2[len(prepared.tokens) :, 0]
        assert after.min(initial=len(text)) >= len(prepared.text)


@pytest.mark.parametrize("kind", ["bytes", "llama", "byt5"])
def test_no_half_of_a_character_is_counted(kind: str, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(byte_tokenizer(with_bos=False) if kind == "bytes" else TOKENIZERS[kind](tmp_path))
    text = "ab\u4e2d\u6587"
    letters = len(tokenizer.encode("ab"))
    for of_bytes, shown in enumerate(["ab"] * 3 + ["ab\u4e2d"] * 3 + [text]):
        prepared = prepare_text(text, tokenizer, PLAN, limit_tokens=letters + of_bytes)
        assert prepared.text == shown
        assert len(prepared.tokens) == letters + len(shown[2:].encode())


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_that_only_the_model_has_are_nothing(kind: str, tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(TOKENIZERS[kind](tmp_path))
    tokens = tokenizer.encode("the thing")
    assert tokenizer.decode(np.append(tokens, [100_000, -1, 1 << 40])) == tokenizer.decode(tokens)
    assert tokenizer.decode(tokens.tolist()) == tokenizer.decode(tokens)


def test_bytes_of_byt5_share_the_span_of_their_character(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(TOKENIZERS["byt5"](tmp_path))
    tokens, spans_N2 = tokenizer.encode_with_spans("a\u00e9 \ufffd\U0001f600")
    assert len(tokens) == 1 + 2 + 1 + 3 + 4
    assert spans_N2[:4].tolist() == [[0, 1], [1, 2], [1, 2], [2, 3]]
    assert spans_N2[-1].tolist() == [4, 5] or spans_N2[-1].tolist() == [3, 5]


def test_pieces_that_are_text_only_together_share_a_span(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(ctrl_tokenizer(tmp_path))
    _, spans_N2 = tokenizer.encode_with_spans("the  is a")
    assert spans_N2.tolist() == [[0, 3], [5, 7], [5, 7], [8, 9]]


def test_tokens_that_cannot_be_found_are_refused() -> None:
    said = ["one", "three", ""]
    for text, tokens, message in (
        ("one two", [0, 1], "' two' was not found. Use a model with a fast tokenizer"),
        ("one two", [0], "' two' was not found"),
        ("one", [2] * 99, "'one' was not found"),
    ):
        with pytest.raises(ModelError, match=message):
            align(text, tokens, lambda ids: " ".join(said[number] for number in ids).strip())


@pytest.mark.parametrize("make", [wordpiece_tokenizer, unigram_tokenizer])
def test_what_is_unknown_is_said_with_its_share(make: Callable[[], PreTrainedTokenizerFast]) -> None:
    tokenizer = ModelTokenizer(make())
    with pytest.warns(RalmWarning, match="10.0% of the characters of the text are unknown to the tokenizer"):
        assert prepare_text("abcd e fg hi \u4e2d", tokenizer, PLAN).unknown_tokens == 1
    with pytest.raises(TextError, match="60.0% of the characters .* Take a model that knows its letters"):
        prepare_text("a b \u4e2d \u4e2d \u4e2d", tokenizer, PLAN)


def test_what_is_dropped_is_said_too() -> None:
    tokenizer = ModelTokenizer(wordpiece_tokenizer())
    with pytest.warns(RalmWarning, match="25.0% of the characters"):
        assert prepare_text("a b c \x01", tokenizer, PLAN).unknown_tokens == 0
    assert prepare_text("a [UNK] b [UNK]", tokenizer, PLAN).unknown_tokens == 0, "written out, it is known"


def test_half_of_a_character_is_refused(tokenizer: ModelTokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_with_spans):
        with pytest.raises(TextError, match=r"character 1 of the text is half a character.*ud800"):
            encode("a\ud800")


def bpe(merges: list[tuple[str, str]], lower: bool = False) -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "q", "x", "z", "qx", "xz", "qxz"]
    backend = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=merges))
    if lower:
        backend.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_the_fingerprint_sees_all_that_decides_ids(tmp_path: Path) -> None:
    merges = [("q", "x"), ("x", "z"), ("qx", "z")]
    different = [bpe(merges), bpe([merges[1], merges[0], merges[2]]), bpe(merges, lower=True)]
    different += [byte_tokenizer(with_bos=True), byte_tokenizer(with_bos=False)]
    more = byte_tokenizer(with_bos=True)
    more.add_tokens(["qqqq"])
    different += [more, TOKENIZERS["byt5"](tmp_path), ctrl_tokenizer(tmp_path / "a")]
    (tmp_path / "b").mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    (tmp_path / "b" / "merges.txt").write_text("#version: 0.2\nt h\n")
    different.append(type(different[-1])(str(tmp_path / "b" / "vocab.json"), str(tmp_path / "b" / "merges.txt")))
    assert len({ModelTokenizer(one).fingerprint for one in different}) == len(different)


def test_the_fingerprint_is_the_same_from_another_folder_and_after_use(
    tokenizer: ModelTokenizer, tmp_path: Path
) -> None:
    tokenizer.encode_document("the text", 1)
    tokenizer._tokenizer.save_pretrained(tmp_path / "copy")
    assert load_model_tokenizer(str(tmp_path / "copy")).fingerprint == tokenizer.fingerprint
    assert ModelTokenizer(tokenizer._tokenizer).fingerprint == tokenizer.fingerprint


def test_a_folder_without_a_vocabulary_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer: none of tokenizer.json"):
        load_model_tokenizer(str(tmp_path))
    for kind in ("GPT2Tokenizer", "CTRLTokenizer", "LlamaTokenizer"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        with pytest.raises(ModelError, match="has no tokenizer|cannot load the tokenizer"):
            load_model_tokenizer(str(tmp_path))
