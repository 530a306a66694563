"""Readers against the papers' plain loops for every family, what must hold of any ensemble, and what does not fit."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.mixture import mix, shares, similarity_log_weights
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, Semantics, stride_request
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, prepare_text
from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.random import RandomRetriever
from tests.fakes import CountingModel, WordTokenizer
from tests.reading.loops import PASSAGES, TEXT, some_hits
from tests.reference import concatenation, ensemble, official, paper


def options(semantics: Semantics = "paper", **changed: object) -> PlanOptions:
    values = {"semantics": semantics, "stride": 4, "query_tokens": 8, "document_tokens": 8, "max_length": 40}
    return PlanOptions(**(values | changed))  # type: ignore[arg-type]


def joined(model: LocalLanguageModel, hits: Hits, row: int, documents: int) -> list[int]:
    tokenizer = model.tokenizer
    texts = [PASSAGES[number].text for number, _ in hits.of(row)[:documents]]
    return concatenation.joined(
        texts, lambda text: tokenizer.encode_document(text, 1000).tolist(), lambda t: tokenizer.encode(t).tolist(), 8
    )


@pytest.mark.parametrize(("documents", "block"), [(3, None), (2, 8)])
def test_the_papers_loop(model: LocalLanguageModel, documents: int, block: int | None) -> None:
    blocked: dict[str, object] = {} if block is None else {"windows": "blocked", "block": block}
    prepared = prepare_text(TEXT, model.tokenizer, options("paper", **blocked), limit_tokens=83)
    hits = some_hits(prepared, 4)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Concatenation(documents=documents)))
    expected = paper.log_probs(
        model.model,
        prepared.tokens.tolist(),
        [joined(model, hits, row, documents) for row in range(len(prepared.plan))],
        stride=4,
        max_length=40,
        block=block,
        first=model.tokenizer.encode_document("", 10).tolist(),
    )
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)
    best = hits.numbers_QK[:, 0].tolist()
    assert {*scored.passages_T.tolist()} - {NO_PASSAGE} <= {*best}, "the best passage is credited"


def test_the_official_loop(model: LocalLanguageModel) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, options("official"), limit_tokens=83)
    hits = some_hits(prepared, 4)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Concatenation()))
    candidates = [[ids] if (ids := joined(model, hits, row, 2)) else [] for row in range(len(prepared.plan))]
    windows = official.evaluate(model.model, prepared.tokens.tolist(), candidates, stride=4, max_length=40)
    expected = np.concatenate([window.target_log_probs for window in windows])
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused_before_anything_is_retrieved() -> None:
    model = CountingModel(WordTokenizer(), max_length=40)
    source = FromRetriever(RandomRetriever(len(PASSAGES)), PASSAGES, config={})
    fits = Concatenation(documents=4)
    assert evaluate_text(TEXT, model, options(), source=source, parts=Parts(reader=fits)).reading.measures.tokens == 21
    message = "`documents` 5 of `document_tokens` 8 and `stride` 4 do not fit together into `max_length` 40: lower"
    with pytest.raises(UsageError, match=message):
        evaluate_text(TEXT, model, options(), source=source, parts=Parts(reader=Concatenation(documents=5)))
    with pytest.raises(UsageError, match="`documents` 2 of `document_tokens` 8 and `block` 28 do not fit"):
        options(windows="blocked", block=28).check_documents(2)


@pytest.mark.parametrize(("semantics", "temperature"), [("paper", 0.3), ("official", 1.0)])
def test_equals_the_plain_loop(model: LocalLanguageModel, semantics: Semantics, temperature: float) -> None:
    prepared = prepare_text(
        TEXT, model.tokenizer, options(semantics, document_tokens=10, max_length=32), limit_tokens=83
    )
    hits = some_hits(prepared, 4)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Ensemble(documents=4, temperature=temperature)))
    provenance = scored.provenance
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10, "auto" if semantics == "paper" else None)
    at = 0
    for row in range(len(prepared.plan)):
        found = hits.of(row) or [(NO_PASSAGE, 0.0)]
        requests = [stride_request(prepared.tokens, prepared.plan, row, documents[number]) for number, _ in found]
        contexts = [[*request.document.tolist(), *request.context.tolist()] for request in requests]
        targets = requests[0].targets.tolist()
        lambdas = ensemble.weights([score for _, score in found], temperature)
        shares = np.array(ensemble.target_probabilities(model.model, contexts, targets, lambdas))
        of_row = slice(at, at + len(targets))
        np.testing.assert_allclose(scored.log_probs_T[of_row], np.log(shares.sum(axis=0)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            provenance.posteriors_TK[of_row, : len(found)].T, shares / shares.sum(axis=0), rtol=1e-3, atol=1e-5
        )
        assert provenance.passages_TK[at, : len(found)].tolist() == [number for number, _ in found]
        at += len(targets)
    assert at == len(scored)


FLOATS = st.floats(-50, 0, width=32)


@st.composite
def ensembles(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    documents, targets = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    row = st.lists(FLOATS, min_size=targets, max_size=targets)
    log_probs_KT = draw(st.lists(row, min_size=documents, max_size=documents))
    scores_K = draw(st.lists(FLOATS, min_size=documents, max_size=documents))
    return np.array(log_probs_KT, dtype=np.float32), np.array(scores_K, dtype=np.float32)


@given(ensembles(), st.randoms(use_true_random=False))
def test_weights_and_posteriors_sum_to_1_and_order_makes_no_difference(
    made: tuple[np.ndarray, np.ndarray], random: object
) -> None:
    log_probs_KT, scores_K = made
    count = len(scores_K)
    log_weights_K = similarity_log_weights(scores_K)
    assert np.exp(log_weights_K).sum() == pytest.approx(1)
    posteriors_TK = shares(log_probs_KT, log_weights_K)
    np.testing.assert_allclose(posteriors_TK.sum(axis=1), 1, rtol=1e-5)
    mixed_T = mix(log_probs_KT, log_weights_K)
    assert (mixed_T <= log_probs_KT.max(axis=0) + 1e-5).all()
    assert (mixed_T >= log_probs_KT.min(axis=0) - 1e-5).all()
    order = list(range(count))
    random.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_allclose(mix(log_probs_KT[order], log_weights_K[order]), mixed_T, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(shares(log_probs_KT[order], log_weights_K[order]), posteriors_TK[:, order], rtol=1e-5)


@given(ensembles(), st.data())
def test_impossible_tokens_give_no_nan(made: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    """Documents that give a token no probability have no part in it; if none does, the weights are kept."""
    log_probs_KT, scores_K = made
    impossible = data.draw(st.lists(st.booleans(), min_size=log_probs_KT.size, max_size=log_probs_KT.size))
    impossible_KT = np.array(impossible).reshape(log_probs_KT.shape)
    log_probs_KT[impossible_KT] = -np.inf
    log_weights_K = np.full(len(scores_K), -np.log(len(scores_K)))
    mixed_T, posteriors_TK = mix(log_probs_KT, log_weights_K), shares(log_probs_KT, log_weights_K)
    none_T = np.asarray(impossible_KT.all(axis=0))
    assert not np.isnan(mixed_T).any()
    np.testing.assert_array_equal(np.isneginf(mixed_T), none_T)
    np.testing.assert_allclose(posteriors_TK.sum(axis=1), 1, rtol=1e-5)
    assert not posteriors_TK[impossible_KT.T & ~none_T[:, None]].any()
    np.testing.assert_allclose(posteriors_TK[none_T], np.tile(np.exp(log_weights_K), (none_T.sum(), 1)), rtol=1e-5)
