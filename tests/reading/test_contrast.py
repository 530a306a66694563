"""Contrast of the next token with the prediction without passages, against plain loops over the vocabulary."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ralm.errors import PartError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local.model import LocalLanguageModel
from ralm.reading.generate import TokenWriter, generate
from ralm.reading.mixture import Contrast
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, DoubleArray, Hits, PromptPrefix, Readings
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, written
from tests.reference import ensemble, mixers

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


@pytest.mark.parametrize("mixer", [Contrast(alpha=0), Contrast()])
def test_impossible_tokens_stay_impossible(mixer: Contrast) -> None:
    """A token that no passage allows stays impossible, and one that only the passages allow makes no NaN."""
    log_probs_KV = torch.tensor([[0.5, 0.5, 0, 0], [0, 0.5, 0, 0.5]]).log().numpy()
    mixed_V = Parts(mixer=mixer).next_token(READINGS, log_probs_KV)
    assert np.isneginf(mixed_V[2:]).all()
    assert np.exp(mixed_V).sum() == pytest.approx(1, abs=1e-5)


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


class Neither:
    """Gives nothing."""

    config = {"mixer": "neither"}  # noqa: RUF012


def test_a_mixer_without_weights_and_distributions_is_rejected() -> None:
    with pytest.raises(UsageError, match="Neither has neither `__call__` nor `log_probs`"):
        Parts(reader=Ensemble(), mixer=Neither())  # type: ignore[arg-type]


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
