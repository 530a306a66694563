"""A real language model in the folder RALM_REAL_MODEL, such as SmolLM2 or Gemma 3, against plain forward passes."""

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ralm
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.records import Message
from tests.shared_data import shared

REAL = Path(os.environ.get("RALM_REAL_MODEL", "none"))
TOKENS = 600
"""More than the window of Gemma 3's local layers, 512."""

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(not REAL.is_dir(), reason="RALM_REAL_MODEL is no folder")]


@pytest.fixture(scope="module")
def model() -> LocalLanguageModel:
    return load_transformers_model(str(REAL), ralm.ModelOptions(dtype="float32"))


def test_a_text_in_one_context(model: LocalLanguageModel) -> None:
    """With the BOS that its tokenizer adds: Gemma 3's perplexity is 12.8 with it and 20.7 without."""
    text = shared("data", "wikitext_raw", "valid.txt").read_text("utf-8")[: 8 * TOKENS]
    options = ralm.PlanOptions(max_length=TOKENS + 8)
    found = ralm.evaluate_text(text, model, options, limit_tokens=TOKENS).reading.measures
    tokenizer = AutoTokenizer.from_pretrained(REAL)
    bare = tokenizer.encode(text, add_special_tokens=False)[:TOKENS]
    whole = tokenizer.encode(text)
    first = whole[: len(whole) - len(tokenizer.encode(text, add_special_tokens=False))]
    read = torch.tensor([[*first, *bare]])
    with torch.inference_mode():
        plain = AutoModelForCausalLM.from_pretrained(REAL, dtype=torch.float32)(read).logits[0].log_softmax(-1)
    expected = plain[:-1].gather(1, read[0, 1:, None])[len(first) :].mean()
    assert np.log(found.token_perplexity) == pytest.approx(-float(expected), abs=1e-4)


def test_a_chat_has_the_tokens_of_its_template_and_ends_with_its_turn(model: LocalLanguageModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(REAL)
    if not tokenizer.chat_template:
        pytest.skip("the model has no chat template")
    messages = [Message("user", "Who wrote it?"), Message("assistant", "Somebody."), Message("user", "Who was he?")]
    said = [asdict(one) for one in messages]
    encoded = model.tokenizer.encode_chat(messages)
    assert encoded is not None
    assert encoded[0].tolist() == tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert model.tokenizer.turn_end in tokenizer.apply_chat_template(said[:2], return_dict=False)
    assert model.tokenizer.turn_end in model.end_tokens
