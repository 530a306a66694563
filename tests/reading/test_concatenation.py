"""Concatenation against the papers' plain loops for every family, and what does not fit."""

import numpy as np
import pytest

from ralm.errors import UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, Semantics
from ralm.reading.readers import Concatenation, PassageOrder
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import prepare_text
from ralm.records import NO_PASSAGE, Hits
from ralm.retrieval.random import RandomRetriever
from tests.fakes import CountingModel, WordTokenizer
from tests.reading.loops import PASSAGES, TEXT, some_hits
from tests.reference import concatenation, official, paper


def options(semantics: Semantics = "paper", **changed: object) -> PlanOptions:
    values = {"semantics": semantics, "stride": 4, "query_tokens": 8, "document_tokens": 8, "max_length": 40}
    return PlanOptions(**(values | changed))  # type: ignore[arg-type]


def joined(
    model: LocalLanguageModel, hits: Hits, row: int, documents: int, order: PassageOrder = "best-first"
) -> list[int]:
    tokenizer = model.tokenizer
    texts = [PASSAGES[number].text for number, _ in hits.of(row)[:documents]]
    texts = texts if order == "best-first" else texts[::-1]
    return concatenation.joined(
        texts, lambda text: tokenizer.encode_document(text, 1000).tolist(), lambda t: tokenizer.encode(t).tolist(), 8
    )


@pytest.mark.parametrize(("documents", "order", "block"), [(3, "best-first", None), (2, "best-last", 8)])
def test_the_papers_loop(model: LocalLanguageModel, documents: int, order: PassageOrder, block: int | None) -> None:
    blocked: dict[str, object] = {} if block is None else {"windows": "blocked", "block": block}
    prepared = prepare_text(TEXT, model.tokenizer, options("paper", **blocked), limit_tokens=83)
    hits = some_hits(prepared, 4)
    scored = score_text(prepared, model, hits, PASSAGES, Parts(reader=Concatenation(documents=documents, order=order)))
    expected = paper.log_probs(
        model.model,
        prepared.tokens.tolist(),
        [joined(model, hits, row, documents, order) for row in range(len(prepared.plan))],
        stride=4,
        max_length=40,
        block=block,
        first=model.tokenizer.encode_document("", 10).tolist(),
    )
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)
    best = hits.numbers_QK[:, 0].tolist()
    assert {*scored.passages_T.tolist()} - {NO_PASSAGE} <= {*best}, "the best passage is credited in either order"


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


def test_the_order_decides_what_is_read_and_the_identity_of_runs() -> None:
    model = CountingModel(WordTokenizer(), max_length=40)
    prepared = prepare_text(TEXT, model.tokenizer, options())
    hits = some_hits(prepared, 2)
    readers = [Concatenation(), Concatenation(order="best-last")]
    swapped = Hits(hits.numbers_QK[:, ::-1].copy(), hits.scores_QK)

    def read(hits: Hits, reader: Concatenation) -> list[list[int]]:
        model.reads.clear()
        score_text(prepared, model, hits, PASSAGES, Parts(reader=reader))
        return [tokens.tolist() for tokens in model.reads]

    assert read(hits, readers[1]) == read(swapped, readers[0]) != read(hits, readers[0])
    assert readers[0].config != readers[1].config == {**readers[0].config, "order": "best-last"}
    with pytest.raises(UsageError, match=r'`cut_together` cuts the end .* with `order="best-last"`: choose one'):
        Concatenation(cut_together=True, order="best-last")
