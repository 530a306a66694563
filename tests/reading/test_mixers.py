"""Mixers against plain loops, and what must hold of any weights."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ralm.errors import PartError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.scoring import Scorer
from ralm.reading import ReadingOptions
from ralm.reading.generate import TokenWriter, generate
from ralm.reading.mixture import MIXERS, Contrast, PosteriorWeights, posterior_log_weights, similarity_log_weights
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, stride_request
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, prepare_text
from ralm.records import NO_PASSAGE, DoubleArray, Hits, PromptPrefix, Readings
from tests.fakes import CountingModel, SharedWordsRetriever, UnigramContinuations, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, TEXT, some_hits, written
from tests.reading.test_generate import SomeHits
from tests.reference import ensemble, mixers

PLANS = {
    "sliding": PlanOptions(stride=4, query_tokens=8, document_tokens=10, max_length=48),
    "blocked": PlanOptions(
        stride=4, query_tokens=8, document_tokens=10, max_length=64, windows="blocked", block=16, semantics="official"
    ),
    "rolling": PlanOptions(
        stride=6, query_tokens=20, document_tokens=10, max_length=60, windows="rolling", semantics="official"
    ),
}
POSTERIOR = PosteriorWeights(eta=0.6, decay=3, evidence=12)
TEMPERATURE = 2.0


@pytest.mark.parametrize("windows", PLANS)
def test_posterior_weights_equal_the_plain_loop(model: LocalLanguageModel, windows: str) -> None:
    """Each row's passages, also new ones, read the last tokens before it; the targets of the stride follow."""
    prepared = prepare_text(TEXT, model.tokenizer, PLANS[windows], limit_tokens=83)
    hits, scorer = some_hits(prepared, 3), Scorer(model)
    parts = Parts(reader=Ensemble(documents=3, temperature=TEMPERATURE), mixer=POSTERIOR)
    scored = score_text(prepared, scorer, hits, PASSAGES, parts)
    documents = PassageDocuments.planned(PASSAGES, model.tokenizer, prepared.plan.options)
    at = 0
    for row in range(len(prepared.plan)):
        found = hits.of(row) or [(NO_PASSAGE, 0.0)]
        requests = [stride_request(prepared.tokens, prepared.plan, row, documents[number], 12) for number, _ in found]
        log_probs = [one.astype(float).tolist() for one in scorer.log_probs(requests)]
        targets = int(prepared.plan.end_R[row] - prepared.plan.target_begin_R[row])
        lambdas = ensemble.weights([score for _, score in found], TEMPERATURE)
        first = len(log_probs[0]) - targets
        weights = mixers.posterior(lambdas, log_probs, first, 0.6, 3, 12)
        for t, weights_K in enumerate(weights, start=first):
            shares = [weight * np.exp(of_one[t]) for weight, of_one in zip(weights_K, log_probs, strict=True)]
            assert scored.log_probs_T[at] == pytest.approx(np.log(sum(shares)), abs=1e-5)
            posteriors_K = scored.provenance.posteriors_TK[at, : len(found)]
            np.testing.assert_allclose(posteriors_K, np.array(shares) / sum(shares), rtol=1e-3, atol=1e-6)
            at += 1
    assert at == len(scored)


@given(
    prompt=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20),
    stride=st.integers(1, 5),
    max_length=st.integers(12, 40),
    evidence=st.integers(1, 10),
)
def test_generation_with_posterior_weights_equals_reading_everything_from_the_start(
    prompt: list[str], stride: int, max_length: int, evidence: int
) -> None:
    passages = passages_of("c d c d", "e f e f", "a b b", "g h a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    options = GenerationOptions(
        new_tokens=9, stride=stride, query_tokens=2, document_tokens=4, max_length=max_length, temperature=0.0
    )
    model = CountingModel(WordTokenizer("abcdefgh"), vocabulary=9)
    parts = Parts(reader=Ensemble(documents=3), mixer=PosteriorWeights(eta=0.8, decay=4, evidence=evidence))
    tokens = model.tokenizer.encode(" ".join(prompt))
    (fast,) = written(TokenWriter(model, options, source, parts=parts), tokens)
    drawn = iter([token.token for token in fast])
    documents = PassageDocuments(passages, model.tokenizer, 4)

    def retrieve(text: Sequence[int]) -> list[tuple[int, float]]:
        hits = source.retriever.retrieve([model.tokenizer.decode(np.array(text[-2:]))], 3).of(0)
        weights = ensemble.weights([score for _, score in hits]) if hits else [1.0]
        return [(number, weight) for (number, _), weight in zip(hits or [(NO_PASSAGE, 0.0)], weights, strict=True)]

    def same(mixed: np.ndarray) -> int:
        token = next(drawn)
        assert mixed[token] >= mixed.max() * (1 - 1e-5)
        return token

    expected = mixers.generate(
        tokens.tolist(),
        {number: documents[number].tolist() for number in range(-1, len(passages))},
        retrieve,
        lambda read: model.next_log_probs_V(np.array(read)).astype(np.float64),
        same,
        eta=0.8,
        decay=4,
        evidence=evidence,
        new_tokens=len(fast),
        stride=stride,
        max_length=max_length,
    )
    for token, (_, log_prob, shares) in zip(fast, expected, strict=True):
        assert token.log_prob == pytest.approx(log_prob, abs=1e-5)
        np.testing.assert_allclose(token.posteriors_K, shares, atol=1e-5)


def test_no_evidence_is_requested_of_a_token_that_ends_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may end a text without a token, and has no log-probability of that end."""
    passages = passages_of("c d", "e f")
    source = FromRetriever(SomeHits(passages), passages, config={})
    model = CountingModel(WordTokenizer("abcdef"), end_tokens=frozenset(range(100)))
    model.tier = "chosen"
    requested: list[Any] = []
    monkeypatch.setattr(UnigramContinuations, "chosen", lambda *asked: requested.append(asked), raising=False)
    parts = Parts(reader=Ensemble(documents=2), mixer=PosteriorWeights(evidence=2))
    assert list(generate("a b", model, GenerationOptions(document_tokens=4), source, parts)) == []
    assert requested == []


FLOATS = st.floats(-60, 0, width=32)


@st.composite
def evidence(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores of K readings, and their evidence (K x E)."""
    count, tokens = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    values = st.one_of(FLOATS, st.just(-np.inf))
    scores_K = np.array(draw(st.lists(FLOATS, min_size=count, max_size=count)))
    drawn = draw(st.lists(values, min_size=count * tokens, max_size=count * tokens))
    return scores_K, np.array(drawn, dtype=np.float32).reshape(count, tokens)


@given(evidence(), st.floats(0, 1), st.floats(0.5, 1e3))
def test_posterior_log_weights_are_those_of_the_plain_loop(
    made: tuple[np.ndarray, np.ndarray], eta: float, decay: float
) -> None:
    scores_K, log_probs_KT = made[0], np.maximum(made[1], -60)
    log_weights_K = similarity_log_weights(scores_K)
    found_KT = np.exp(posterior_log_weights(log_probs_KT, log_weights_K, eta, decay))
    impossible_KT = np.exp(posterior_log_weights(made[1], log_weights_K, eta, decay))
    np.testing.assert_allclose(impossible_KT.sum(axis=0), 1, rtol=1e-9)
    expected = mixers.posterior(np.exp(log_weights_K).tolist(), log_probs_KT.tolist(), 0, eta, decay, 100)
    np.testing.assert_allclose(found_KT.T, np.reshape(expected, found_KT.T.shape), atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MIXERS.parse("best"),
            '`mixer="best"` is not known: write one of similarity, uniform, posterior, contrast, or a class',
        ),
        (
            lambda: Parts(reader=Ensemble(documents=1), mixer=PosteriorWeights()),
            "the mixer PosteriorWeights weighs several passages: set `documents` to 2 or more",
        ),
        (
            lambda: ReadingOptions(reader="ensemble:temperature=2", mixer="uniform"),
            'the key `temperature` has no effect with `mixer="uniform"',
        ),
    ],
)
def test_options_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


class Never:
    """Does not retrieve."""

    config: dict[str, Any] = {"retriever": "never"}  # noqa: RUF012

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        raise AssertionError("retrieved")


def test_evidence_that_does_not_fit_or_is_not_read() -> None:
    passages = passages_of("a b", "b a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    model, parts = CountingModel(WordTokenizer("ab")), Parts(reader=Ensemble(documents=2), mixer=PosteriorWeights())
    plan = PlanOptions(stride=2, query_tokens=2, document_tokens=4, max_length=30)
    with pytest.raises(UsageError, match="`document_tokens` 4 and `evidence` 32 do not fit together into 30 tokens"):
        evaluate_text("a b a b a b", model, plan, source=FromRetriever(Never(), passages, config={}), parts=parts)
    listing: Any = CountingModel(WordTokenizer("ab"))
    listing.tier = "top_k"
    with pytest.raises(UsageError, match="gives its top next tokens alone, and the mixer PosteriorWeights needs"):
        next(generate("a b", listing, GenerationOptions(document_tokens=4), source, parts))


LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6)
READINGS = Readings(
    [PromptPrefix(np.zeros(1, np.int64), (0,)), PromptPrefix(np.zeros(0, np.int64))], np.array([0.0, -np.inf])
)


def contrasted(
    mixer: Contrast, scores: Sequence[float], log_probs: Sequence[DoubleArray], plain: DoubleArray
) -> DoubleArray:
    """The distribution of the plain loop after passages with these scores."""
    return mixers.contrast(mixers.average(ensemble.weights(scores), log_probs), plain, mixer.alpha)


@given(LOGITS, LOGITS, st.floats(0, 3))
def test_one_passage_gives_the_arithmetic_of_cad_on_logits(one: list[float], other: list[float], alpha: float) -> None:
    """(1 + a) z_d - a z_0."""
    log_probs_KV = torch.tensor([one, other]).log_softmax(-1).numpy()
    cad_V = Parts(mixer=Contrast(alpha=alpha)).next_token(READINGS, log_probs_KV)
    np.testing.assert_allclose(np.exp(cad_V), np.exp(mixers.contrast(np.array(one), np.array(other), alpha)), atol=1e-5)


class Found:
    """Finds passages 0 and 3, whatever the query."""

    config: dict[str, Any] = {"retriever": "found"}  # noqa: RUF012

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return Hits.from_pairs([[(0, 1.0), (3, 0.5)][:k] for _ in queries])


def test_generation_equals_the_plain_loop() -> None:
    passages = passages_of("c d c d", "e f e f e", "a b b", "g h a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    options = GenerationOptions(
        new_tokens=9, stride=2, query_tokens=2, document_tokens=4, max_length=16, top_logprobs=2
    )
    model, mixer = CountingModel(WordTokenizer("abcdefgh"), vocabulary=9), Contrast(alpha=0.7)
    tokens = model.tokenizer.encode("c e b a f")
    (fast,) = written(
        TokenWriter(model, options, source, parts=Parts(reader=Ensemble(documents=3), mixer=mixer)), tokens
    )
    documents = PassageDocuments(passages, model.tokenizer, 4)
    text = tokens.tolist()
    hits: list[tuple[int, float]] = []
    for step, token in enumerate(fast):
        if step % 2 == 0:
            hits = source.retriever.retrieve([model.tokenizer.decode(np.array(text[-2:]))], 3).of(0)
        *log_probs, plain = (
            model.next_log_probs_V(np.array(mixers.trimmed(documents[number].tolist(), text, 16))).astype(float)
            for number in [*(number for number, _ in hits), NO_PASSAGE]
        )
        mixed = contrasted(mixer, [score for _, score in hits], log_probs, plain)
        assert mixed[token.token] == pytest.approx(max(mixed), abs=1e-5)
        assert token.log_prob == pytest.approx(mixed[token.token], abs=1e-5)
        assert np.isnan(token.posteriors_K).all()
        assert token.passage == NO_PASSAGE
        text.append(token.token)
    assert len(fast) == 9


class Own:
    """A mixer that gives what it is told to give."""

    config = {"mixer": "own"}  # noqa: RUF012

    def __init__(self, made: Callable[[DoubleArray, DoubleArray], Any]) -> None:
        self.made = made

    def log_probs(self, average_V: DoubleArray, plain_V: DoubleArray) -> Any:
        return self.made(average_V, plain_V)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda average_V, plain_V: average_V + plain_V, "probabilities that sum to"),
        (lambda average_V, _: average_V * float("nan"), "probabilities that sum to nan, not 1"),
        (lambda average_V, _: average_V[:1], r"log-probabilities of shape \(1,\) for a vocabulary of"),
    ],
)
def test_what_is_no_distribution_is_an_error(model: LocalLanguageModel, made: Any, message: str) -> None:
    source = FromRetriever(Found(), PASSAGES, config={})
    options = GenerationOptions(new_tokens=2, document_tokens=10)
    with pytest.raises(PartError, match=f"the mixer Own gives {message}"):
        list(generate("What", model, options, source, Parts(reader=Ensemble(documents=2), mixer=Own(made))))


def test_given_texts_and_models_that_list_top_tokens_are_rejected() -> None:
    passages = passages_of("a b", "b a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    model: Any = CountingModel(WordTokenizer("ab"))
    parts = Parts(reader=Ensemble(documents=2), mixer=Contrast())
    plan = PlanOptions(stride=2, query_tokens=2, document_tokens=4, max_length=30)
    with pytest.raises(UsageError, match="the mixer Contrast makes the distribution of the next token"):
        evaluate_text("a b a b a b", model, plan, source=source, parts=parts)
    model.tier = "top_k"
    with pytest.raises(UsageError, match="counting gives its top next tokens alone, and the mixer"):
        next(generate("a b", model, GenerationOptions(document_tokens=4), source, parts))
