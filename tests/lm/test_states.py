"""Texts in the middle of being written, continued from the state that a model returns: each as if read whole."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel, RwkvForCausalLM

from ralm.lm.local.decoder import StateDecoder, UncachedDecoder
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.records import IntArray
from tests.every_family import tiny_family_config, tiny_family_model
from tests.lm.test_decoder import Reads, alone
from tests.tiny_models import byte_tokenizer

RETURNS_STATE = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"), reason="transformers cannot continue from what it returns"
)
FAMILIES = [pytest.param(family, marks=RETURNS_STATE) for family in ("mamba", "mamba2")] + ["rwkv", "jamba"]


def language_model(model: PreTrainedModel) -> LocalLanguageModel:
    return LocalLanguageModel("the-model", model, ModelTokenizer(byte_tokenizer(with_bos=False)))


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> LocalLanguageModel:
    return language_model(tiny_family_model(request.param))


def check(model: LocalLanguageModel, decoder: Any, texts: Sequence[IntArray]) -> None:
    expected = np.stack([alone(model.model, text) for text in texts])
    np.testing.assert_allclose(decoder.next_tokens(texts).log_probs_BC, expected, rtol=1e-4, atol=1e-4)


def test_texts_that_come_go_and_branch_equal_each_alone(model: LocalLanguageModel) -> None:
    """Rows that grow, change, change places, stand still, and are continued in several ways."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (9, 1, 17, 9, 4)]
    decoder = model.continuations()
    assert type(decoder) is StateDecoder
    for step in range(14):
        check(model, decoder, texts)
        texts = [np.append(text, draw.integers(0, 250)) for text in texts]
        match step:
            case 2:
                texts[1] = draw.integers(0, 250, size=11)
            case 4:
                texts = [texts[4], texts[2], texts[0]]
            case 6:
                texts += [np.append(text[:-1], token) for text in texts[:2] for token in (3, 4)]
            case 8:
                texts += [texts[0], texts[0][:-1], draw.integers(0, 250, size=len(texts[1]))]
            case 11:
                texts = texts[2:4]


def test_every_token_is_read_once(model: LocalLanguageModel) -> None:
    """After the prompts one token a text and step."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (9, 5, 9)]
    decoder = model.continuations()
    reads = Reads(model)
    decoder.next_tokens([*texts, texts[0]])
    assert sorted(reads.taken()) == [(1, 5), (1, 9), (1, 9)]
    for token in range(20):
        texts = [np.append(text, token) for text in texts]
        decoder.next_tokens(texts)
        assert reads.taken() == [(1, 1)] * 3
    reads.hook.remove()


class Forgetting(RwkvForCausalLM):  # type: ignore[misc]  # transformers is not typed
    """Ignores the state that it gets."""

    def forward(self, input_ids: Any = None, state: Any = None, **options: Any) -> Any:
        return super().forward(input_ids, **options)


class Late(RwkvForCausalLM):  # type: ignore[misc]  # transformers is not typed
    """Continues its state rightly once, and wrongly from then on."""

    def forward(self, input_ids: Any = None, state: Any = None, **options: Any) -> Any:
        output = super().forward(input_ids, state=state, **options)
        if state is not None:
            output.state[0].zero_()
        return output


@pytest.mark.parametrize("kind", [Forgetting, Late])
def test_a_wrong_cache_is_not_used(kind: type[PreTrainedModel], caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = language_model(kind(tiny_family_config("rwkv")))
    with caplog.at_level(logging.WARNING, logger="ralm"):
        assert type(model.continuations()) is UncachedDecoder
    (message,) = [one for one in caplog.messages if "cannot continue" in one]
    assert message.endswith("Generation reads the whole text again for every new token.")
    check(model, model.continuations(), [np.arange(5), np.arange(7)])


def test_an_error_leaves_no_half_changed_state(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = model.continuations()
    texts = [np.arange(6), np.arange(3, 9)]
    decoder.next_tokens(texts)
    grown = [np.append(text, 7) for text in texts]
    continue_state = model.logits.continue_state

    def failing(*arguments: Any, **named: Any) -> None:
        continue_state(*arguments, **named)
        raise RuntimeError("a moment of weakness")

    monkeypatch.setattr(model.logits, "continue_state", failing)
    with pytest.raises(RuntimeError, match="a moment of weakness"):
        decoder.next_tokens(grown)
    monkeypatch.undo()
    check(model, decoder, grown)
