"""Gains and contributions against the plain loop; generated tokens as text, up to a stop string."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.lm.local.tokenization import load_model_tokenizer
from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, passage_shares, spans
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


def token(number: int, posteriors: dict[int, float]) -> GeneratedToken:
    passages, given = np.array(list(posteriors)), np.array(list(posteriors.values()), dtype=np.float32)
    return GeneratedToken(number, -1.0, passages, given)


def test_a_character_comes_with_its_last_byte(tiny_folders: dict[str, Path]) -> None:
    tokenizer = load_model_tokenizer(str(tiny_folders["gpt2"]))
    tokens = [token(number, {3: 1.0}) for number in tokenizer.encode("aé€").tolist()]
    assert len(tokens) == 6, "a token a byte"
    pieces = StoppedText(tokenizer.encode("before"), tokenizer)
    found = [piece for one in tokens[:-1] for piece in pieces.add(one)]
    assert [(piece.text, len(piece.tokens)) for piece in found] == [("a", 1), ("é", 2)]
    assert [piece.text for piece in pieces.add(tokens[-1])] == ["€"]
    assert pieces.rest() == []
    pieces.add(tokens[-3])
    assert [(piece.text, piece.tokens) for piece in pieces.rest()] == [("\N{REPLACEMENT CHARACTER}", (tokens[-3],))]


def test_what_passages_gave() -> None:
    one, two = token(5, {3: 0.75, 4: 0.25}), token(6, {4: 0.5, 7: 0.5})
    assert one.passage == 3
    assert list(passage_shares([one, two]).items()) == [(3, 0.375), (4, 0.375), (7, 0.25)]
    pieces = [GeneratedText("a", 3, (one,)), GeneratedText("b", 3, (one, two)), GeneratedText("c", 4, (two,))]
    joined = list(spans(pieces))
    assert [(span.text, span.passage, span.tokens) for span in joined] == [("ab", 3, (one, one, two)), ("c", 4, (two,))]


def until_stop(pieces: Sequence[GeneratedText], stop: Sequence[str]) -> list[GeneratedText]:
    """All that is handed on, the pieces given one by one; nothing after a stop string."""
    until = StoppedText(np.zeros(0, dtype=np.int64), WordTokenizer(), stop)
    certain = [part for piece in pieces for part in until.add_pieces([piece])]
    rest = until.rest()
    assert not until.found or until.add_pieces([GeneratedText("c", 0)]) == until.rest() == []
    return certain + rest


@given(
    pieces=st.lists(st.text("ab|", max_size=3), max_size=12),
    stop=st.lists(st.text("ab|", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_the_whole_text_however_it_was_pieced(pieces: list[str], stop: list[str]) -> None:
    whole = "".join(pieces)
    ends = [whole.index(string) for string in stop if string in whole]
    # a stop string is found in the first piece that completes one, so the earliest completed is what counts
    completed = [whole.index(string) + len(string) for string in stop if string in whole]
    out = until_stop([GeneratedText(text=piece, passage=0) for piece in pieces], stop)
    text = "".join(piece.text for piece in out)
    assert whole.startswith(text)
    if not ends:
        assert text == whole
    else:
        assert all(string not in text for string in stop)
        assert len(text) <= min(completed)


def test_stop_string_across_pieces_keeps_sources() -> None:
    pieces = [GeneratedText("one ", 3), GeneratedText("two\n", 4), GeneratedText("\nthree", 5)]
    assert until_stop(pieces, ["\n\n"]) == [GeneratedText("one ", 3), GeneratedText("two", 4)]


def test_a_token_stays_with_the_text_it_begins() -> None:
    first, second, third = (token(number, {3: 1.0}) for number in (1, 2, 3))
    pieces = [GeneratedText("a.", 3, (first,)), GeneratedText(".b", 3, (second,)), GeneratedText(".", 3, (third,))]
    out = until_stop(pieces, ["..."])
    expected = [("a", (first,)), (".", ()), (".b", (second,)), (".", (third,))]
    assert [(piece.text, piece.tokens) for piece in out] == expected
    out = until_stop(pieces, [".."])
    assert [(piece.text, piece.tokens) for piece in out] == [("a", (first,))]
