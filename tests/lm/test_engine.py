"""The engine against one plain forward pass a request, for every family."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ralm.lm import engine
from ralm.lm.local import LocalLanguageModel, load_language_model
from ralm.records import Request
from tests.tiny_models import FAMILIES


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    return load_language_model(str(tiny_folders[request.param]))


def plain(model: LocalLanguageModel, request: Request) -> np.ndarray:
    read = np.concatenate([request.document, request.context, request.targets])
    with torch.no_grad():
        log_probs = model.model(input_ids=torch.from_numpy(read)[None]).logits[0].float().log_softmax(-1)
    first = len(request.document) + len(request.context)
    return np.array([float(log_probs[i - 1, read[i]]) for i in range(first, len(read))])


def ids(*, least: int = 0, most: int = 20) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, 5), min_size=least, max_size=most).map(lambda t: np.array(t, dtype=np.int64))


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    """Requests over few documents and one text, so that many share a beginning, repeat or are prefixes of others."""
    documents = draw(st.lists(ids(), min_size=1, max_size=3))
    text = draw(ids(least=10, most=40))
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        document = draw(st.sampled_from(documents))
        begin = draw(st.integers(0, 2))
        target = draw(st.integers(begin + (len(document) == 0), len(text) - 1))
        end = draw(st.integers(target + 1, len(text)))
        requests.append(Request(document=document, context=text[begin:target], targets=text[target:end]))
    return requests


@settings(max_examples=25, deadline=None)
@given(requests=request_lists(), padded=st.booleans())
def test_equals_one_plain_pass_a_request(model: LocalLanguageModel, requests: list[Request], padded: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if padded:
            patch.setattr(engine, "TOKENS_A_BATCH", {"cpu": 200})
        scored = model.log_probs(requests)
    assert [len(log_probs) for log_probs in scored] == [len(request.targets) for request in requests]
    for log_probs, request in zip(scored, requests, strict=True):
        assert log_probs.dtype == np.float32
        np.testing.assert_allclose(log_probs, plain(model, request), rtol=1e-4, atol=1e-4)


def test_prefixes_and_repeats_run_once(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    text = np.arange(30, dtype=np.int64)
    document = np.array([7, 7], dtype=np.int64)
    strides = [Request(document=document, context=text[:b], targets=text[b : b + 4]) for b in range(4, 24, 4)]
    passes: list[int] = []
    forward = model.model.forward

    def counted(**inputs: torch.Tensor) -> object:
        passes.append(1)
        return forward(**inputs)

    monkeypatch.setattr(model.model, "forward", counted)
    model.log_probs([*strides, *strides])
    assert len(passes) == 1


def test_nothing_to_score(model: LocalLanguageModel) -> None:
    assert model.log_probs([]) == []


def test_logits_that_a_family_changes_after_its_head(tmp_path: Path) -> None:
    """Granite divides its logits: what the engine picks before the head must be divided too."""
    from transformers import AutoModelForCausalLM, GraniteConfig

    from tests.tiny_models import VOCABULARY, byte_tokenizer

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, logits_scaling=7.0, initializer_range=0.5,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    byte_tokenizer(with_bos=False).save_pretrained(tmp_path)
    model = load_language_model(str(tmp_path))
    text = np.arange(20, dtype=np.int64)
    request = Request(document=text[:5], context=text[:9], targets=text[9:])
    np.testing.assert_allclose(model.log_probs([request])[0], plain(model, request), rtol=1e-5)
