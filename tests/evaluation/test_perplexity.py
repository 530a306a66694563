"""The stages together, on numbers that can be worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ralm.errors import InputError, RalmWarning
from ralm.evaluation.perplexity import Measures, evaluate_text
from ralm.reading.plan import PlanOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromFile, FromRetriever, retrieved_strides
from ralm.reading.tokens import PreparedText, prepare_text
from ralm.records import NO_PASSAGE, Passage
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, chosen_hits, passages_of

TEXT = "a b c d e a b c d e f g h a b c d e f g"
OPTIONS = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=10)
PASSAGES = passages_of("c d c d", "e f e f", "g h g h g h", "zz")


def prepared(options: PlanOptions = OPTIONS) -> tuple[PreparedText, CountingModel]:
    model = CountingModel(WordTokenizer(), max_length=10)
    return prepare_text(TEXT, model.tokenizer, options), model


def source() -> FromRetriever:
    return FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})


def log_prob(model: CountingModel, read_before: str, target: str) -> float:
    words = read_before.split()
    return float(np.log((words.count(target) + 1) / (len(words) + model.vocabulary)))


def test_every_stride_asks_with_the_end_of_its_prefix() -> None:
    text, model = prepared()
    retriever = SharedWordsRetriever(PASSAGES)
    hits, _ = FromRetriever(retriever, PASSAGES, config={}).find(text, model.tokenizer, 2)
    assert retriever.queries == ["b c ", "e a ", "c d ", "f g ", "a b ", "d e "]
    assert hits.numbers_QK[:, 0].tolist() == [NO_PASSAGE, 0, 1, 0, 1, NO_PASSAGE, 0]


def test_reading_by_hand() -> None:
    text, model = prepared()
    hits, passages = source().find(text, model.tokenizer, 1)
    scored = score_text(text, model, hits.first(1), passages)
    assert scored.positions_T.tolist() == list(range(1, 20))
    assert (
        scored.passages_T.tolist()
        == [NO_PASSAGE] * 2 + [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3 + [NO_PASSAGE] * 3 + [0] * 2
    )
    # stride 2 is tokens 6 to 8 (b c d): document "e f e f", and of the text the 3 tokens before that fit into 10
    expected = [log_prob(model, "e f e f d e a", "b"), log_prob(model, "e f e f d e a b", "c")]
    np.testing.assert_allclose(scored.log_probs_T[5:7], expected, rtol=1e-6)


@pytest.mark.parametrize("changed", [{"semantics": "official", "max_length": 20}, {"stride": 20, "max_length": 30}])
def test_a_text_that_is_read_without_any_passage_is_warned_of(changed: dict[str, Any]) -> None:
    model = CountingModel(WordTokenizer(), max_length=30)
    with pytest.warns(RalmWarning, match="no token is read with a passage: the 20 tokens of the text are one window"):
        evaluate_text(TEXT, model, replace(OPTIONS, **changed), source=source())


def test_evaluation_counts_under_each_semantics() -> None:
    model = CountingModel(WordTokenizer(), max_length=10)
    paper = evaluate_text(TEXT, model, OPTIONS, source=source(), baseline=True)
    official = evaluate_text(TEXT, model, replace(OPTIONS, semantics="official"), source=source())
    assert (paper.reading.measures.tokens, official.reading.measures.tokens) == (19, 20)
    assert (paper.reading.measures.words, official.reading.measures.words) == (19, 19)
    assert (paper.reading.measures.bytes, official.reading.measures.bytes) == (len(TEXT) - 1, len(TEXT))
    assert paper.baseline is not None
    assert paper.baseline.scored.passages_T.tolist() == [NO_PASSAGE] * 19
    assert paper.reading.measures.token_perplexity == pytest.approx(np.exp(paper.reading.scored.nll / 19))


def retrieval_file() -> tuple[FromFile, CountingModel]:
    text, model = prepared()
    hits, passages = source().find(text, model.tokenizer, 2)
    return FromFile(list(retrieved_strides(text, model.tokenizer, hits, passages)), config={}), model


@pytest.mark.parametrize(
    ("text", "changed", "message"),
    [
        (TEXT, {"stride": 2}, "it was made with other settings"),
        (TEXT, {"semantics": "official", "max_length": 8, "stride": 2}, "it was made for another text"),
        (TEXT.removesuffix("g") + "h", {}, "stride 6 of the retrieval file is tokens .* 'f g '"),
    ],
)
def test_a_retrieval_file_for_other_settings_or_texts_is_refused(
    text: str, changed: dict[str, object], message: str
) -> None:
    file, model = retrieval_file()
    with pytest.raises(InputError, match=message):
        evaluate_text(text, model, replace(OPTIONS, **changed), source=file)  # type: ignore[arg-type]


def test_limit_takes_the_beginning() -> None:
    model = CountingModel(WordTokenizer(), max_length=10)
    whole = evaluate_text(TEXT, model, OPTIONS)
    part = evaluate_text(TEXT, model, OPTIONS, limit_tokens=8)
    np.testing.assert_array_equal(part.reading.scored.log_probs_T, whole.reading.scored.log_probs_T[:7])
    assert part.reading.measures.words == 7


def test_titles_are_read() -> None:
    text, model = prepared()
    titled = [Passage(number=0, document_id="x", title="b", text="b")]
    scored = score_text(text, model, chosen_hits(np.zeros(len(text.plan), dtype=np.int64)), titled)
    assert scored.log_probs_T[5] == pytest.approx(log_prob(model, "b b b c d e a", "b"), rel=1e-6)


def test_by_hand() -> None:
    measures = Measures(tokens=4, words=2, bytes=10, nll=4 * math.log(8))
    assert measures.token_perplexity == pytest.approx(8)
    assert measures.word_perplexity == pytest.approx(64)
    assert measures.bits_per_byte == pytest.approx(1.2)
    assert list(measures.as_dict()) == [
        "tokens", "words", "bytes", "nll", "unknown_tokens", "token_perplexity", "word_perplexity", "bits_per_byte",
    ]  # fmt: skip

    assert Measures(tokens=1, words=0, bytes=1, nll=5000.0).token_perplexity == math.inf
    assert math.isnan(Measures(tokens=1, words=0, bytes=1, nll=1.0).word_perplexity)
