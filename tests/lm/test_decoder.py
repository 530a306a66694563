"""Texts in the middle of being written, read together: each as if it stood alone, and nothing twice."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from ralm.errors import ModelError
from ralm.lm.local import rows
from ralm.lm.local.blocks import BLOCK, Blocks
from ralm.lm.local.decoder import CachedDecoder, StateDecoder
from ralm.lm.local.engine import LOGITS_PER_BATCH, TargetLogits
from ralm.lm.local.model import LocalLanguageModel, can_cache_rows, choose_decoder, load_transformers_model
from ralm.records import FloatArray, IntArray, ScoringSequence
from tests.campaign import examples
from tests.tiny_models import POSITIONS, longrope_model


def decoder(model: LocalLanguageModel, tokens_per_batch: int | None = None) -> CachedDecoder:
    """One that has read nothing."""
    return CachedDecoder(model.logits, POSITIONS, Blocks(1 << 30), tokens_per_batch)


def alone(model: torch.nn.Module, text: IntArray) -> FloatArray:
    """The distribution after a text, read whole by itself."""
    with torch.no_grad():
        found: FloatArray = model(input_ids=torch.from_numpy(text)[None]).logits[0, -1].log_softmax(-1).numpy()
    return found


def check(model: torch.nn.Module, continuations: CachedDecoder | StateDecoder, texts: Sequence[IntArray]) -> None:
    expected = np.stack([alone(model, text) for text in texts])
    np.testing.assert_allclose(continuations.next_tokens(texts).log_probs_BC, expected, rtol=1e-4, atol=1e-5)


class Reads:
    """Counts the tokens that a model reads."""

    def __init__(self, model: LocalLanguageModel) -> None:
        self.passes: list[tuple[int, int]] = []
        self.hook = model.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: torch.nn.Module, __: object, named: dict[str, torch.Tensor]) -> None:
        batch, length = named["input_ids"].shape
        self.passes.append((batch, length))

    def taken(self) -> list[tuple[int, int]]:
        taken, self.passes = self.passes, []
        return taken


@pytest.mark.parametrize("tokens_per_batch", [1, 1000])
def test_rows_of_different_lengths_equal_each_alone(model: LocalLanguageModel, tokens_per_batch: int) -> None:
    """Rows that grow, change in part or wholly, come, go and change places, with and without padded prefill."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (9, 1, 17, 30, 4)]
    continuations = decoder(model, tokens_per_batch)
    for step in range(24):
        check(model.model, continuations, texts)
        texts = [np.append(text, draw.integers(0, 250)) for text in texts]
        match step:
            case 3:
                texts[1] = draw.integers(0, 250, size=11)
            case 5:
                texts[3] = np.concatenate([texts[3][:12], draw.integers(0, 250, size=30)])
            case 8:
                texts = [texts[4], texts[2], texts[0]]
            case 11:
                texts += [draw.integers(0, 250, size=3), texts[0], draw.integers(0, 250, size=20)]
            case 15:
                texts = [text[:6] if row % 2 else np.append(text, 7) for row, text in enumerate(texts)]
            case 19:
                texts = [draw.integers(0, 250, size=POSITIONS - 13) for _ in range(2)]


def test_tensors_are_seldom_made_anew(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts join one after another, and are replaced by short ones when they have grown long."""
    made: list[tuple[int, int]] = []
    zeros = rows.zeros_like

    def counted(like: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        made.append(shape)
        return zeros(like, shape)

    monkeypatch.setattr(rows, "zeros_like", counted)
    model = load_transformers_model(str(tiny_folders["llama"]))
    draw = np.random.default_rng(0)
    continuations = decoder(model)
    texts: list[IntArray] = []
    for step in range(100):
        texts = [np.append(text, step % 250) if len(text) < 40 else draw.integers(0, 250, 4) for text in texts]
        if step < 16:
            texts.append(draw.integers(0, 250, 3))
        if step % 25 == 0:
            check(model.model, continuations, texts)
        else:
            continuations.next_tokens(texts)
    layers = model.model.config.num_hidden_layers
    assert len(made) <= 2 * layers * 7, "rows are doubled five times"
    assert max(rows * columns for rows, columns in made) <= 2 * 16 * (40 + 64)


@pytest.fixture(scope="module")
def windowed(tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    return load_transformers_model(str(tiny_folders["gpt_neo"]))


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@settings(max_examples=examples(25))
@given(moves=st.lists(st.tuples(LENGTHS, st.randoms(use_true_random=False)), min_size=1, max_size=5))
def test_any_texts_after_any_others(windowed: LocalLanguageModel, moves: list[tuple[list[int], object]]) -> None:
    """Two tokens only, so that beginnings are shared by chance, among several rows."""
    continuations = decoder(windowed)
    for lengths, random in moves:
        texts = [np.array([random.randint(0, 1) for _ in range(length)]) for length in lengths]  # type: ignore[attr-defined]
        check(windowed.model, continuations, texts)


def test_what_new_texts_share_is_read_once(model: LocalLanguageModel) -> None:
    """Of texts with a beginning in common one is read before the others, which take whole blocks from it."""
    draw = np.random.default_rng(0)
    shown, other = draw.integers(0, 250, size=2 * BLOCK + 3), draw.integers(0, 250, size=9)
    ends = [draw.integers(0, 250, size=size) for size in (4, 7, 1, 12)]
    texts = [*(np.concatenate([shown, end]) for end in ends), other, shown[:BLOCK], np.concatenate([other, ends[0]])]
    continuations = decoder(model, 1000)
    reads = Reads(model)
    continuations.next_tokens(texts)
    first, *_, last = reads.taken()
    reads.hook.remove()
    assert first == (4, 2 * BLOCK + 6), "one of the four, and the three texts that are too short for a block"
    assert last == (len(texts), 1)
    for step in range(3):
        check(model.model, continuations, texts)
        texts = [np.append(text, step) for text in texts]
    check(model.model, decoder(model, 1000), texts[::-1])


def some_passes(
    texts: Sequence[IntArray], draw: np.random.Generator, sizes: Sequence[int] | IntArray | None = None
) -> list[ScoringSequence]:
    """The texts with a few random tokens behind each, which are the targets."""
    ends = [draw.integers(0, 250, size) for size in (draw.integers(1, 7, len(texts)) if sizes is None else sizes)]
    return [
        ScoringSequence(np.concatenate([text, end]), np.arange(len(text), len(text) + len(end)))
        for text, end in zip(texts, ends, strict=True)
    ]


def check_scores(model: LocalLanguageModel, continuations: CachedDecoder, passes: Sequence[ScoringSequence]) -> None:
    for one, found_P in zip(passes, continuations.score(passes), strict=True):
        with torch.no_grad():
            logits_NV = model.model(input_ids=torch.from_numpy(one.tokens_N[:-1])[None]).logits[0]
        expected_P = logits_NV.log_softmax(-1)[one.targets_P - 1, one.tokens_N[one.targets_P]]
        np.testing.assert_allclose(found_P, expected_P, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens_per_batch", [1, 1000])
def test_scores_between_steps_equal_those_of_whole_texts(model: LocalLanguageModel, tokens_per_batch: int) -> None:
    """Before the first step, between steps, of texts that are longer than the room, and of others."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (9, 1, POSITIONS - 7, 30, 4)]
    continuations = decoder(model, tokens_per_batch)
    for step in range(6):
        check_scores(model, continuations, some_passes(texts, draw))
        check(model.model, continuations, texts[::-1])
        texts = [np.append(text, draw.integers(0, 250)) if len(text) < POSITIONS - 8 else text for text in texts]
        if step == 3:
            texts = [texts[3][:12], draw.integers(0, 250, size=3)]
    passes = [ScoringSequence(texts[0], np.array([1, 2, 7])), ScoringSequence(texts[1], np.arange(1, 3))]
    check_scores(model, continuations, passes)
    check(model.model, continuations, texts)
    # padded to the longest rest, the positions of a text that fills the model would go beyond the model's
    full, short = np.arange(POSITIONS + 1), np.arange(20, 60)
    passes = [ScoringSequence(full, np.array([POSITIONS])), ScoringSequence(short, np.arange(10, 40))]
    check_scores(model, decoder(model), passes)


def test_a_model_whose_scores_differ_is_read_anew(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_cache_rows(model.logits, POSITIONS, Blocks(0))
    score = CachedDecoder.score
    monkeypatch.setattr(CachedDecoder, "score", lambda *given: [one - 0.5 for one in score(*given)])
    assert not can_cache_rows(model.logits, POSITIONS, Blocks(0))


def test_scores_a_few_columns_at_a_time(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    passes = [
        ScoringSequence(text, np.array([1, *range(3, len(text), 2)]))
        for text in (np.arange(40), draw.integers(0, 9, 23))
    ]
    monkeypatch.setitem(LOGITS_PER_BATCH, "cpu", 2 * 3 * model.vocabulary)
    continuations, reads = decoder(model), Reads(model)
    check_scores(model, continuations, passes)
    assert reads.taken()[:13] == [(2, 3)] * 13
    reads.hook.remove()


def test_a_text_that_is_scored_and_continued_is_read_once(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (29, 32, 25)]
    passes = some_passes(texts, draw, (2, 3, 1))
    continuations, reads = decoder(model, 1000), Reads(model)
    continuations.score(passes)
    assert reads.taken() == [(3, 31), (3, 3)], "the texts but for their last tokens, and all targets together"
    continuations.next_tokens(texts)
    assert reads.taken() == [(3, 1)]
    continuations.score(passes[1:])
    assert reads.taken() == [(2, 3)], "rows go back by the last token"
    reads.hook.remove()


def test_several_answers_to_one_prompt_read_it_once(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 250, size=21)
    passes = some_passes([prompt] * 4, draw, (2, 3, 1, 5))
    continuations, reads = decoder(model), Reads(model)
    continuations.score(passes)
    assert reads.taken() == [(1, 20), (4, 5)]
    continuations.next_tokens([prompt])
    assert reads.taken() == [(1, 1)]
    reads.hook.remove()
    check_scores(model, continuations, passes)


def test_nothing_is_read_twice(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 250, size=size) for size in (9, 12, 20)]
    continuations = decoder(model, 1000)
    reads = Reads(model)
    continuations.next_tokens(texts)
    assert reads.taken() == [(3, 19), (3, 1)]
    continuations.next_tokens(texts)
    assert reads.taken() == [(3, 1)], "a text that has to wait keeps its row"
    texts = [np.append(text, 5) for text in texts]
    continuations.next_tokens(texts)
    assert reads.taken() == [(3, 1)]
    texts = [np.append(text, 5) for text in texts[::-1]]
    texts[1] = draw.integers(0, 250, size=15)
    continuations.next_tokens(texts)
    assert reads.taken() == [(1, 14), (3, 1)], "the others only changed places"
    texts[0] = np.concatenate([texts[0], [3, 4, 5]])
    continuations.next_tokens([texts[0], *(np.append(text, 5) for text in texts[1:])])
    assert reads.taken() == [(1, 2), (3, 1)], "a text that grew by several tokens keeps its row"
    texts[2] = np.concatenate([texts[0][:18], [3, 4]])
    continuations.next_tokens(texts[2:])
    assert reads.taken() == [(1, 3), (1, 1)], "a block is kept of a text that is gone"
    reads.hook.remove()


def mistral() -> PreTrainedModel:
    """A sliding window narrower than the text."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=6, initializer_range=0.5,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


@pytest.mark.parametrize("make", [longrope_model, mistral])
def test_models_that_read_by_length_or_in_a_window(make: Callable[[], PreTrainedModel]) -> None:
    other = make()
    logits, blocks = TargetLogits(other, "other"), Blocks(1 << 30)
    kind = choose_decoder(logits, 64, blocks)
    assert kind is (CachedDecoder if make is mistral else StateDecoder)
    continuations: Any = CachedDecoder(logits, 64, blocks, 1000) if make is mistral else StateDecoder(logits, 64)
    texts = [np.arange(size) for size in (3, 10, 13, 20)]
    for token in range(8):
        check(other, continuations, texts)
        texts = [np.append(text, token) for text in texts]


def test_texts_that_cannot_be_read(model: LocalLanguageModel) -> None:
    continuations = decoder(model)
    with pytest.raises(ModelError, match="cannot continue an empty text"):
        continuations.next_tokens([np.arange(3), np.arange(0)])
    with pytest.raises(ModelError, match="reads at most 64 tokens at once, not 65"):
        continuations.next_tokens([np.arange(65)])
    check(model.model, continuations, [np.arange(7)])


@pytest.fixture
def small_memory(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A device that holds two texts in a pass; yields the rows of the passes."""
    passes: list[int] = []

    def count(_: torch.nn.Module, __: object, named: dict[str, torch.Tensor]) -> None:
        passes.append(len(named["input_ids"]))
        if passes[-1] > 2:
            raise torch.OutOfMemoryError

    hook = model.model.register_forward_pre_hook(count, with_kwargs=True)
    yield passes
    hook.remove()


def test_a_batch_that_memory_does_not_hold_is_halved(model: LocalLanguageModel, small_memory: list[int]) -> None:
    """And the smaller size is kept."""
    draw = np.random.default_rng(0)
    continuations = decoder(model, 1000)
    for texts in ([draw.integers(0, 250, size=9) for _ in range(4)] for _ in range(2)):
        with pytest.raises(ModelError, match=r"4 texts of up to 9 tokens, and about [\d,]+ tokens fit: read fewer"):
            continuations.next_tokens(texts)
    assert small_memory == [4, 2, 2, 4, 2, 2, 4], "new texts; the last tokens of all, which cannot be halved; again"


def test_scored_sequences_that_memory_does_not_hold_are_halved(
    model: LocalLanguageModel, small_memory: list[int]
) -> None:
    draw = np.random.default_rng(0)
    passes = some_passes([draw.integers(0, 250, size=9) for _ in range(4)], draw)
    continuations = decoder(model, 8)
    scores = continuations.score(passes)
    assert small_memory[-2:] == [2, 2]
    tried = len(small_memory)
    continuations.score(passes)
    assert 4 not in small_memory[tried:]
    expected = [next(iter(model.score([sequence]))) for sequence in passes]
    np.testing.assert_allclose(np.concatenate(scores), np.concatenate(expected), rtol=1e-4, atol=1e-5)
