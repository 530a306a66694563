"""REPLUG's rolling windows against its code's loop: by hand, on random texts, and with ensembles of every family."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import ModelError, UsageError
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, make_plan, stride_request
from ralm.reading.readers import Ensemble
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, prepare_text
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.random import RandomRetriever
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, TEXT
from tests.reference import replug
from tests.tiny_models import EOS

ROLLING = PlanOptions(
    semantics="official", windows="rolling", stride=9, query_tokens=5, document_tokens=10, max_length=32
)


def test_the_sizes_that_the_published_code_gives_for_128_and_768() -> None:
    options = replace(ROLLING, stride=769, query_tokens=127, document_tokens=128, max_length=1024)
    plan = make_plan(1 + 896 + 769 + 100, options)
    assert plan.begin_R.tolist() == [0, 897, 1666]
    assert (plan.end_R - plan.target_begin_R).tolist() == [896, 769, 100]
    assert (plan.query_end_R - plan.query_begin_R).tolist() == [0, 127, 796], "a short last window asks with more"
    assert (plan.begin_R - plan.query_end_R).tolist() == [0, 1, 1], (
        "the last token before the targets is not asked with"
    )
    tokens_read = plan.end_R - 1 - plan.context_begin_R
    assert tokens_read.tolist() == [896] * 3
    assert plan.counted_tokens == 896 + 769 + 100


@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 7), st.integers(0, 4))
def test_equal_the_loop_of_the_code(text: int, context_len: int, pred_len: int, document: int) -> None:
    if context_len == 1:
        context_len = 2  # with 1 the published code asks with nothing, and so retrieves nothing
    length = context_len + pred_len + 4
    options = replace(ROLLING, stride=pred_len + 1, query_tokens=context_len - 1, document_tokens=4, max_length=length)
    tokens = np.arange(100, 101 + text)
    plan = make_plan(len(tokens), options)
    expected = replug.windows(tokens[1:].tolist(), 100, context_len, pred_len)
    assert len(plan) == len(expected)
    for row, window in enumerate(expected):
        ids = np.arange(document if plan.retrieves_R[row] else 0)
        request = stride_request(tokens, plan, row, ids)
        tokens_read = np.concatenate([request.context, request.targets[:-1]])
        assert tokens_read.tolist() == window.read
        assert request.targets.tolist() == window.predicted
        assert tokens[plan.query_begin_R[row] : plan.query_end_R[row]].tolist() == window.query
        assert bool(plan.retrieves_R[row]) == bool(window.query)
        assert len(request) - 1 <= length


@pytest.mark.parametrize("tokens", [5, 14, 15, 83])
def test_an_ensemble_of_every_family(model: LocalLanguageModel, tokens: int) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, ROLLING, limit_tokens=tokens)
    hits, _ = FromRetriever(RandomRetriever(len(PASSAGES)), PASSAGES).find(prepared, model.tokenizer, 3)
    hits.scores_QK[:] = np.sin(np.arange(hits.scores_QK.size)).reshape(hits.scores_QK.shape)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Ensemble(documents=3)))
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10)
    text = model.tokenizer.encode_document(TEXT[:tokens], 1000).tolist()
    made = replug.windows(text, EOS, 6, 8)
    expected = replug.log_probs(
        model.model, made, lambda row: [(documents[number].tolist(), score) for number, score in hits.of(row)]
    )
    assert len(expected) == len(text), "the first token of the text is a target too, and a BOS before it"
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)
    assert prepared.plan.counted_tokens == len(text)
    assert prepared.token_texts(scored.positions_T) == ("", [""] * (len(text) - tokens) + list(TEXT[:tokens]))


def test_queries_leave_out_the_token_before_the_targets() -> None:
    text = "a b c d e f g h i j k"
    options = replace(ROLLING, stride=3, query_tokens=2, document_tokens=4, max_length=9)
    tokenizer = WordTokenizer()
    retriever = SharedWordsRetriever(PASSAGES)
    FromRetriever(retriever, PASSAGES).find(prepare_text(text, tokenizer, options), tokenizer, 1)
    assert retriever.queries == ["c d ", "f g "]  # 3 targets from f and from i on


def test_reranking_by_the_tokens_before_the_targets() -> None:
    model = CountingModel(WordTokenizer(), max_length=9)
    options = replace(ROLLING, stride=3, query_tokens=2, document_tokens=4, max_length=9)
    prepared = prepare_text("a b c d e f g h i j k", model.tokenizer, options)
    passages = passages_of("zz zz", "d e d e")
    hits, _ = FromRetriever(RandomRetriever(2), passages).find(prepared, model.tokenizer, 2)
    scored = score_text(prepared, model, hits, passages, Parts(reranker=ZeroShot(tokens=2)))
    assert scored.passages_T[5:8].tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match="`rerank` tokens 3 are more than the `query_tokens` 2 that"):
        score_text(prepared, model, hits, passages, Parts(reranker=ZeroShot(tokens=3)))


def test_a_model_without_an_end_of_text_token_is_refused() -> None:
    tokenizer = WordTokenizer()
    tokenizer.end_token = None
    with pytest.raises(ModelError, match='`windows="rolling"` begin with the token <.endoftext.>, the unknown'):
        prepare_text(TEXT, tokenizer, ROLLING)
