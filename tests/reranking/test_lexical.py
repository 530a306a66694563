"""The lexical reranker and zero-shot reranking with decay and rank, against plain loops; what is rejected."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import UsageError
from ralm.protocols import LanguageModel
from ralm.records import FloatArray, Hits, IntArray, Passage
from ralm.reranking.lexical import LAST, Lexical, ends_of, shared_words, spaced
from ralm.reranking.zero_shot import ZeroShot
from tests.reference import lexical

TEXTS = st.lists(st.sampled_from(["the", "The", "dog", "do", "barks", ",", ".", " ", "\n", "größe", "x_1", "(", "犬"]))


class SomeRows:
    """Prefixes, and log-probabilities of their ends that depend on row and passage."""

    strides: IntArray = np.arange(2, dtype=np.int64)
    queries = ("q", "q")

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        self.read: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.prefixes)

    def prefix(self, row: int) -> str:
        return self.prefixes[row]

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        assert model is None
        self.read += candidates
        return [self.end(row, number)[-tokens:] for row, number in candidates]

    def end(self, row: int, number: int) -> FloatArray:
        return np.random.default_rng(10 * row + number).uniform(-5, 0, 20).astype(np.float32)

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        raise AssertionError("it must not look at the targets")


@given(TEXTS, TEXTS)
def test_the_overlap_equals_the_plain_loop(prefix: list[str], passage: list[str]) -> None:
    before, inside = "".join(prefix), " ".join(passage)
    assert shared_words(ends_of(before), spaced(inside)) == lexical.overlap(before, inside, LAST)


def test_a_passage_with_the_last_words_in_a_row_wins_over_one_with_single_words() -> None:
    rows = SomeRows("Rex lived on the hill. The dog of the she", "a b")
    texts = ["The hill, and the she.", "It was the dog of the shepherd Anna.", "the dog of she"]
    passages = [Passage(number, str(number), "T", text) for number, text in enumerate(texts)]
    hits = Hits.from_pairs([[(0, 9.0), (2, 8.0), (1, 6.0)], [(2, 1.0)]])
    best = Lexical().choose(rows, hits, passages, 2)
    assert best.of(0) == [(1, 6.0 + 2 * 4), (0, 9.0 + 2 * 2)]
    assert best.of(1) == [(2, 0.0)]
    assert rows.read == [], "no language model is needed"


@pytest.mark.parametrize("k", [1, 3])
def test_the_choice_equals_the_plain_loop(k: int) -> None:
    rows = SomeRows("The quick dog barks at the", "the brown fox, and the dog")
    texts = ["a dog barks at the moon", "The fox", "quick, quick", "and the dog barks at the"]
    passages = [Passage(number, str(number), "", text) for number, text in enumerate(texts)]
    hits = Hits.from_pairs([[(3, 4.0), (0, 3.5), (1, 2.0)], [(2, 7.0), (1, 6.5), (3, 1.5)]])
    best = Lexical().choose(rows, hits, passages, k)
    for row in range(2):
        scored = [
            (score + 2 * lexical.overlap(rows.prefix(row), texts[number], LAST), number)
            for number, score in hits.of(row)
        ]
        expected = sorted(scored, reverse=True)[:k]
        assert [number for number, _ in best.of(row)] == [number for _, number in expected]
        assert [score for _, score in best.of(row)] == pytest.approx([score for score, _ in expected], rel=1e-5)


@pytest.mark.parametrize(("decay", "rank_weight"), [(None, 2.0), (3.0, 0.0), (8.0, 0.5)])
def test_zero_shot_with_decay_and_rank(decay: float | None, rank_weight: float) -> None:
    rows, hits = SomeRows("x", "y"), Hits.from_pairs([[(0, 4.0), (5, 3.0), (7, 2.0)], [(2, 1.0)]])
    reranker = ZeroShot(decay=decay, rank_weight=rank_weight, tokens=12)
    best = reranker.choose(rows, hits, [], 3)
    expected = {
        number: sum((1 if decay is None else math.exp(-j / decay)) * one for j, one in enumerate(reversed(ends), 1))
        - rank_weight * math.log(rank)
        for rank, number in enumerate((0, 5, 7), 1)
        for ends in [rows.end(0, number)[-12:].tolist()]
    }
    assert dict(best.of(0)) == pytest.approx(expected, rel=1e-5)
    assert [number for number, _ in best.of(0)] == sorted(expected, key=lambda number: -expected[number])
    assert best.of(1) == [(2, 0.0)]
    assert {"decay", "rank_weight"} & {*reranker.config} == {
        *(["decay"] if decay else []), *(["rank_weight"] if rank_weight else [])
    }  # fmt: skip


def test_what_is_rejected() -> None:
    for decay, rank_weight in ((0.0, 0.0), (math.nan, 0.0), (None, -1.0)):
        with pytest.raises(UsageError, match="must be"):
            ZeroShot(decay=decay, rank_weight=rank_weight)
