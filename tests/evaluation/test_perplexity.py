"""Measures by hand."""

import math

import pytest

from ralm.evaluation.perplexity import Measures


def test_by_hand() -> None:
    measures = Measures(tokens=4, words=2, bytes=10, nll=4 * math.log(8))
    assert measures.token_perplexity == pytest.approx(8)
    assert measures.word_perplexity == pytest.approx(64)
    assert measures.bits_per_byte == pytest.approx(1.2)
    assert list(measures.as_dict()) == [
        "tokens", "words", "bytes", "nll", "unknown_tokens", "token_perplexity", "word_perplexity", "bits_per_byte",
    ]  # fmt: skip


def test_extremes_are_no_errors() -> None:
    assert Measures(tokens=1, words=0, bytes=1, nll=5000.0).token_perplexity == math.inf
    assert math.isnan(Measures(tokens=1, words=0, bytes=1, nll=1.0).word_perplexity)
