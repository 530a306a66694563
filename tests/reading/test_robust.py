"""The certificate against replaced passages: against a plain loop, and against attackers that choose the worst."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from ralm.errors import UsageError
from ralm.reading.bounds import bounds_of, withstands
from ralm.reading.sampling import Sampling, draw_token
from ralm.records import NO_PASSAGE, NOT_LISTED, NextTokens, PromptPrefix
from tests.reference import robust

NOTHING = np.zeros(0, dtype=np.int64)
GENERATOR = np.random.default_rng(0)
CLOSE = 2e-3
"""Nearer to 0 than this a lead may count as none, since probabilities are rounded."""


@st.composite
def predictions(draw: st.DrawFn) -> NDArray[np.float64]:
    """The probabilities (K x V) of tokens after each passage: flat ones, peaked ones, and ones that agree."""
    passages, vocabulary = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    seed, sharp, agree = draw(st.integers(0, 2**31)), draw(st.floats(0.1, 8)), draw(st.floats(0, 8))
    random = np.random.default_rng(seed)
    logits_KV = sharp * random.normal(size=(passages, vocabulary)) + agree * random.normal(size=vocabulary)
    powers_KV = np.exp(logits_KV)
    return np.asarray(powers_KV / powers_KV.sum(axis=1, keepdims=True))


def prefixes(count: int) -> list[PromptPrefix]:
    return [PromptPrefix(NOTHING, (number,), -np.log(count)) for number in range(count)]


def drawn(probabilities_KV: NDArray[np.float64], replaced: int, **changed: Any) -> tuple[int, bool | None]:
    """The token and its certificate."""
    given_KV = NextTokens(np.log(probabilities_KV).astype(np.float32))
    parts = {"prompt_prefixes": prefixes(len(probabilities_KV)), **changed}
    token = draw_token(given_KV, generator=GENERATOR, sampling=Sampling(robust=replaced), **parts)
    return token.token, token.robust


@given(predictions(), st.integers(1, 6))
def test_a_token_is_certified_if_the_plain_loop_finds_no_attack(
    probabilities_KV: NDArray[np.float64], replaced: int
) -> None:
    token, certified = drawn(probabilities_KV, replaced)
    replaced = min(replaced, len(probabilities_KV))
    lead = min(robust.worst_margins(probabilities_KV.tolist(), token, replaced))
    assert certified == robust.withstands(probabilities_KV.tolist(), token, replaced) or abs(lead) < CLOSE
    assert not (certified and lead <= 0)


@settings(max_examples=300)
@given(predictions(), st.integers(1, 3), st.integers(0, 2**31))
def test_no_replaced_predictions_change_a_certified_token(
    probabilities_KV: NDArray[np.float64], replaced: int, seed: int
) -> None:
    token, certified = drawn(probabilities_KV, replaced)
    if not certified:
        return
    random = np.random.default_rng(seed)
    for _ in range(30):
        attacked_KV = probabilities_KV.copy()
        for row in random.choice(len(attacked_KV), replaced, replace=False):
            attacked_KV[row] = 1e-9
            attacked_KV[row, random.integers(attacked_KV.shape[1])] = 1
        assert drawn(attacked_KV, replaced)[0] == token


@given(predictions(), st.integers(1, 3), st.integers(1, 6))
def test_listed_tokens_certify_no_more_than_the_whole_vocabulary(
    probabilities_KV: NDArray[np.float64], replaced: int, listed: int
) -> None:
    listed = min(listed, probabilities_KV.shape[1])
    order_KC = np.argsort(-probabilities_KV, axis=1, kind="stable")[:, :listed]
    listed_KC = np.take_along_axis(probabilities_KV, order_KC, axis=1)
    bounds = bounds_of(
        NextTokens(np.log(listed_KC).astype(np.float32), order_KC), np.full(len(order_KC), -np.log(len(order_KC)))
    )
    if bounds.withstands(replaced):
        token = int(bounds.tokens_Y[bounds.best])
        assert robust.withstands(probabilities_KV.tolist(), token, min(replaced, len(probabilities_KV)))
    if listed == probabilities_KV.shape[1]:
        token, certified = drawn(probabilities_KV, replaced)
        assert certified == bounds.withstands(replaced)


def test_by_hand() -> None:
    """Nine of ten agree: the tenth part of each passage moves from one token to the other."""
    probabilities_KV = np.array([[0.98, 0.01, 0.01]] * 9 + [[0.01, 0.98, 0.01]])
    assert [drawn(probabilities_KV, replaced)[1] for replaced in (1, 2, 3, 4, 5)] == [True, True, True, False, False]
    assert not withstands(probabilities_KV[:1], probabilities_KV[:1], 0, 1), "the only passage is all of it"


def test_without_a_passage_nothing_can_be_replaced() -> None:
    alone = [PromptPrefix(NOTHING)]
    assert alone[0].passage == NO_PASSAGE
    assert drawn(np.array([[0.5, 0.5]]), 2, prompt_prefixes=alone)[1]


def test_a_model_that_lists_its_tokens_for_one_passage_certifies_none() -> None:
    given_BC = NextTokens(np.array([[-0.1, -np.inf]], dtype=np.float32), np.array([[3, NOT_LISTED]]))
    assert draw_token(given_BC, prefixes(1), GENERATOR, Sampling(robust=1)).robust is False
    assert draw_token(given_BC, prefixes(1), GENERATOR, Sampling()).robust is None


@pytest.mark.parametrize(
    "unequal",
    [
        [PromptPrefix(NOTHING, (0,), np.log(0.4)), PromptPrefix(NOTHING, (1,), np.log(0.6))],
        [PromptPrefix(NOTHING, (0,), np.log(0.5)), PromptPrefix(NOTHING, (0,), np.log(0.5))],
    ],
)
def test_weights_that_a_replaced_passage_would_decide_are_rejected(unequal: list[PromptPrefix]) -> None:
    with pytest.raises(UsageError, match='`robust` needs an ensemble with `mixer="uniform"`'):
        drawn(np.full((2, 3), 1 / 3), 1, prompt_prefixes=unequal)


def test_random_draws_are_rejected() -> None:
    with pytest.raises(UsageError, match="`robust` certifies greedy tokens: set `temperature` to 0"):
        Sampling(robust=1, temperature=0.5)
