"""Packed weights against the layers' own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.activations import GELUTanh

from ralm.errors import LibraryWarning
from ralm.lm.local.kernels import _GELU, packable, processor_packs, speed_up
from ralm.lm.local.model import load_transformers_model
from ralm.lm.registry import ModelOptions
from tests.every_family import tiny_family_model
from tests.tiny_models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
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
