"""The scorer: what it reads, what it reads only once, and which models it refuses."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import ModelError
from ralm.lm import scoring
from ralm.lm.local.model import load_transformers_model
from ralm.lm.scoring import Scorer
from ralm.records import FloatArray, Request, ScoringSequence
from ralm.storage.store import Store
from tests.campaign import examples
from tests.fakes import CountingModel, WordTokenizer


class Watched(CountingModel):
    """Notes the passes it is given, and gives the results one by one."""

    passes: Sequence[ScoringSequence] = ()

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:  # type: ignore[override]
        self.passes = [*self.passes, *passes]
        return (self._score(one) for one in passes)

    def alone(self, request: Request) -> FloatArray:
        """A request read by itself."""
        tokens = np.concatenate([request.document, request.context, request.targets])
        return self._score(ScoringSequence(tokens, np.arange(len(tokens) - len(request.targets), len(tokens))))


def request(*parts: Sequence[int]) -> Request:
    document, context, targets = (np.array(part, dtype=np.int64) for part in parts)
    return Request(document=document, context=context, targets=targets)


def watched() -> Watched:
    return Watched(WordTokenizer())


TOKENS = st.lists(st.integers(0, 2), max_size=4)


@settings(max_examples=examples(40))
@given(
    calls=st.lists(
        st.lists(st.builds(request, TOKENS, st.lists(st.integers(0, 2), min_size=1, max_size=3), TOKENS.filter(bool)))
    ),
    at_once=st.integers(1, 30),
    merges=st.booleans(),
)
def test_every_request_is_answered_as_if_read_alone(calls: list[list[Request]], at_once: int, merges: bool) -> None:
    """Whatever else was asked for with it and before it; and no pass is the beginning of another beside it."""
    model = watched()
    model.merges_prefixes = merges  # type: ignore[attr-defined]
    scorer = Scorer(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "TOKENS_AT_ONCE", at_once)
        for requests in calls:
            for found, one in zip(scorer.log_probs(requests), requests, strict=True):
                np.testing.assert_array_equal(found, model.alone(one))
    assert scorer.scored >= len(model.passes)


def test_requests_share_passes_which_come_longest_first() -> None:
    model = watched()
    strides = [request([7], range(begin), range(begin, begin + 2)) for begin in (2, 4, 8)]
    others = [request([], [5], [6]), request([7, 7, 7], range(9), [1])]
    Scorer(model).log_probs([*strides, *others, *strides])
    assert [one.tokens_N.tolist() for one in model.passes] == [[7, 7, 7, *range(9), 1], [7, *range(10)], [5, 6]]
    assert [one.targets_P.tolist() for one in model.passes] == [[12], [3, 4, 5, 6, 9, 10], [1]]
    by_length = watched()
    by_length.merges_prefixes = False  # type: ignore[attr-defined]
    Scorer(by_length).log_probs([*strides, *strides])
    assert [len(one.tokens_N) for one in by_length.passes] == [11, 7, 5]


def test_what_was_scored_needs_no_pass() -> None:
    model = watched()
    scorer = Scorer(model)
    first = scorer.log_probs([request([1], [2], [3, 4, 5, 6])])[0]
    again = scorer.log_probs([request([], [1, 2], [3, 4, 5, 6]), request([1], [2], [3, 4, 5, 6])])
    np.testing.assert_array_equal(again, [first, first])
    assert (len(model.passes), scorer.scored) == (1, 1)
    other = scorer.log_probs([request([1], [2, 3, 4], [5, 6]), request([], [1], [2, 3, 4, 5, 6])])
    np.testing.assert_array_equal(other[1], model.alone(request([], [1], [2, 3, 4, 5, 6])))
    assert (len(model.passes), scorer.scored) == (2, 3), "one pass for both"


def test_a_long_text_in_one_context_is_one_pass_however_short_its_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", 200)
    strides = [request([7], range(begin), [begin]) for begin in range(1, 60)]
    model = watched()
    Scorer(model).log_probs(strides)
    assert [one.targets_P.tolist() for one in model.passes] == [[*range(2, 61)]]


class KilledError(Exception):
    pass


def test_an_end_before_all_is_read_stops_the_model() -> None:
    stopped = []

    class Given(Watched):
        def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:  # type: ignore[override]
            try:
                for one in passes:
                    yield np.zeros(7 if len(one) == 1 else 1, dtype=np.float32)
            finally:
                stopped.append(True)

    with pytest.raises(ModelError) as raised:
        Scorer(Given(WordTokenizer())).log_probs([request([], [1, 2, 3], [4]), request([], [1], [9])])
    assert stopped, "even while the error, and with it every frame, is still held"
    assert "shape (7,) for 1 targets" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[-1.0, -2.0]], "counting returned log-probabilities for 1 of 2 sequences"),
        ([[-1.0, -2.0], [-1.0], [-1.0]], "returned log-probabilities for more than the 2 sequences"),
        ([[-1.0, -2.0], [-1.0, -1.0]], r"returned log-probabilities of shape \(2,\) for 1 targets"),
        ([[-1.0, float("nan")], [-1.0]], "returned log-probabilities that are not numbers"),
        ([[-1.0, 0.5], [-1.0]], "returned a log-probability of 0.5; none can be above 0"),
        ([[-1.0, float("inf")], [-1.0]], "returned a log-probability of inf"),
        ([[-1.0, "x"], [-1.0]], "returned list instead of log-probabilities"),
        ([-1.0, -2.0], r"returned log-probabilities of shape \(\) for 2 targets"),
    ],
)
def test_what_is_no_log_probability_is_refused(given: Any, message: str) -> None:
    model = watched()
    model.score = lambda passes: given  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=message):
        Scorer(model).log_probs([request([], [1, 2], [3, 4]), request([], [1], [9])])


def test_what_cannot_come_and_what_rounding_lifts_above_zero_is_taken() -> None:
    model = watched()
    given: Any = [[float("-inf"), 1e-6]]
    model.score = lambda passes: given  # type: ignore[method-assign]
    found = Scorer(model).log_probs([request([], [1, 2], [3, 4])])[0]
    assert found.dtype == np.float32
    assert found.tolist() == [float("-inf"), np.float32(1e-6)]


def test_tokens_and_lengths_that_a_model_does_not_know_are_refused_before_it_reads() -> None:
    model = watched()
    with pytest.raises(ModelError, match="token 100 is not one of the 100 that counting knows: its tokenizer belongs"):
        Scorer(model).log_probs([request([], [1], [100])])
    with pytest.raises(ModelError, match="token -1 is not one of the 100"):
        Scorer(model).log_probs([request([], [-1], [3])])
    with pytest.raises(ModelError, match="counting reads at most 64 tokens at once, not 65"):
        Scorer(model).log_probs([request([], [1] * 65, [3])])
    assert not model.passes


def test_a_killed_process_loses_only_the_batch_that_was_read(
    tmp_path: Path, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_transformers_model(str(tiny_folders["gpt2"]))
    text = np.arange(60, dtype=np.int64) % 11
    documents = [text[:0], text[3:9], text[20:25]]
    requests = [Request(documents[begin % 3], text[:begin], text[begin : begin + 4]) for begin in range(4, 56, 4)]
    whole = Scorer(model).log_probs(requests)
    passes = 0
    forward = model.logits.model.forward

    def dies(*inputs: object, **options: object) -> object:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise KilledError
        return forward(*inputs, **options)

    monkeypatch.setattr(model.logits.model, "forward", dies)
    with Store(tmp_path / "store") as store, pytest.raises(KilledError):
        Scorer(model, store).log_probs(requests)
    for _ in range(2):
        with Store(tmp_path / "store") as store:
            found = Scorer(model, store).log_probs(requests)
        assert passes == 4, "one of the three passes was done before; the second is done now, and the third"
        for expected, log_probs in zip(whole, found, strict=True):
            np.testing.assert_array_equal(log_probs, expected)
