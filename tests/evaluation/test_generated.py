"""The gain of generated tokens over the same text read without documents."""

import numpy as np
import pytest

from ralm.reading.ensemble import Ensemble
from ralm.reading.generate import generate
from ralm.reading.provenance import TracedText, traced_generation
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Passages
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of

PASSAGES = passages_of("b c c c", "a d d d d", "a")


def traced(prompt: str, passages: Passages, max_length: int | None = None) -> TracedText:
    model = CountingModel(WordTokenizer())
    settings = GenerationOptions(
        new_tokens=9,
        stride=2,
        query_tokens=3,
        document_tokens=4,
        max_length=max_length,
    )
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={}) if passages else None
    pieces = list(generate(prompt, model, settings, source, reader=Ensemble(documents=2)))
    return traced_generation(prompt, pieces, model, passages, max_length)


@pytest.mark.parametrize("max_length", [None, 7])
def test_without_documents_nothing_is_gained(max_length: int | None) -> None:
    """Also where the oldest tokens are dropped: the text is read as generation reads it."""
    text = traced("a b b", (), max_length)
    assert text.before + "".join(text.texts) == "a b b" + "b " * 9
    np.testing.assert_allclose(text.gain_T, 0, atol=1e-6)
    assert text.contributions == []


def test_every_token_has_its_documents_and_their_gains_sum_up() -> None:
    text = traced("a b", PASSAGES)
    assert len(text) == 9
    np.testing.assert_allclose(text.provenance.posteriors_TK.sum(axis=1), 1, atol=1e-6)
    assert sum(row.gain for row in text.contributions) == pytest.approx(text.gain.nats)
    assert text.gain.nats > 0
    assert set(text.passages) == set(np.unique(text.provenance.passages_TK)) - {NO_PASSAGE}


def test_the_baseline_is_the_text_alone() -> None:
    """The fake's first token: (times it stands in "a b" + 1) / (2 + vocabulary)."""
    text = traced("a b", PASSAGES)
    vocabulary = CountingModel(WordTokenizer()).vocabulary
    in_prompt = text.texts[0].strip() in ("a", "b")
    assert text.baseline_T[0] == pytest.approx(np.log((2 if in_prompt else 1) / (2 + vocabulary)), abs=1e-5)
