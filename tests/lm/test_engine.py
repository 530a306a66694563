"""The engine against one plain forward pass a request, for every family."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ralm.errors import ModelError
from ralm.lm.local import engine
from ralm.lm.local.engine import Engine, Replica, TargetLogits
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.scoring import Scorer
from ralm.records import Request, ScoringSequence
from tests.campaign import examples
from tests.every_family import tiny_family_model
from tests.lm.test_families import check_scores, check_writing, language_model
from tests.tiny_models import byte_tokenizer, longrope_model


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


@settings(max_examples=examples(25))
@given(requests=request_lists(), padded=st.booleans(), copies=st.integers(1, 2))
def test_equals_one_plain_pass_a_request(
    model: LocalLanguageModel, requests: list[Request], padded: bool, copies: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if padded:
            patch.setattr(engine, "TOKENS_PER_BATCH", {"cpu": 200})
            patch.setitem(engine.LOGITS_PER_CHUNK, "cpu", 1000)
        patch.setattr(model, "_engine", Engine([Replica(model.logits)] * copies))
        scored = Scorer(model).log_probs(requests)
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
    Scorer(model).log_probs([*strides, *strides])
    assert len(passes) == 1
    assert Scorer(model).log_probs([]) == []


def test_a_text_is_read_once_however_many_logits_it_needs(
    model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 262,144 tokens in the vocabulary (Gemma 3), a pass holds the logits of 256 positions."""
    text = np.arange(30, dtype=np.int64)
    request = Request(document=text[:3], context=text[:4], targets=text[4:])
    read: list[int] = []
    embedding = model.model.get_input_embeddings()
    counting = embedding.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].numel()))
    monkeypatch.setattr(engine, "LOGITS_PER_BATCH", {"cpu": 4 * model.vocabulary})
    monkeypatch.setattr(model, "_engine", Engine([Replica(model.logits)]))
    [found] = Scorer(model).log_probs([request])
    counting.remove()
    assert read == [32]
    np.testing.assert_allclose(found, plain(model, request), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("granite", {"logits_scaling": 7.0}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("cohere", {"logit_scale": 3.0}),
    ],
)
def test_logits_that_a_family_changes_after_its_head(family: str, settings: dict[str, float]) -> None:
    """What the engine picks before the head must be changed too."""
    check_scores(language_model(family, **settings))


def test_a_family_whose_states_cannot_be_picked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What follows its body computes all logits, whatever it is given."""
    monkeypatch.setattr(engine, "_with_states", lambda output, states: output)
    model = language_model("llama")
    monkeypatch.undo()
    assert "llama: states of the family llama cannot be picked, so scoring computes" in caplog.text
    check_scores(model)
    check_writing(model)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_padded_texts_need_no_mask_and_no_copies_of_keys(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a GPU takes flash attention. Tensors without values get a mask, so these are real."""
    attention = Mock(wraps=torch.nn.functional.scaled_dot_product_attention)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    texts = [np.arange(length, dtype=np.int64) for length in (8, 7, 6)]
    sequences = [ScoringSequence(text, np.arange(2, len(text))) for text in texts]
    Replica(TargetLogits(tiny_family_model(family), family)).start(sequences, engine.target_log_probs)
    attention.assert_called()
    for call in attention.call_args_list:
        assert [call.kwargs[name] for name in ("attn_mask", "is_causal", "enable_gqa")] == [None, True, True]
        assert [tensor.shape[1] for tensor in call.args] == [4, 2, 2]


def strides_of(text: np.ndarray, document: np.ndarray) -> list[Request]:
    return [Request(document=document, context=text[:b], targets=text[b : b + 3]) for b in range(2, len(text) - 3, 3)]


class Memory:
    """A device that holds so many positions of a batch at once, padding included, or so many logits."""

    def __init__(self, model: LocalLanguageModel, positions: int, logits: int = 1 << 30) -> None:
        self.passes: list[tuple[int, int]] = []
        self._sizes = positions, logits
        self._pick = model.logits

    def parts(
        self, input_BN: torch.Tensor, row_P: torch.Tensor, position_P: torch.Tensor, at_once: int
    ) -> Iterator[torch.Tensor]:
        positions, logits = self._sizes
        if input_BN.numel() > positions or min(len(position_P), at_once) > logits:
            raise torch.OutOfMemoryError("full")
        self.passes.append((len(input_BN), len(position_P)))
        yield from self._pick.parts(input_BN, row_P, position_P, at_once)

    def __getattr__(self, name: str) -> object:
        return getattr(self._pick, name)


@pytest.mark.parametrize(("positions", "logits"), [(64, 1 << 30), (1 << 30, 2), (40, 3)])
def test_running_out_of_memory_halves_and_goes_on(
    model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch, positions: int, logits: int
) -> None:
    monkeypatch.setattr(engine, "TOKENS_PER_BATCH", {"cpu": 1000})
    texts = [np.arange(start, start + 20, dtype=np.int64) for start in range(12)]
    requests = [stride for text in texts for stride in strides_of(text, text[:2])]
    memory = Memory(model, positions, logits)
    monkeypatch.setattr(model, "_engine", Engine([Replica(memory)]))  # type: ignore[arg-type]
    scored = Scorer(model).log_probs(requests)
    for log_probs, request in zip(scored, requests, strict=True):
        np.testing.assert_allclose(log_probs, plain(model, request), rtol=1e-4, atol=1e-4)
    assert len(memory.passes) >= 2


@pytest.mark.parametrize("copies", [1, 2])
def test_what_one_sequence_alone_cannot_have(
    model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    text = np.arange(20, dtype=np.int64)
    replicas = [Replica(Memory(model, 4)) for _ in range(copies)]  # type: ignore[arg-type]
    monkeypatch.setattr(model, "_engine", Engine(replicas))
    message = "runs out of memory on cpu with one sequence of 18 tokens: lower `max_length`"
    with pytest.raises(ModelError, match=message):
        Scorer(model).log_probs(strides_of(text, text[:2]))


def test_weights_that_give_no_numbers(tiny_folders: dict[str, Path]) -> None:
    broken = load_transformers_model(str(tiny_folders["gpt2"]))
    broken.model.get_output_embeddings().weight.fill_(float("nan"))
    text = np.arange(5, dtype=np.int64)
    with pytest.raises(ModelError, match="not numbers in float32: its weights are damaged"):
        Scorer(broken).log_probs([Request(document=text[:0], context=text[:2], targets=text[2:])])
    with pytest.raises(ModelError, match="not numbers"):
        broken.continuations().next_tokens([text])


def test_a_model_that_reads_by_length_is_neither_padded_nor_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TOKENS_PER_BATCH", {"cpu": 1000})
    phi = longrope_model()
    text = np.arange(30, dtype=np.int64)
    requests = strides_of(text, text[:0])
    scored = Scorer(LocalLanguageModel("phi", phi, ModelTokenizer(byte_tokenizer(with_bos=False)))).log_probs(requests)
    for log_probs, request in zip(scored, requests, strict=True):
        read = torch.from_numpy(np.concatenate([request.context, request.targets]))
        with torch.no_grad():
            expected = phi(read[None, :-1]).logits[0].log_softmax(-1)[-len(request.targets) :]
        np.testing.assert_allclose(log_probs, expected.gather(1, read[-len(request.targets) :, None])[:, 0], rtol=1e-4)


def test_a_second_wrapper_of_a_model_picks_states_too(
    model: LocalLanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    again = TargetLogits(model.model, "again")
    input_BN, row_P, position_P = torch.arange(8).view(2, 4), torch.tensor([1, 0]), torch.tensor([3, 2])
    torch.testing.assert_close(again(input_BN, row_P, position_P), model.logits(input_BN, row_P, position_P))
    assert not caplog.messages
