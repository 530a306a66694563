"""Reranking against the plain loop, for every family; several passages, best first; random and hopeless cases."""

import math
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Reranker
from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, rows_with_targets
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.rows import StrideRows
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passage
from ralm.reranking.lexical import LAST, Lexical, ends_of, shared_words, spaced
from ralm.reranking.oracle import Oracle, RandomChoice
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, chosen_hits, passages_of
from tests.reading.loops import PASSAGES, TEXT, some_hits
from tests.reference import ensemble, lexical, official, reranking

WINDOW = 48
RERANKER: dict[str, Reranker] = {"zero-shot": ZeroShot(tokens=6, candidates=3), "oracle": Oracle(candidates=3)}


def options(**changed: object) -> PlanOptions:
    values = {"stride": 4, "query_tokens": 8, "document_tokens": 10, "max_length": WINDOW}
    return PlanOptions(**(values | changed))  # type: ignore[arg-type]


def check_choice(
    reader: LocalLanguageModel,
    ranker: LocalLanguageModel,
    reranker: Reranker | None,
    *,
    rank_tokens: int | None,
    block: int | None = None,
    by_prefix: bool = False,
) -> None:
    """The passages are those that a plain loop over candidates chooses, and read as if they were the only hits. With
    `by_prefix` the loop sees nothing behind the prefix, which the ranker tokenises itself."""
    blocked = {} if block is None else {"windows": "blocked", "block": block}
    prepared = prepare_text(TEXT, reader.tokenizer, options(**blocked), limit_tokens=94)
    hits = some_hits(prepared, 3)
    scored = score_text(prepared, reader, hits, PASSAGES, Parts(reranker=reranker))
    documents = PassageDocuments(PASSAGES, ranker.tokenizer, 10)
    tokens = ranker.tokenizer.encode(prepared.text).tolist()
    chosen_R = hits.numbers_QK[:, 0].copy()
    for row, (begin, end) in enumerate(zip(prepared.plan.begin_R.tolist(), prepared.plan.end_R.tolist(), strict=True)):
        if candidates := [number for number, _ in hits.of(row)]:
            read_as = [documents[number].tolist() for number in candidates]
            stop = begin if by_prefix else end
            must_fit = stop if block is None else min((begin // block + 1) * block, 94)
            settings = {"rank_tokens": rank_tokens, "max_length": WINDOW, "must_fit": must_fit}
            chosen_R[row] = candidates[reranking.chosen(ranker.model, tokens[:stop], read_as, begin, stop, **settings)]
    plain = score_text(prepared, reader, chosen_hits(chosen_R), PASSAGES)
    np.testing.assert_array_equal(scored.passages_T, plain.passages_T)
    np.testing.assert_allclose(scored.log_probs_T, plain.log_probs_T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["zero-shot", "oracle"])
@pytest.mark.parametrize("block", [None, 12])
def test_the_paper(model: LocalLanguageModel, method: str, block: int | None) -> None:
    rank_tokens = 6 if method == "zero-shot" else None
    check_choice(model, model, RERANKER[method], rank_tokens=rank_tokens, block=block)


@pytest.mark.parametrize("method", ["zero-shot", "oracle"])
def test_the_official_code(model: LocalLanguageModel, method: str) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, options(semantics="official"), limit_tokens=94)
    hits = some_hits(prepared, 3)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reranker=RERANKER[method]))
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10)
    windows = official.evaluate(
        model.model,
        prepared.tokens.tolist(),
        [[documents[number].tolist() for number, _ in hits.of(row)] for row in range(len(hits))],
        stride=4,
        max_length=WINDOW,
        ranking=method,
        rank_tokens=6,
    )
    expected = np.concatenate([window.target_log_probs for window in windows])
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)


def test_another_model_ranks_as_the_plain_loop_would(tiny_folders: dict[str, Path]) -> None:
    reader, ranker = (load_transformers_model(str(tiny_folders[family])) for family in ("gpt2", "opt"))
    check_choice(reader, ranker, ZeroShot(tokens=6, model=ranker), rank_tokens=6, by_prefix=True)


def test_a_ranker_of_other_tokens_sees_whole_words_of_the_prefix_alone(tiny_folders: dict[str, Path]) -> None:
    """The reader's tokens are bytes, the ranker's words: what it ranks by ends where the last whole word does."""
    text = "aa bb aa cc dd bb"
    passages = passages_of("aa aa aa", "bb bb bb", "cc cc cc", "dd dd dd")
    reader = load_transformers_model(str(tiny_folders["gpt2"]))
    prepared = prepare_text(text, reader.tokenizer, options(stride=1))
    every = np.tile(np.arange(4, dtype=np.int64), (len(prepared.plan), 1))
    hits = Hits(numbers_QK=every, scores_QK=np.zeros(every.shape, dtype=np.float32))
    ranker = CountingModel(WordTokenizer(), max_length=WINDOW)
    chosen_T = score_text(prepared, reader, hits, passages, Parts(reranker=ZeroShot(tokens=1, model=ranker))).passages_T
    last_whole_word = {4: "aa", 5: "bb", 6: "bb", 7: "bb", 8: "aa", 11: "cc", 13: "cc", 14: "dd", 16: "dd"}
    for position, word in last_whole_word.items():
        expected = 0 if position == 4 else {"aa": 0, "bb": 1, "cc": 2, "dd": 3}[word]
        assert chosen_T[position - 1] == expected, position


PLANS = {
    "sliding": options(),
    "blocked": options(windows="blocked", block=12),
    "official": options(semantics="official"),
    "rolling": options(semantics="official", windows="rolling", stride=9, query_tokens=8),
}


@pytest.mark.parametrize("windows", PLANS)
def test_a_second_copy_of_the_reading_model_ranks_as_it_does(tiny_folders: dict[str, Path], windows: str) -> None:
    """Also within a character of several tokens, and where a limit cuts the text."""
    model, copy = (load_transformers_model(str(tiny_folders["llama"])) for _ in range(2))
    text = f"{TEXT[:40]} \N{GREEK SMALL LETTER ALPHA}\N{ROCKET} b\N{EURO SIGN} {TEXT}"
    prepared = prepare_text(text, model.tokenizer, PLANS[windows], limit_tokens=94)
    hits = some_hits(prepared, 3)
    rows = StrideRows(prepared, model.tokenizer, hits, PASSAGES, Scorer(model))
    candidates = [(row, number) for row in range(len(rows)) for number, _ in hits.of(row)]
    by_itself, by_copy = (rows.prefix_log_probs(candidates, 6, ranker) for ranker in (None, copy))
    for one, other in zip(by_itself, by_copy, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["zero-shot", "oracle"])
def test_one_pass_ranks_a_candidate_and_reads_the_targets(method: str) -> None:
    model = CountingModel(WordTokenizer(), max_length=WINDOW)
    prepared = prepare_text("a b c d e f " * 20, model.tokenizer, options(stride=2))
    hits, scorer = some_hits(prepared, 3), Scorer(model)
    reranker = ZeroShot(tokens=3, candidates=3) if method == "zero-shot" else Oracle(candidates=3)
    with mock.patch.object(scorer, "log_probs", wraps=scorer.log_probs) as log_probs:
        score_text(prepared, scorer, hits, PASSAGES, Parts(reranker=reranker))
    rows, asked = rows_with_targets(prepared.plan), sum(len(call.args[0]) for call in log_probs.call_args_list)
    assert asked == sum(max(1, len(hits.of(row))) for row in rows), "a request for each candidate, and no more"


LETTERS = "abcdefgh"
LETTER_TEXT = "a b c d e a b c d e f g h a b c d e f g a a c h b"
PLAN = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=14)
LETTER_PASSAGES = passages_of("c d c d", "e f e f", "g h g h g h", "a b", "b b c", "zz")


def prepared(text: str = LETTER_TEXT) -> tuple[PreparedText, CountingModel]:
    model = CountingModel(WordTokenizer(LETTERS), vocabulary=10, max_length=14)
    return prepare_text(text, model.tokenizer, PLAN), model


def letter_hits(text: PreparedText, shift: int = 0) -> Hits:
    """Four candidates of every row, two of some, none of others."""
    numbers_QK = (np.arange(len(text.plan))[:, None] * 2 + shift + np.arange(4)) % 5
    numbers_QK[3::5, 2:] = NO_PASSAGE
    numbers_QK[4::5] = NO_PASSAGE
    numbers_QK[~text.plan.retrieves_R] = NO_PASSAGE
    return Hits(numbers_QK=numbers_QK.astype(np.int64), scores_QK=np.zeros(numbers_QK.shape, dtype=np.float32))


def log_probs(model: CountingModel, text: PreparedText, number: int, begin: int, end: int, stop: int) -> list[float]:
    """Of the tokens from `begin` to `end`, behind a passage that pushes out what does not fit with all to `stop`."""
    document = model.tokenizer.encode(LETTER_PASSAGES[number].text)[:4] if number != NO_PASSAGE else text.tokens[:0]
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
    hits = letter_hits(text, shift)
    reranker: Reranker = ZeroShot(candidates=4, tokens=3) if method == "zero-shot" else Oracle(candidates=4)
    scored = score_text(
        text, model, hits, LETTER_PASSAGES, Parts(reader=Ensemble(documents=documents), reranker=reranker)
    )
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
    hits = letter_hits(text)
    alone = score_text(text, model, hits, LETTER_PASSAGES, Parts(reranker=reranker))
    for documents in (2, 4):
        several = score_text(
            text, model, hits, LETTER_PASSAGES, Parts(reader=Ensemble(documents=documents), reranker=reranker)
        ).provenance
        np.testing.assert_array_equal(several.passages_TK[:, 0], alone.passages_T)
        joined = score_text(
            text, model, hits, LETTER_PASSAGES, Parts(reader=Concatenation(documents=2), reranker=reranker)
        )
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
    retriever = SharedWordsRetriever(LETTER_PASSAGES)
    source = FromRetriever(retriever, LETTER_PASSAGES, config={})
    model = CountingModel(WordTokenizer(LETTERS))
    message = "the reader reads 3 passages and the reranker chooses from 2 `candidates`: raise them"
    with pytest.raises(UsageError, match=message):
        evaluate_text(
            LETTER_TEXT,
            model,
            PLAN,
            source=source,
            parts=Parts(reader=Ensemble(documents=3), reranker=ZeroShot(candidates=2)),
        )
    options, reader = GenerationOptions(document_tokens=4), Ensemble(documents=3)
    with pytest.raises(UsageError, match=message):
        list(generate("a", model, options, source, Parts(reader=reader, reranker=RandomChoice(candidates=2))))
    assert retriever.queries == []


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
