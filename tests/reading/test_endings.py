"""Endings against a plain loop: averaged distributions of every prompt prefix, one at a time, each read anew."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from ralm.errors import UsageError
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.scoring import Scorer
from ralm.reading.mixture import PosteriorWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.reading.score import Ending, are_greedy, read_endings, score_endings
from ralm.records import IntArray, NextTokens, PromptPrefix, Readings
from tests.fakes import CountingModel, WordTokenizer
from tests.reference import ensemble, mixers

LENGTH = 32
TOKENS = st.lists(st.integers(0, 9), min_size=0, max_size=40)


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    return load_transformers_model(str(tiny_folders["gpt2"]))


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int64)


def weighed(tokens: list[list[int]], weights: list[float]) -> Readings:
    """Readings after these prompt prefixes, with scores whose softmax are the weights."""
    log_weights = np.log(weights)
    prefixes = [PromptPrefix(ids(*some), (), weight) for some, weight in zip(tokens, log_weights, strict=True)]
    return Readings(prefixes, log_weights)


def average(model: LocalLanguageModel, readings: Readings, context: list[int], targets: list[int]) -> Any:
    """The averaged distribution (float64, T x V) in the place of each target."""
    total = np.zeros((len(targets), model.vocabulary))
    for prompt_prefix, weight in zip(readings, np.exp(readings.log_weights_K), strict=True):
        read = [*prompt_prefix.tokens.tolist(), *context, *targets]
        while len(read) - 1 > LENGTH:
            del read[len(prompt_prefix.tokens)]
        with torch.no_grad():
            logits_NV = model.model(input_ids=torch.tensor([read])).logits[0].double()
        total += weight * logits_NV.softmax(-1)[-len(targets) - 1 : -1].numpy()
    return total


@settings(max_examples=20)
@given(
    context=TOKENS,
    targets=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    passages=st.lists(TOKENS.map(lambda some: some[:20]), max_size=4),
    similarities=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
)
def test_endings_are_as_likely_as_in_the_plain_loop(
    model: LocalLanguageModel,
    context: list[int],
    targets: list[int],
    passages: list[list[int]],
    similarities: list[float],
) -> None:
    lambdas = ensemble.weights(similarities[: len(passages)]) if passages else [1.0]
    readings = weighed(passages or [[]], lambdas)
    prefix = 5
    ending = Ending.after(readings, ids(*context), ids(*targets), LENGTH, prefix)
    if not context and not all(passages or [[]]):
        each = [
            weight * average(model, Readings.single(one), [] if len(one.tokens) else [prefix], targets)
            for one, weight in zip(readings, lambdas, strict=True)
        ]
        expected = np.sum(each, axis=0)
    else:
        expected = average(model, readings, context, targets)
    _, [log_probs] = score_endings([ending], Parts(), Scorer(model, progress=False))
    np.testing.assert_allclose(log_probs, np.log(expected[np.arange(len(targets)), targets]), rtol=1e-4)
    best = expected.argmax(axis=1).tolist()
    assert are_greedy([ending], model.continuations()) == [best == targets]


@settings(max_examples=40)
@given(
    context=TOKENS,
    targets=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    passages=st.lists(TOKENS.map(lambda some: some[:20]), min_size=2, max_size=4),
    evidence=st.integers(1, 12),
)
def test_endings_with_evidence_are_as_likely_as_in_the_plain_loop(
    context: list[int], targets: list[int], passages: list[list[int]], evidence: int
) -> None:
    model: Any = CountingModel(WordTokenizer(), vocabulary=10)
    start = ensemble.weights([0.3 * len(some) for some in passages])
    mixer, scorer = PosteriorWeights(eta=2, decay=3, evidence=evidence), Scorer(model, progress=False)
    [ending], [log_probs] = score_endings(
        [Ending.after(weighed(passages, start), ids(*context), ids(*targets), LENGTH, 5, evidence)],
        Parts(reader=Ensemble(), mixer=mixer),
        scorer,
    )
    read = [
        [*some, *context[max(0, len(some) + len(context) + len(targets) - LENGTH - 1) :]] or [5] for some in passages
    ]
    shared = min(len(one) - max(1, len(some)) for one, some in zip(read, passages, strict=True))

    def next_log_probs(tokens: Any) -> Any:
        return model.next_log_probs_V(np.array(tokens)).astype(np.float64)

    totals, shares = mixers.score(read, shared, targets, start, next_log_probs, eta=2, decay=3, evidence=evidence)
    np.testing.assert_allclose(log_probs, totals, atol=1e-5)
    best = True
    for place, target in enumerate(targets):
        each_V = [np.exp(next_log_probs([*one, *targets[:place]])) for one in read]
        weights = np.array(shares[place]) / [one_V[target] for one_V in each_V]
        mixed_V = sum(w * one_V for w, one_V in zip(weights / weights.sum(), each_V, strict=True))
        best = best and bool(mixed_V[target] > np.delete(mixed_V, target).max() * (1 + 1e-5))
        assume(best or mixed_V[target] < mixed_V.max() * (1 - 1e-5))  # two tokens may be equally likely
    assert are_greedy([ending], model.continuations()) == [best]


def test_greedy_endings_are_those_that_greedy_decoding_writes(model: LocalLanguageModel) -> None:
    readings = weighed([[7, 8, 9], [30]], [0.7, 0.3])
    context, written = [40, 41, 42], list[int]()
    for _ in range(5):
        written.append(int(average(model, readings, context, [*written, 0])[-1].argmax()))
    others = [[*written[:at], (written[at] + 1) % 250, *written[at + 1 :]] for at in range(5)]
    endings = [
        Ending.after(readings, ids(*context), ids(*targets), LENGTH, None)
        for targets in [written, *others, written[:1], written[:3]]
    ]
    read = [*read_endings(endings * 9, Parts(), model)]
    assert [greedy for _, greedy in read] == [True, *[False] * 5, True, True] * 9, "in several groups"
    _, log_probs = score_endings(endings, Parts(), Scorer(model, progress=False))
    for found, expected in zip([one for one, _ in read], log_probs * 9, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_an_ending_is_read_once(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each context is read once, and then the ends of its endings, and its last token to find the most likely one."""
    model.continuations()  # finds the kind of its decoder
    reads, forward = list[int](), model.model.forward

    def counted(*given: Any, **options: Any) -> Any:
        reads.append(options["input_ids"].numel())
        return forward(*given, **options)

    monkeypatch.setattr(model.model, "forward", counted)
    readings = Readings.single(PromptPrefix(ids()))
    contexts = [[*range(first, first + 20)] for first in (10, 40, 70)]
    endings = [Ending.after(readings, ids(*one), ids(last, 9), LENGTH, None) for one in contexts for last in (5, 6, 7)]
    assert not any(greedy for _, greedy in read_endings(endings, Parts(), model))
    assert sum(reads) == 3 * 19 + 9 * 2 + 3, "contexts, endings without their last tokens, and the last tokens again"


def test_a_wrong_ending_is_not_read_to_its_end() -> None:
    model = CountingModel(WordTokenizer())
    readings = Readings.single(PromptPrefix(ids(1)))
    endings = [Ending.after(readings, ids(2, 2), ids(first, 2, 2, 2), 64, None) for first in (3, 4, 5)]
    assert are_greedy(endings, model.continuations()) == [False, False, False]
    assert [text.tolist() for text in model.reads] == [[1, 2, 2]], "the context is shared"


def test_the_oldest_tokens_of_a_context_are_dropped_and_counted() -> None:
    readings = weighed([[1, 2], [1, 2, 3, 4]], [0.5, 0.5])
    ending = Ending.after(readings, ids(*range(10, 20)), ids(8, 9), 9, None)
    assert [request.context.tolist() for request in ending.requests] == [[14, 15, 16, 17, 18, 19], [16, 17, 18, 19]]
    assert [len(request) - 1 for request in ending.requests] == [9, 9]
    assert ending.dropped == 6
    assert Ending.after(readings, ids(10, 11, 12, 13), ids(8, 9), 9, None).dropped == 0


@pytest.mark.parametrize(("prompt_prefix", "length"), [([], 3), ([1], 3), ([1, 2, 3], 5)])
def test_an_ending_fits_to_the_last_token(prompt_prefix: list[int], length: int) -> None:
    Ending.after(Readings.single(PromptPrefix(ids(*prompt_prefix))), ids(7), ids(5, 5, 5), length, None)
    with pytest.raises(UsageError, match=f"ending of 3 tokens and the {len(prompt_prefix)} before it .* `max_length`"):
        Ending.after(Readings.single(PromptPrefix(ids(*prompt_prefix))), ids(7), ids(5, 5, 5), length - 1, None)


def test_something_must_stand_before_an_ending() -> None:
    with pytest.raises(UsageError, match="neither a BOS nor an EOS"):
        Ending.after(Readings.single(PromptPrefix(ids())), ids(), ids(1), 9, None)


class Likeliest:
    """A model that lists its two likeliest tokens; behind the token 2 they are others."""

    def __init__(self) -> None:
        self.reads = 0

    def next_tokens(self, texts: list[IntArray]) -> NextTokens:
        self.reads += 1
        listed = [[5, 9] if text[0] == 2 else [4, 7] for text in texts]
        return NextTokens(np.array([[-2, -1]] * len(texts), dtype=np.float32), np.array(listed))

    def continuations(self) -> "Likeliest":
        return self


def test_the_likeliest_tokens_are_enough_where_they_decide() -> None:
    endings = [Ending.after(Readings.single(PromptPrefix(ids(1))), ids(2), ids(target), 9, None) for target in (4, 7)]
    assert are_greedy(endings, Likeliest()) == [False, True]  # type: ignore[arg-type]
    assert are_greedy([Ending.after(weighed([[1], [3]], [0.5, 0.5]), ids(2), ids(7), 9, None)], Likeliest()) == [True]  # type: ignore[arg-type]
    two = Ending.after(weighed([[1], [2]], [0.5, 0.5]), ids(2), ids(7), 9, None)
    with pytest.raises(UsageError, match="does not decide the most likely one of the average over 2 passages"):
        are_greedy([two], Likeliest())  # type: ignore[arg-type]
