"""GGUF files as models: the same logits and tokens as their source, and one sentence for what cannot be read."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

gguf = pytest.importorskip("gguf")

from gguf import GGMLQuantizationType as Type  # noqa: E402
from gguf.quants import dequantize, quantize  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

import ralm as library  # noqa: E402
from ralm.distributed.models import ModelLoader  # noqa: E402
from ralm.errors import MissingExtraError, ModelError, RalmError, UsageError  # noqa: E402
from ralm.lm.local.gguf import open_gguf  # noqa: E402
from ralm.lm.local.gguf_model import load_gguf  # noqa: E402
from ralm.lm.registry import ModelOptions, load_local_model  # noqa: E402
from tests.campaign import examples  # noqa: E402
from tests.lm.gguf_files import CONFIGS, bpe_tokens, tiny_model, write_model  # noqa: E402

TOKENS = torch.randint(0, 290, (1, 60), generator=torch.Generator().manual_seed(0))
BPE = bpe_tokens()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(TOKENS).logits
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama") / "tiny.gguf", tiny_model("llama"), BPE)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_has_the_logits_of_its_source(kind: str, tmp_path: Path) -> None:
    model = tiny_model(kind)
    loaded = load_gguf(str(write_model(tmp_path / "tiny.gguf", model, BPE)))
    torch.testing.assert_close(logits(loaded), logits(model), atol=0, rtol=0)
    assert loaded.config.eos_token_id == 0
    assert loaded.config.max_position_embeddings == 128


@pytest.mark.parametrize("kind", ["llama biased", "gemma3"])
@pytest.mark.parametrize("quantised", [Type.Q8_0, Type.Q4_0, Type.F16, Type.BF16])
def test_quantised_weights_are_dequantised(kind: str, quantised: Type, tmp_path: Path) -> None:
    model = tiny_model(kind)
    path = write_model(tmp_path / "tiny.gguf", model, BPE, kind=quantised)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), quantised), quantised)))
    loaded = load_gguf(str(path), torch.float32)
    torch.testing.assert_close(logits(loaded), logits(model), atol=0, rtol=0)
    kept = {Type.F16: torch.float16, Type.BF16: torch.bfloat16}.get(quantised, torch.float32)
    assert load_gguf(str(path)).dtype == kept, "auto keeps what the matrices have"
    on_gpu = torch.bfloat16 if kept == torch.float32 else kept
    assert load_gguf(str(path), device="cuda").dtype == on_gpu, "quantised weights take no more than 16 bits"
    assert load_gguf(str(path), torch.bfloat16).dtype == torch.bfloat16


def test_a_large_tensor_is_read_in_chunks(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_gguf(str(llama))
    monkeypatch.setattr("ralm.lm.local.gguf._CHUNK", 100)
    torch.testing.assert_close(logits(load_gguf(str(llama))), logits(whole), atol=0, rtol=0)


def test_a_truncated_file_is_one_sentence(llama: Path, tmp_path: Path) -> None:
    """Wherever it is cut; the padding after the last tensor is no part of it."""
    data, cut = llama.read_bytes(), tmp_path / "cut.gguf"
    end = max(one.offset + one.rows * one.row_bytes for one in open_gguf(str(llama)).tensors.values())
    header = min(one.offset for one in open_gguf(str(llama)).tensors.values())
    for length in {*range(200), *range(200, header, 97), *range(header, end, 19_997), end - 1}:
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"^\S+cut\.gguf is truncated: it ends before .*\.$"):
            open_gguf(str(cut))
    cut.write_bytes(data[:end])
    load_gguf(str(cut))


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_header_is_one_sentence(llama: Path, data: st.DataObject) -> None:
    """Or it is another valid header: figures of another model, which the fingerprints show."""
    content, damaged = bytearray(llama.read_bytes()), llama.with_name("damaged.gguf")
    for _ in range(data.draw(st.integers(1, 3))):
        near = data.draw(st.sampled_from([300, len(content) // 10]))
        content[data.draw(st.integers(0, near))] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content)
    error = None
    try:
        library.load_language_model(str(damaged))
    except RalmError as raised:
        error = str(raised)
    assert error is None or ("damaged.gguf" in error and len(error.splitlines()) == 1)


def _weights(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


REJECTED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"settings": {"general.type": "adapter"}}, "is a GGUF file of the type adapter, not of a model"),
    ("llama", {"settings": {"expert_count": 8}}, "has the setting llama.expert_count=8, which is not supported"),
    ("llama", {"settings": {"logit_scale": 0.5}}, "llama.logit_scale=0.5"),
    ("qwen2", {"settings": {"attention.sliding_window": 8}}, "qwen2.attention.sliding_window=8"),
    ("llama", {"settings": {"split.count": 3, "general.alignment": 32}}, "is a part of a model: join the parts with"),
    ("llama", {"settings": {"rope.scaling.type": "ntk", "rope.scaling.factor": 2.0}}, "the scaling 'ntk'"),
    ("llama", {"settings": {"rope.dimension_count": 8}}, "rotary positions in a part of each head"),
    ("llama", {"settings": {"attention.head_count_kv": [2, 4]}}, "different llama.attention.head_count_kv"),
    ("llama", {"settings": {"attention.causal": False}}, "only causal attention"),
    ("llama", {"settings": {"block_count": 0}}, "llama.block_count is 0, not a positive number"),
    (
        "llama",
        {"settings": {"block_count": 2**31}},
        "lacks the tensor blk.2147483647.attn_norm.weight, which its settings",
    ),
    ("llama", {"settings": {"block_count": 1}}, r"the tensor blk.1.\S+, which is not supported"),
    ("llama", {"settings": {"feed_forward_length": 95}}, r"ffn_\w+.weight of shape .* instead of"),
    ("llama", {"without": "attn_v"}, "lacks weights .* model.layers.0.self_attn.v_proj.weight"),
    ("llama", {"without": "token_embd"}, "lacks the tensor token_embd.weight"),
    ("llama", {"more": {"blk.0.ffn_gate_inp.weight": _weights(4, 4)}}, "has the tensor blk.0.ffn_gate_inp.weight"),
    ("llama", {"more": {"blk.0.attn_qkv.weight": _weights(4, 4)}}, "has the tensor blk.0.attn_qkv.weight"),
    ("llama", {"more": {"blk.1.attn_output.bias": _weights(64)}}, "has the tensor blk.1.attn_output.bias"),
    ("llama", {"more": {"rope_freqs.weight": _weights(8) * 3}}, "scales rotary positions in another way than LLaMA 3"),
    ("llama", {"more": {"rope_freqs.weight": _weights(4)}}, "scales rotary positions in another way"),
    ("llama linear", {"more": {"rope_freqs.weight": _weights(8)}}, "scales rotary positions in another"),
    (
        "gemma3",
        {"settings": {"attention.sliding_window_pattern": [True] * 7}},
        "sliding_window_pattern is True, not a pos",
    ),
    ("llama", {"settings": {"attention.head_count_kv": 0}}, "head_count_kv is 0, not a positive number"),
    ("llama", {"more": {"blk.01.attn_norm.weight": _weights(64)}}, "has the tensor blk.01.attn_norm.weight"),
    (
        "llama",
        {"settings": {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1, 1]}},
        "its tokenizer and token_embd.weight have different sizes",
    ),
    ("llama", {"more": {"ids": np.ones((2, 2), dtype=np.int32)}}, "cannot dequantise I32, the type of ids"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REJECTED, ids=[message for _, _, message in REJECTED])
def test_what_is_not_supported_is_named(kind: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "odd.gguf", tiny_model(kind), BPE, **options)
    with pytest.raises(ModelError, match=message):
        load_gguf(str(path))


def test_settings_that_are_switched_off_are_no_obstacle(tmp_path: Path) -> None:
    off = {"expert_count": 0, "logit_scale": 0.0, "rope.scaling.type": "none", "rope.dimension_count": 16}
    off |= {"attention.head_count_kv": [2, 2], "general.sampling.temp": 0.5, "quantize.imatrix.file": "x"}
    more = {"rope_freqs.weight": _weights(8)}
    path = write_model(tmp_path / "off.gguf", tiny_model("llama"), BPE, settings=off, more=more)
    torch.testing.assert_close(logits(load_gguf(str(path))), logits(tiny_model("llama")), atol=0, rtol=0)


def _replaced(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    return _written(path.with_name("changed.gguf"), data.replace(old, new))


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: _replaced(path, b"llama", b"mamba"), "has the architecture mamba, .*: give one of llama, qwen2"),
        (lambda path: _replaced(path, b"GGUF\3\0\0\0", b"GGUF\1\0\0\0"), "GGUF's version 1, or is big-endian"),
        (lambda path: _replaced(path, b"GGUF\3\0\0\0", b"GGUF\0\0\0\3"), "or is big-endian; versions 2 and 3 can be"),
        (
            lambda path: _replaced(path, b"blk.1.attn_k.weight", b"blk.0.attn_k.weight"),
            "blk.0.attn_k.weight is stored tw",
        ),
        (lambda path: _written(path.with_name("x.gguf"), b"PK\3\4" + bytes(90)), "is not a GGUF file"),
        (lambda path: _written(path.with_name("x.gguf"), b""), "is truncated"),
        (lambda path: path.with_name("none.gguf"), "there is no file"),
        (lambda path: path.parent.rename(path.parent.with_name("folder.gguf")), "is a folder, not a file"),
    ],
)
def test_other_files_are_rejected(change: Callable[[Path], Path], message: str, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = change(_written(tmp_path / "in" / "tiny.gguf", llama.read_bytes()))
    with pytest.raises(ModelError, match=message):
        library.load_language_model(str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "v1"}, "`revision` names a version on the model hub, and .* is a file: leave it out"),
        ({"trust_remote_code": True}, "holds no Python code: leave out `trust_remote_code`"),
        ({"quantised": "8bit"}, "are dequantised to `dtype`: leave out `quantised`"),
    ],
)
def test_options_that_do_not_apply(options: dict[str, Any], message: str, llama: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load_local_model(str(llama), ModelOptions(**options))


@pytest.mark.parametrize("name", ["tiny.gguf", "smollm2"])
def test_an_encoder_is_not_read_from_a_file(name: str, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(llama.parent)
    encoder = library.load_encoder(library.EncoderOptions(encoder=name))
    with pytest.raises(ModelError, match=f"^{name} is a GGUF file, from which only language models are read: give"):
        _ = encoder.dimension


def test_the_package_gguf_is_an_extra(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"^GGUF files need the package gguf: pip install 'ralm\[gguf\]'\.$"):
        library.load_language_model(str(llama))


def test_a_machine_of_a_cluster_reads_the_file_under_its_full_path(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(llama.parent)
    loader = ModelLoader.of(llama.name, ModelOptions())
    assert loader.requirements.read == (llama,)
    assert loader().name == llama.name


def test_weights_of_two_tensors_do_not_overlap(llama: Path, tmp_path: Path) -> None:
    """The second tensor is said to begin where the first does."""
    data = bytearray(llama.read_bytes())
    name, second = list(open_gguf(str(llama)).tensors.items())[1]
    place = data.index(name.encode()) + len(name) + 4 + 8 * len(second.shape) + 4
    data[place : place + 8] = bytes(8)
    moved = _written(tmp_path / "moved.gguf", bytes(data))
    with pytest.raises(ModelError, match=f"moved.gguf is damaged: the tensor {name} is stored .* not follow"):
        open_gguf(str(moved))
