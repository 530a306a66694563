"""Beginnings of prompts that are kept: the same figures, nothing read twice, and no more memory than allowed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.lm.local.continuation import CachedDecoder
from ralm.lm.local.engine import TargetLogits
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.prefixes import PrefixCache
from ralm.records import FloatArray, IntArray, ScoringSequence
from tests.lm.test_continuation import Reads, check
from tests.tiny_models import POSITIONS, longrope_model

_SIZE = 8
_LARGE = 1 << 30


@pytest.fixture
def reads(model: LocalLanguageModel) -> Iterator[Reads]:
    counted = Reads(model)
    yield counted
    counted.hook.remove()


def decoder(model: LocalLanguageModel, prefixes: PrefixCache | None) -> CachedDecoder:
    """That of a new request."""
    return CachedDecoder(model.logits, POSITIONS, prefixes=prefixes)


def after(model: LocalLanguageModel, prefixes: PrefixCache | None, *texts: IntArray) -> FloatArray:
    return decoder(model, prefixes).next_tokens(texts).log_probs_BC


def some(draw: np.random.Generator, *sizes: int) -> list[IntArray]:
    return [draw.integers(0, 250, size=size) for size in sizes]


def test_a_passage_is_read_once_for_all_requests(model: LocalLanguageModel, reads: Reads) -> None:
    passage, one, other = some(np.random.default_rng(0), 20, 6, 3)
    prefixes = PrefixCache(_LARGE, _SIZE)
    after(model, prefixes, np.concatenate([passage, one]))
    assert reads.taken() == [(1, 8), (1, 8), (1, 8), (1, 1), (1, 1)], "blocks, what is left, and the last token"
    check(model.model, decoder(model, prefixes), [np.concatenate([passage, other])])
    assert reads.taken() == [(1, 23), (1, 6), (1, 1)], "whole, to compare; and from the last whole block on"
    assert (prefixes.found, prefixes.read) == (16, 25 + 6)
    held = prefixes.held
    after(model, prefixes, np.concatenate([passage, one]))
    assert reads.taken() == [(1, 1), (1, 1)]
    assert prefixes.held == held > 0, "what is kept already is not kept twice"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), blocks=st.integers(1, 40), first=st.booleans())
def test_found_or_read_to_the_last_bit(model: LocalLanguageModel, seed: int, blocks: int, first: bool) -> None:
    """Texts with beginnings in common, one after another and together, in a cache of any size."""
    draw = np.random.default_rng(seed)
    block = PrefixCache(_LARGE, _SIZE)
    after(model, block, *some(draw, _SIZE + 1))
    prefixes = PrefixCache(blocks * block.held, _SIZE)
    passages = some(draw, 5, 17, 24, 30)
    for _ in range(6):
        texts = [
            np.concatenate([passages[draw.integers(0, 4)], *some(draw, int(draw.integers(1, 12)))]) for _ in range(3)
        ]
        texts = texts[:1] if first else texts
        found = after(model, prefixes, *texts)
        np.testing.assert_array_equal(found, after(model, PrefixCache(_LARGE, _SIZE), *texts))
        np.testing.assert_allclose(found, after(model, None, *texts), rtol=1e-4, atol=1e-5)
        assert prefixes.held <= blocks * block.held


def test_other_tokens_or_another_place_are_another_block(model: LocalLanguageModel) -> None:
    """The same block behind another one, and a text that differs in its first token alone."""
    prefixes = PrefixCache(_LARGE, _SIZE)
    one, other, end = some(np.random.default_rng(0), _SIZE, _SIZE, 3)
    changed = np.concatenate([one, other, end])
    changed[0] += 1
    for text in (np.concatenate([one, other, end]), np.concatenate([other, one, end]), changed):
        check(model.model, decoder(model, prefixes), [text])
    assert prefixes.found == 0


def test_the_least_recently_used_go_first(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    often, seldom, *others = some(draw, *[2 * _SIZE + 1] * 5)
    probe = PrefixCache(_LARGE, _SIZE)
    after(model, probe, often)
    prefixes = PrefixCache(2 * probe.held, _SIZE)
    after(model, prefixes, often)
    after(model, prefixes, seldom)
    for text in others:
        before = prefixes.found
        after(model, prefixes, often)
        assert prefixes.found == before + 2 * _SIZE
        after(model, prefixes, text)
    before = prefixes.found
    after(model, prefixes, seldom)
    assert prefixes.found == before
    assert prefixes.held == 2 * probe.held


def test_a_block_that_is_too_large_is_not_kept(model: LocalLanguageModel) -> None:
    prefixes = PrefixCache(100, _SIZE)
    [text] = some(np.random.default_rng(0), 30)
    check(model.model, decoder(model, prefixes), [text])
    assert prefixes.held == 0


def test_scores_behind_a_kept_passage(model: LocalLanguageModel) -> None:
    passage, one, other = some(np.random.default_rng(0), 20, 9, 12)
    prefixes = PrefixCache(_LARGE, _SIZE)
    for end in (one, other):
        text = np.concatenate([passage, end])
        sequence = ScoringSequence(text, np.arange(21, len(text)))
        [scored] = decoder(model, prefixes).score([sequence])
        [whole] = model.score([sequence])
        np.testing.assert_allclose(scored, whole, rtol=1e-4, atol=1e-5)
    assert prefixes.found == 16


def test_many_requests_at_once_in_too_small_a_cache(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    passages = some(draw, *[40] * 8)
    texts = [np.concatenate([passages[number % 8], *some(draw, 5)]) for number in range(32)]
    probe = PrefixCache(_LARGE, _SIZE)
    expected = [after(model, probe, text) for text in texts]
    prefixes = PrefixCache(probe.held // 4, _SIZE)
    with ThreadPoolExecutor(max_workers=32) as pool:
        found = [*pool.map(lambda text: after(model, prefixes, text), texts)]
    np.testing.assert_array_equal(found, expected)
    assert 0 < prefixes.held <= probe.held // 4


def test_not_if_the_length_decides_how_a_text_is_read() -> None:
    logits = TargetLogits(longrope_model(), "longrope")
    prefixes = PrefixCache(_LARGE, _SIZE)
    CachedDecoder(logits, POSITIONS, prefixes=prefixes).next_tokens([np.arange(30)])
    assert prefixes.held == 0
