"""Gains and contributions against the plain loop, by hand, and of generated texts."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.provenance import (
    Contribution,
    TracedText,
    attributed,
    contributions,
    gains,
    total_gain,
    traced_generation,
)
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Passages, Provenance
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reference import provenance as reference

LOG_PROBS = st.floats(-30, 0, width=32)


@st.composite
def read_texts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Provenance]:
    """Log-probabilities with and without, and up to 4 documents a target; some targets have none."""
    targets, documents = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    with_T, without_T = (draw(st.lists(LOG_PROBS, min_size=targets, max_size=targets)) for _ in range(2))
    passages_TK = np.full((targets, documents), NO_PASSAGE, dtype=np.int64)
    posteriors_TK = np.zeros((targets, documents), dtype=np.float32)
    for target in range(targets):
        numbers: list[int] = draw(st.lists(st.integers(0, 6), max_size=documents, unique=True))
        weights = np.array(draw(st.lists(st.integers(1, 9), min_size=len(numbers), max_size=len(numbers))) or [1])
        passages_TK[target, : len(numbers)] = numbers
        posteriors_TK[target, : len(weights)] = weights / weights.sum()
    provenance = Provenance(passages_TK=passages_TK, posteriors_TK=posteriors_TK)
    return np.array(with_T, dtype=np.float32), np.array(without_T, dtype=np.float32), provenance


@given(read_texts())
def test_contributions_are_those_of_the_plain_loop(made: tuple[np.ndarray, np.ndarray, Provenance]) -> None:
    """And nothing of the gain is lost."""
    with_T, without_T, provenance = made
    gain_T = gains(with_T, without_T)
    found = contributions(provenance, gain_T)
    columns = (with_T, without_T, provenance.passages_TK, provenance.posteriors_TK)
    expected = reference.contributions(*(column.tolist() for column in columns))
    assert {row.passage for row in found} == set(expected)
    for row in found:
        wanted = expected[row.passage]
        assert row.gain == pytest.approx(wanted["gain"], rel=1e-5, abs=1e-4)
        assert (row.tokens, row.helped, row.hurt) == (wanted["tokens"], wanted["helped"], wanted["hurt"])
    assert [row.gain for row in found] == sorted((row.gain for row in found), reverse=True)
    np.testing.assert_allclose(attributed(provenance, gain_T).sum(axis=1), gain_T, rtol=1e-12, atol=1e-12)
    total = total_gain(provenance, gain_T)
    assert total.nats == pytest.approx(gain_T.sum(), abs=1e-9)
    assert sum(row.gain for row in found) + total.unattributed == pytest.approx(total.nats, abs=1e-9)
    assert total.helped + total.hurt + int((gain_T == 0).sum()) == total.targets == len(gain_T)


def test_by_hand() -> None:
    """Passage 5 gives a quarter of a token that gained 2 nats and all of one that lost 1; the last has no passage."""
    provenance = Provenance(
        passages_TK=np.array([[3, 5], [5, NO_PASSAGE], [NO_PASSAGE, NO_PASSAGE]]),
        posteriors_TK=np.array([[0.75, 0.25], [1, 0], [1, 0]], dtype=np.float32),
    )
    gain_T = np.array([2.0, -1.0, 0.25])
    assert contributions(provenance, gain_T) == [
        Contribution(passage=3, gain=1.5, tokens=1, helped=1, hurt=0),
        Contribution(passage=5, gain=-0.5, tokens=1, helped=0, hurt=1),
    ]
    total = total_gain(provenance, gain_T)
    assert asdict(total) == {"nats": 1.25, "targets": 3, "helped": 2, "hurt": 1, "unattributed": 0.25}
    assert total.per_token == pytest.approx(1.25 / 3)


PASSAGES = passages_of("b c c c", "a d d d d", "a")


def traced(prompt: str, passages: Passages) -> TracedText:
    model = CountingModel(WordTokenizer())
    settings = GenerationOptions(new_tokens=9, stride=2, query_tokens=3, document_tokens=4)
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    pieces = list(generate(prompt, model, settings, source, Parts(reader=Ensemble(documents=2))))
    return traced_generation(prompt, pieces, model, passages)


def test_every_token_has_its_documents_and_their_gains_sum_up() -> None:
    text = traced("a b", PASSAGES)
    assert len(text) == 9
    in_prompt = text.texts[0].strip() in ("a", "b")  # the baseline is the text alone
    assert text.baseline_T[0] == pytest.approx(np.log((2 if in_prompt else 1) / (2 + 100)), abs=1e-5)
    np.testing.assert_allclose(text.provenance.posteriors_TK.sum(axis=1), 1, atol=1e-6)
    assert sum(row.gain for row in text.contributions) == pytest.approx(text.gain.nats)
    assert text.gain.nats > 0
    assert set(text.passages) == set(np.unique(text.provenance.passages_TK)) - {NO_PASSAGE}
