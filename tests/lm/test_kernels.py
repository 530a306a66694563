"""The faster functions for CPUs against those they replace: attention, GELU, and packed weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.activations import GELUTanh
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

from ralm.errors import LibraryWarning, ModelError
from ralm.lm.local import kernels
from ralm.lm.local.kernels import (
    _GELU,
    CAUSAL_BLOCKS,
    WINDOW_BLOCKS,
    _WindowMask,
    causal_blocks,
    packable,
    processor_packs,
    speed_up,
    window_blocks,
    window_mask,
)
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.registry import ModelOptions
from ralm.lm.scoring import Scorer
from ralm.records import Request
from tests.campaign import examples
from tests.every_family import FAMILIES as EVERY_FAMILY, tiny_family_model


@settings(max_examples=examples(20))
@given(length=st.integers(1, 300), heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]), batch=st.integers(1, 2))
def test_attention_equals_the_fused_kernel(length: int, heads: tuple[int, int], batch: int) -> None:
    torch.manual_seed(length)
    module = torch.nn.Module()
    module.num_key_value_groups = heads[0] // heads[1]  # type: ignore[assignment]
    query = torch.randn(batch, heads[0], length, 16)
    key, value = torch.randn(2, batch, heads[1], length, 16)
    for options in ({}, {"scaling": 0.5}):
        found, _ = causal_blocks(module, query, key, value, None, **options)
        expected, _ = sdpa_attention_forward(module, query, key, value, None, **options)
        torch.testing.assert_close(found, expected)


@settings(max_examples=examples(30))
@given(
    lengths=st.tuples(st.integers(2, 300), st.integers(0, 40)), window=st.integers(1, 200), unpadded=st.integers(0, 40)
)
def test_windows_equal_the_fused_kernel_with_a_whole_mask(lengths: tuple[int, int], window: int, unpadded: int) -> None:
    """New and cached tokens; the first row is padded on the left, except for its last tokens."""
    new, cached = lengths
    torch.manual_seed(new)
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    query, (key, value) = torch.randn(2, 4, new, 16), torch.randn(2, 2, 2, new + cached, 16)
    padding = torch.ones(2, new + cached, dtype=torch.bool)
    padding[0, : max(0, new + cached - unpadded - 1)] = False
    options: dict[str, Any] = {
        "batch_size": 2,
        "q_length": new,
        "kv_length": new + cached,
        "q_offset": cached,
        "kv_offset": 0,
        "mask_function": sliding_window_causal_mask_function(window),
        "local_size": window,
        "attention_mask": padding if unpadded else None,
    }
    mask = window_mask(**options, allow_is_causal_skip=True)
    assert isinstance(mask, _WindowMask) == (new + cached > window)
    found, _ = window_blocks(module, query, key, value, mask)
    expected, _ = sdpa_attention_forward(module, query, key, value, sdpa_mask(**options, allow_is_causal_skip=False))
    shown = padding[:, cached:] if unpadded else slice(None)
    torch.testing.assert_close(found[shown], expected[shown])
    assert bool(found.isfinite().all())


def test_masks_and_caches_and_looking_ahead_are_left_to_the_fused_kernel() -> None:
    module, ahead = torch.nn.Module(), torch.nn.Module()
    ahead.is_causal = False  # type: ignore[assignment]
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 7, 8)
    mask = torch.ones(1, 1, 3, 7, dtype=torch.bool).tril(4)
    for own, keys, options in (
        (module, key, {"attention_mask": mask}),
        (module, key, {"attention_mask": mask, "dropout": 0.0}),
        (ahead, query, {"attention_mask": None}),
        (ahead, query, {"attention_mask": None, "is_causal": None}),
    ):
        found, _ = causal_blocks(own, query, keys, keys, **options)
        expected, _ = sdpa_attention_forward(own, query, keys, keys, **options)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_a_model_in_bfloat16_reads_as_it_does_with_the_fused_kernel(family: str, tiny_folders: dict[str, Path]) -> None:
    model = load_transformers_model(str(tiny_folders[family]), ModelOptions(dtype="bfloat16", device="cpu"))
    assert model.model.config._attn_implementation == CAUSAL_BLOCKS
    text = np.arange(50, dtype=np.int64)
    request = Request(document=text[:9], context=text[:20], targets=text[20:])
    read = np.concatenate([text[:9], text[:30]])
    exact = load_transformers_model(str(tiny_folders[family]), ModelOptions(dtype="float32", device="cpu"))
    off, off_continued = errors(model, exact, request, read)
    model.model.set_attn_implementation("sdpa")
    fused, fused_continued = errors(model, exact, request, read)
    assert off < 2 * fused
    assert off_continued < 2 * fused_continued


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "qwen3", "mistral", "mixtral", "phi3", "gemma3_text"])
def test_families_that_never_call_the_fused_kernel(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_family_model(family).to(torch.bfloat16)
    speed_up(model)
    calls = []

    def spy(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return sdpa_attention_forward(*args, **options)

    monkeypatch.setattr(kernels, "sdpa_attention_forward", spy)
    logits(model, 6)  # fewer than the sliding window of 8
    assert model.config._attn_implementation == CAUSAL_BLOCKS
    assert not calls


WINDOWS = "cohere2 gemma3_text gemma4_text ministral mistral mixtral olmo3 phi3 recurrent_gemma starcoder2".split()


@pytest.mark.parametrize("family", [family for family in WINDOWS if family in EVERY_FAMILY])
def test_texts_longer_than_a_window(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = tiny_family_model(family), list[int]()
    expected = logits(model, 48)
    speed_up(model)
    assert (model.config._attn_implementation, model.config.sliding_window) == (WINDOW_BLOCKS, 8)

    def spy(**options: Any) -> Any:
        mask = sdpa_mask(**options)
        sizes.append(0 if mask is None else mask.numel())
        return mask

    monkeypatch.setattr(kernels, "sdpa_mask", spy)
    monkeypatch.setattr(kernels, "_QUERIES_PER_BLOCK", 5)
    torch.testing.assert_close(logits(model, 48), expected, rtol=1e-4, atol=2e-5)
    assert max(sizes) == 5 * (8 + 5 - 1)


@pytest.mark.skipif("inkling_text" not in EVERY_FAMILY, reason="transformers does not know the family yet")
def test_biases_of_positions_in_windows_keep_the_attention_of_transformers() -> None:
    model = tiny_family_model("inkling_text")
    speed_up(model)
    assert model.config._attn_implementation == "sdpa"


def test_softcap_reaches_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rejects it, in newer versions of transformers."""
    query, asked = torch.randn(1, 2, 3, 8), list[dict[str, object]]()
    monkeypatch.setattr(kernels, "sdpa_attention_forward", lambda *_, **options: asked.append(options))
    causal_blocks(torch.nn.Module(), query, query, query, None, softcap=30.0)
    assert asked == [{"softcap": 30.0}]


@pytest.mark.skipif("deepseek_v32" not in EVERY_FAMILY, reason="transformers does not know the family yet")
def test_sparse_attention_stays_sparse() -> None:
    model = tiny_family_model("deepseek_v32", index_topk=4).to(torch.bfloat16)
    before = logits(model, 48)
    speed_up(model)
    torch.testing.assert_close(logits(model, 48), before, rtol=0, atol=0)
    model.set_attn_implementation(CAUSAL_BLOCKS)
    with pytest.raises(ModelError, match="needs `indices`"):
        logits(model, 48)


def test_a_family_with_an_attention_of_its_own_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_family_model("falcon").to(torch.bfloat16)
    speed_up(model)
    assert model.config._attn_implementation == "sdpa"
    assert not caplog.records


def test_a_failure_of_the_faster_attention_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("unexpected argument")

    monkeypatch.setattr(kernels, "causal_blocks", fail)
    model = tiny_family_model("llama").to(torch.bfloat16)
    with pytest.warns(LibraryWarning, match="unexpected argument"):
        speed_up(model)
    assert model.config._attn_implementation == "sdpa"


@torch.inference_mode()
def logits(model: PreTrainedModel, length: int) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.arange(40, 40 + length)[None], use_cache=False).logits
    return found


def errors(
    model: LocalLanguageModel, exact: LocalLanguageModel, request: Request, read: np.ndarray
) -> tuple[float, float]:
    """Root mean square errors of log-probabilities, as scored and as they are after a continuation is begun."""
    scored = Scorer(model).log_probs([request])[0] - Scorer(exact).log_probs([request])[0]
    continued = (
        model.continuations().next_tokens([read]).log_probs_BC - exact.continuations().next_tokens([read]).log_probs_BC
    )
    return float(np.sqrt(np.mean(scored**2))), float(np.sqrt(np.mean(continued**2)))


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_products_are_the_same(family: str, dtype: str, tolerance: float, tiny_folders: dict[str, Path]) -> None:
    model = tiny_model(tiny_folders[family], dtype)
    if not processor_packs(model.dtype):
        pytest.skip(f"this processor does not pack {dtype}")
    layers = packable(model)
    assert len(layers) > 8
    torch.manual_seed(0)
    with torch.inference_mode():
        inputs = []
        for module in layers:
            weight: torch.Tensor = module.weight  # type: ignore[assignment]
            size = weight.shape[1 if isinstance(module, torch.nn.Linear) else 0]
            inputs.append(torch.randn(3, 2, size).to(model.dtype))
        plain = [module(states) for module, states in zip(layers, inputs, strict=True)]
        speed_up(model)
        for module, states, expected in zip(layers, inputs, plain, strict=True):
            forward: Any = module.forward
            activated = GELUTanh()(expected) if forward.activation == _GELU else expected
            torch.testing.assert_close(module(states), activated, rtol=tolerance, atol=tolerance)
            assert module(states[:0]).shape == expected[:0].shape


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "gptj", "phi", "gemma2", "starcoder2", "bigbird_pegasus"])
def test_products_compute_a_gelu_by_tanh(family: str, recwarn: pytest.WarningsRecorder) -> None:
    model = tiny_family_model(family)
    text = torch.arange(1, 13)[None]
    with torch.inference_mode():
        expected = model(text).logits
        speed_up(model)
        found = model(text).logits
    assert not any(type(module) is GELUTanh for module in model.modules())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not [one for one in recwarn if one.category is LibraryWarning]


@pytest.mark.parametrize("fault", ["no such operator", "no such activation", "its logits differ"])
def test_functions_of_torch_that_changed(
    fault: str, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning; the model is what it was."""
    product = torch.ops.mkldnn._linear_pointwise

    def changed(states: Any, weight: Any, bias: Any, name: str, *variant: Any) -> Any:
        if fault == "no such operator" or (name == "gelu" and fault == "no such activation"):
            raise RuntimeError(fault)
        return product(states, weight, bias, name, *variant) * 2

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", changed)
    model = tiny_model(tiny_folders["gpt2"], "float32")
    text, modules = torch.arange(1, 13)[None], [*model.modules()]
    expected = model(text).logits
    with pytest.warns(LibraryWarning, match=f"faster functions of ralm failed with torch .*{fault}") as warned:
        speed_up(model)
    assert len(warned) == 1
    assert [*model.modules()] == modules
    assert not any("forward" in vars(module) for module in modules)
    torch.testing.assert_close(model(text).logits, expected, rtol=0, atol=0)


def test_a_model_is_loaded_with_packed_weights(tiny_folders: dict[str, Path]) -> None:
    packed = load_transformers_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu")).model
    assert all("forward" in vars(module) for module in packable(packed))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_that_change_are_packed_again(family: str, tiny_folders: dict[str, Path]) -> None:
    model = tiny_model(tiny_folders[family], "float32")
    speed_up(model)
    module: Any = packable(model)[0]
    states = torch.randn(2, model.config.hidden_size)
    with torch.inference_mode():
        before = module(states)
    with torch.no_grad():
        module.weight.mul_(2)
        doubled = module(states)
        module.weight = torch.nn.Parameter(torch.zeros_like(module.weight))
        nothing = module(states)
    bias = 0 if module.bias is None else module.bias
    torch.testing.assert_close(doubled - bias, 2 * (before - bias))
    torch.testing.assert_close(nothing - bias, torch.zeros_like(nothing))


def tiny_model(folder: Path, dtype: str) -> PreTrainedModel:
    """A model whose weights are not packed."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    return model.requires_grad_(False)


def test_what_is_not_packed(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    half = load_transformers_model(str(tiny_folders["llama"]), ModelOptions(dtype="float16", device="cpu"))
    assert packable(half.model) == []
    whole = load_transformers_model(str(tiny_folders["llama"]), ModelOptions(device="cpu"))
    monkeypatch.setattr("ralm.lm.local.kernels._MAX_PACKED_BYTES", 1000)
    assert packable(whole.model) == [], "too large to be kept twice"
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    old = load_transformers_model(str(tiny_folders["gpt2"]), ModelOptions(dtype="bfloat16", device="cpu"))
    assert packable(old.model) == [], "a processor without bfloat16"
