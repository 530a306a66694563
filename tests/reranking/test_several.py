"""Rerankers that choose several passages: best first, and read by an ensemble as a plain loop would."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.protocols import Reranker
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PreparedText, prepare_text
from ralm.records import NO_PASSAGE, Hits
from ralm.reranking.oracle import Oracle
from ralm.reranking.random import RandomChoice
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reference import ensemble

LETTERS = "abcdefgh"
TEXT = "a b c d e a b c d e f g h a b c d e f g a a c h b"
PLAN = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=14)
PASSAGES = passages_of("c d c d", "e f e f", "g h g h g h", "a b", "b b c", "zz")


def prepared(text: str = TEXT) -> tuple[PreparedText, CountingModel]:
    model = CountingModel(WordTokenizer(LETTERS), vocabulary=10, max_length=14)
    return prepare_text(text, model.tokenizer, PLAN), model


def some_hits(text: PreparedText, shift: int = 0) -> Hits:
    """Four candidates of every row, two of some, none of others."""
    numbers_QK = (np.arange(len(text.plan))[:, None] * 2 + shift + np.arange(4)) % 5
    numbers_QK[3::5, 2:] = NO_PASSAGE
    numbers_QK[4::5] = NO_PASSAGE
    numbers_QK[~text.plan.retrieves_R] = NO_PASSAGE
    return Hits(numbers_QK=numbers_QK.astype(np.int64), scores_QK=np.zeros(numbers_QK.shape, dtype=np.float32))


def log_probs(model: CountingModel, text: PreparedText, number: int, begin: int, end: int, stop: int) -> list[float]:
    """Of the tokens from `begin` to `end`, behind a passage that pushes out what does not fit with all to `stop`."""
    document = model.tokenizer.encode(PASSAGES[number].text)[:4] if number != NO_PASSAGE else text.tokens[:0]
    tokens = np.concatenate([document, text.tokens[max(0, len(document) + stop - 14) : stop]])
    skipped = stop - len(tokens)
    return [float(model.next_log_probs_V(tokens[: at - skipped])[tokens[at - skipped]]) for at in range(begin, end)]


@pytest.mark.parametrize("documents", [1, 2, 3])
@pytest.mark.parametrize("method", ["zero-shot", "oracle"])
@settings(max_examples=10)
@given(st.lists(st.sampled_from(LETTERS), min_size=8, max_size=30), st.integers(0, 4))
def test_an_ensemble_of_the_best_equals_the_plain_loop(
    method: str, documents: int, words: list[str], shift: int
) -> None:
    text, model = prepared(" ".join(words))
    hits = some_hits(text, shift)
    reranker: Reranker = ZeroShot(candidates=4, tokens=3) if method == "zero-shot" else Oracle(candidates=4)
    scored = score_text(text, model, hits, PASSAGES, Parts(reader=Ensemble(documents=documents), reranker=reranker))
    provenance = scored.provenance
    at = 0
    for row, (first, end) in enumerate(zip(text.plan.target_begin_R.tolist(), text.plan.end_R.tolist(), strict=True)):
        ranked = (max(1, first - 3), first) if method == "zero-shot" else (first, end)
        candidates = [number for number, _ in hits.of(row)]
        totals = {number: sum(log_probs(model, text, number, *ranked, end)) for number in candidates}
        best = sorted(candidates, key=lambda number: -totals[number])[:documents]
        of_row = slice(at, at := at + end - first)
        chosen = provenance.passages_TK[of_row, : max(1, len(best))][0].tolist()
        assert (provenance.passages_TK[of_row, : len(chosen)] == chosen).all()
        if best:  # which of two equal ones comes first is up to the last digit
            np.testing.assert_allclose([totals[number] for number in chosen], [totals[n] for n in best], rtol=1e-5)
            assert len(set(chosen)) == len(best)
        else:
            assert chosen == [NO_PASSAGE]
        weights = ensemble.weights([totals.get(number, 0.0) for number in chosen])
        each = [np.exp(log_probs(model, text, number, first, end, end)) for number in chosen]
        parts_KT = np.array([weight * one for weight, one in zip(weights, each, strict=True)])
        np.testing.assert_allclose(scored.log_probs_T[of_row], np.log(parts_KT.sum(axis=0)), rtol=1e-4)
        posteriors_KT = provenance.posteriors_TK[of_row, : len(chosen)].T
        np.testing.assert_allclose(posteriors_KT, parts_KT / parts_KT.sum(axis=0), rtol=1e-3, atol=1e-5)
    assert at == len(scored)


@pytest.mark.parametrize("reranker", [ZeroShot(candidates=4, tokens=3), Oracle(candidates=4)])
def test_the_first_of_several_is_the_one_that_is_read_alone(reranker: Reranker) -> None:
    text, model = prepared()
    hits = some_hits(text)
    alone = score_text(text, model, hits, PASSAGES, Parts(reranker=reranker))
    for documents in (2, 4):
        several = score_text(
            text, model, hits, PASSAGES, Parts(reader=Ensemble(documents=documents), reranker=reranker)
        ).provenance
        np.testing.assert_array_equal(several.passages_TK[:, 0], alone.passages_T)
        joined = score_text(text, model, hits, PASSAGES, Parts(reader=Concatenation(documents=2), reranker=reranker))
        np.testing.assert_array_equal(joined.passages_T, alone.passages_T)


class Strides:
    """Rows of which nothing but their strides is asked."""

    def __init__(self, places: list[int]) -> None:
        self.strides = np.array(places, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.strides)


def test_what_random_choice_draws_for_a_row_follows_from_its_place_alone() -> None:
    """However many hits the rows beside it have, however many of them there are, however many passages are wanted."""
    row, wide = [7, 3, 9, 1], [5, 6, 7, 8, 9, 10]
    chooser = RandomChoice(candidates=6, seed=2)

    def choice(places: list[int], rows: list[list[int]], k: int) -> list[list[int]]:
        hits = Hits.of_rows([(numbers, [0.0] * len(numbers)) for numbers in rows])
        best = chooser.choose(Strides(places), hits, (), k)  # type: ignore[arg-type]
        return [[number for number, _ in best.of(row)] for row in range(len(places))]

    drawn = {place: choice([place], [row], 4)[0] for place in range(30)}
    assert all(sorted(numbers) == sorted(row) for numbers in drawn.values())
    assert {numbers[0] for numbers in drawn.values()} == {numbers[1] for numbers in drawn.values()} == set(row)
    for place, numbers in drawn.items():
        for k in (1, 2, 3):
            assert choice([place], [row], k) == [numbers[:k]]
        assert choice([3, place, 40], [wide, row, []], 4) == [choice([3], [wide], 4)[0], numbers, []]


def test_a_reranker_with_fewer_candidates_than_are_read_is_refused_before_anything_is_retrieved() -> None:
    retriever = SharedWordsRetriever(PASSAGES)
    source = FromRetriever(retriever, PASSAGES, config={})
    model = CountingModel(WordTokenizer(LETTERS))
    message = "the reader reads 3 passages and the reranker chooses from 2 `candidates`: raise them"
    with pytest.raises(UsageError, match=message):
        evaluate_text(
            TEXT, model, PLAN, source=source, parts=Parts(reader=Ensemble(documents=3), reranker=ZeroShot(candidates=2))
        )
    options, reader = GenerationOptions(document_tokens=4), Ensemble(documents=3)
    with pytest.raises(UsageError, match=message):
        list(generate("a", model, options, source, Parts(reader=reader, reranker=RandomChoice(candidates=2))))
    assert retriever.queries == []
