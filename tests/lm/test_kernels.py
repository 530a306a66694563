"""The faster functions against those they replace."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ralm.lm.local.kernels import CAUSAL_BLOCKS, causal_blocks
from ralm.lm.local.model import LocalLanguageModel, load_language_model
from ralm.lm.options import ModelOptions
from ralm.lm.scoring import Scorer
from ralm.records import Request


@settings(max_examples=20, deadline=None)
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


def test_masks_and_caches_are_left_to_the_fused_kernel() -> None:
    module = torch.nn.Module()
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 7, 8)
    mask = torch.ones(1, 1, 3, 7, dtype=torch.bool).tril(4)
    for options in ({"attention_mask": mask}, {"attention_mask": mask[:, :, :, :], "dropout": 0.0}):
        found, _ = causal_blocks(module, query, key, key, **options)
        expected, _ = sdpa_attention_forward(module, query, key, key, **options)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("slow", [NewGELUActivation, FastGELUActivation])
def test_gelu_is_the_same(slow: type[torch.nn.Module]) -> None:
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(GELUTanh()(x), slow()(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_a_model_in_bfloat16_reads_as_it_does_with_the_fused_kernel(family: str, tiny_folders: dict[str, Path]) -> None:
    model = load_language_model(str(tiny_folders[family]), ModelOptions(dtype="bfloat16", device="cpu"))
    assert model.model.config._attn_implementation == CAUSAL_BLOCKS
    text = np.arange(50, dtype=np.int64)
    request = Request(document=text[:9], context=text[:20], targets=text[20:])
    read = np.concatenate([text[:9], text[:30]])
    exact = load_language_model(str(tiny_folders[family]), ModelOptions(dtype="float32", device="cpu"))
    off, off_continued = errors(model, exact, request, read)
    model.model.set_attn_implementation("sdpa")
    fused, fused_continued = errors(model, exact, request, read)
    assert off < 2 * fused
    assert off_continued < 2 * fused_continued


def errors(
    model: LocalLanguageModel, exact: LocalLanguageModel, request: Request, read: np.ndarray
) -> tuple[float, float]:
    """Root mean square errors of log-probabilities, as scored and as they are after a continuation is begun."""
    scored = Scorer(model).log_probs([request])[0] - Scorer(exact).log_probs([request])[0]
    continued = (
        model.continuations().next_tokens([read]).log_probs_BC - exact.continuations().next_tokens([read]).log_probs_BC
    )
    return float(np.sqrt(np.mean(scored**2))), float(np.sqrt(np.mean(continued**2)))
