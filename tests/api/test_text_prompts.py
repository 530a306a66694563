"""Servers that take prompts as text alone, and may split it into other tokens than those that were meant."""

import numpy as np
import pytest

from ralm.errors import ServerError
from ralm.lm.api.model import ApiModel
from ralm.protocols import LanguageModel
from ralm.records import FloatArray, IntArray, ScoringSequence
from tests.api.dialects import LlamaCppPython
from tests.api.served import TextsOnly, behind, served, tiny

OTHERS = np.array([1254, 3930])
"""Tokens of ralm-tiny, whose text (" multicular") its tokenizer splits into two others."""


def scored(model: LanguageModel, tokens: IntArray) -> FloatArray:
    """The log-probability of each token but the first."""
    [found] = model.score([ScoringSequence(tokens, np.arange(1, len(tokens)))])
    return found


def bounded(model: ApiModel, tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    assert model.bounds is not None
    lower, upper = (scored(bound, tokens) for bound in model.bounds)
    return lower, upper


def check_bounds(lower: FloatArray, upper: FloatArray, tokens: IntArray) -> FloatArray:
    """The exact figures, which are within their bounds."""
    exact = scored(tiny(), tokens)
    assert (lower <= exact + 1e-4).all()
    assert (exact <= upper + 1e-4).all()
    return exact


def test_scores_of_tokens_that_the_server_would_not_read_are_an_error() -> None:
    """A text of which the tokenizer makes other tokens, as many or fewer."""
    shorter = np.append(tiny().tokenizer.encode(" hist"), tiny().tokenizer.encode("ory"))
    for tokens, said in ((OTHERS, "splits the text into other tokens"), (shorter, "2 log-probabilities for 3 tokens")):
        with served(behind(), TextsOnly()) as (_, model), pytest.raises(ServerError, match=said):
            scored(model, tokens)


def test_bounds_hold_and_are_tight_where_a_token_is_listed() -> None:
    text = tiny().tokenizer.encode("The list type has a method that sorts its items.")
    with served(behind(), LlamaCppPython(), options={"top_logprobs": 20}) as (_, model):
        assert (model.backend.name, model.tier) == ("completions", "top_k")
        assert model.backend.tier.startswith("2")
        assert "echo of text" in dict(model.capabilities.ruled_out)
        lower, upper = bounded(model, text)
        listed = model.backend.top_logprobs
    exact = check_bounds(lower, upper, text)
    ranks = [int((row > row[token]).sum()) for row, token in zip(behind().log_probs(text), text[1:], strict=False)]
    known = np.array(ranks) < listed
    assert known.any()
    np.testing.assert_allclose(lower[known], exact[known], atol=1e-4)
    np.testing.assert_allclose(upper[known], exact[known], atol=1e-4)


def test_bounds_where_the_server_writes_a_part_of_a_character() -> None:
    """The name of such a token has several; what is listed still bounds all others."""
    text = tiny().tokenizer.encode("Caf\u00e9 \u4e2d\u6587 \u2260 are characters of \u4e2d\u6587.")
    rows = behind().log_probs(text)
    parts = ["\ufffd" in tiny().tokenizer.decode(np.array([row.argmax()])) for row in rows]
    with served(behind(), LlamaCppPython(), options={"retries": 0}) as (_, model):
        kept = [model.backend.keeps_tokens(text[:end]) for end in range(1, len(text))]
        assert any(part and one for part, one in zip(parts, kept, strict=False))
        lower, upper = bounded(model, text)
    check_bounds(lower, upper, text)
    assert (lower == upper).any()
    assert (upper[np.array(kept)] < 0).all()


def test_what_is_written_behind_other_tokens_bounds_nothing_that_is_not_listed() -> None:
    with served(behind(), LlamaCppPython()) as (_, model):
        given = model.continuations().next_tokens([OTHERS, tiny().tokenizer.encode("The list")])
    assert given.rest_B is not None
    assert given.rest_B[0] == 0 > given.rest_B[1]


def test_nothing_is_bounded_behind_tokens_that_are_not_read_as_such() -> None:
    """They are others to the server, and as many."""
    with served(behind(), LlamaCppPython()) as (_, model):
        lower, upper = bounded(model, np.append(OTHERS, 5))
    assert lower[-1] == -np.inf
    assert upper[-1] == 0
