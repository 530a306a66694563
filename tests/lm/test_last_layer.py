"""The last layer at wanted positions only: which products are left out where nothing reads them, and when."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ralm.lm.local.last_layer import skip_unread
from ralm.lm.local.model import LocalLanguageModel, load_language_model
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.options import ModelOptions
from ralm.records import Pass
from tests.tiny_models import byte_tokenizer

TEXT = np.random.default_rng(0).integers(32, 127, size=30)
LAST = np.array([27, 28, 29])
PRODUCTS = {
    "gpt2": ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    "gpt_neo": ("attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj"),
    "gptj": ("attn.out_proj", "mlp.fc_in", "mlp.fc_out"),
    "opt": ("self_attn.out_proj",),  # its other products read all positions of a batch as one list
    "bloom": ("self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "llama": ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}
"""Those of the last of two layers that are computed at wanted positions only."""


@pytest.mark.parametrize("family", PRODUCTS)
def test_only_wanted_positions_are_computed(family: str, tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders[family]), ModelOptions(device="cpu"))
    with rows_of_products(model.model) as rows:
        found = scored(model, LAST)
    fewer = {name for name, count in rows.items() if count == len(LAST)}
    assert {name.split(".1.", 1)[1] for name in fewer if ".1." in name} == set(PRODUCTS[family])
    assert not [name for name in fewer if ".0." in name]
    np.testing.assert_allclose(found, expected(model, LAST), rtol=1e-4, atol=1e-4)


def test_if_most_positions_are_wanted_all_are_computed(tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders["llama"]), ModelOptions(device="cpu"))
    half, more = np.arange(16, 30), np.arange(15, 30)  # of the 29 tokens that are read
    for targets, computed in ((half, len(half)), (more, len(TEXT) - 1)):
        with rows_of_products(model.model) as rows:
            found = scored(model, targets)
        assert rows["model.layers.1.mlp.down_proj"] == computed
        np.testing.assert_allclose(found, expected(model, targets), rtol=1e-4, atol=1e-4)


def test_generation_and_calls_of_the_model_itself(tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders["llama"]), ModelOptions(device="cpu"))
    with rows_of_products(model.model) as rows:
        log_probs_BV = model.continuations().next_tokens([TEXT]).log_probs_BC
    assert rows["model.layers.1.mlp.down_proj"] == 1
    with rows_of_products(model.model) as rows, torch.inference_mode():
        logits_NV = model.model(input_ids=torch.from_numpy(TEXT)[None]).logits[0]
    assert rows["model.layers.1.mlp.down_proj"] == len(TEXT)
    np.testing.assert_allclose(log_probs_BV[0], logits_NV[-1].log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_copies_of_a_model_are_faster_too(tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu,cpu"))
    for logits in model.copies:
        with rows_of_products(logits.model) as rows:
            logits(torch.from_numpy(TEXT)[None], torch.tensor([0]), torch.tensor([29]))
        assert rows["transformer.h.1.mlp.c_fc"] == 1


def test_a_compiled_model_is_left_as_it_is(tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu", compile=True))
    assert not any(module._forward_hooks for module in model.model.modules())


class Shifted(torch.nn.Module):
    """A feed-forward network that reads what its first product made of the position before."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        up = self.inner.up_proj(states)
        before = torch.nn.functional.pad(up, (0, 0, 1, 0))[:, :-1]
        down: torch.Tensor = self.inner.down_proj(up + before)
        return down


class Lists(torch.nn.Module):
    """A feed-forward network that reads the positions of its batch as rows."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = self.inner(states.flatten(0, 1)).view(states.shape)
        return read


@pytest.mark.parametrize(
    ("other", "fewer"),
    [
        (Shifted, set()),  # then the output of attention reaches the next position
        (Lists, {"model.layers.1.self_attn.o_proj"}),
    ],
)
def test_a_layer_of_another_kind(other: type[Any], fewer: set[str], tiny_folders: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"]).eval()
    model.model.layers[1].mlp = other(model.model.layers[1].mlp)
    changed = LocalLanguageModel("changed", model, ModelTokenizer(byte_tokenizer(with_bos=False)))
    skip_unread(changed.logits, changed.max_length)
    with rows_of_products(model) as rows:
        found = scored(changed, LAST)
    assert {name for name, count in rows.items() if count == len(LAST)} == fewer | {"lm_head"}
    np.testing.assert_allclose(found, expected(changed, LAST), rtol=1e-4, atol=1e-4)


@contextmanager
def rows_of_products(model: Any) -> Iterator[dict[str, int]]:
    """Within, how many positions each product of a model reads, by its name."""
    rows: dict[str, int] = {}
    hooks = []
    for name, module in model.named_modules():
        if hasattr(module, "weight") and module.weight is not None and module.weight.dim() == 2:

            def note(_: Any, inputs: tuple[torch.Tensor, ...], __: Any, name: str = name) -> None:
                rows[name] = inputs[0].shape[:-1].numel()

            hooks.append(module.register_forward_hook(note))
    try:
        yield rows
    finally:
        for hook in hooks:
            hook.remove()


def scored(model: LocalLanguageModel, targets_P: np.ndarray) -> np.ndarray:
    return next(iter(model.score([Pass(TEXT, targets_P)])))


def expected(model: LocalLanguageModel, targets_P: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        log_probs_NV = model.model(input_ids=torch.from_numpy(TEXT)[None]).logits[0].log_softmax(-1)
    return np.asarray(log_probs_NV[targets_P - 1, TEXT[targets_P]])
