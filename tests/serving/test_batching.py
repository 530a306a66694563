"""Many threads use one model: what each gets is what it gets alone, and none holds up, fails or ends another."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import DeviceMemoryError, ModelError
from ralm.lm.local.decoder import UncachedDecoder
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.registry import load_local_model
from ralm.protocols import Reader, WritingModel
from ralm.reading.generate import generate
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, IntArray, NextTokens, ScoringSequence
from ralm.serving.errors import StoppedError
from ralm.serving.model import RequestScope, SharedModel, in_scope
from tests.campaign import examples
from tests.fakes import CountingModel, SharedWordsRetriever, UnigramContinuations, WordTokenizer, passages_of

PASSAGES = passages_of("the red fox", "a fox and a hill", "the sea is wide", "hill by the sea", "a red stone")
WORDS = "the red fox hill sea wide stone by and a".split()
SECONDS = 60


@contextmanager
def batched(model: WritingModel, chunk: int = 512, cache: int = 1 << 16) -> Iterator[SharedModel]:
    shared = SharedModel(model, chunk_tokens=chunk, cached_tokens=cache)
    try:
        yield shared
    finally:
        shared.close()


@dataclass(frozen=True)
class Job:
    """A prompt and how it is continued; `pauses` are seconds before each token is asked for."""

    prompt: str
    reader: Reader
    options: GenerationOptions
    pauses: float = 0.0

    def tokens(self, model: WritingModel) -> list[GeneratedToken]:
        source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
        written: list[GeneratedToken] = []
        for piece in generate(self.prompt, model, self.options, source, Parts(reader=self.reader)):
            time.sleep(self.pauses)
            written += piece.tokens
        return written


JOBS = st.lists(
    st.builds(
        Job,
        prompt=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join),
        reader=st.sampled_from([InContext(), Ensemble(documents=3), Concatenation(documents=2)]),
        options=st.builds(
            GenerationOptions,
            new_tokens=st.integers(1, 8),
            stride=st.integers(1, 4),
            query_tokens=st.integers(1, 16),
            document_tokens=st.just(16),
            temperature=st.sampled_from([0.0, 0.8]),
            seed=st.integers(0, 3),
        ),
        pauses=st.sampled_from([0.0, 0.0, 0.002]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    return load_transformers_model(str(tiny_folders[request.param]))


def together(jobs: Sequence[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [one.result(SECONDS) for one in [pool.submit(job) for job in jobs]]


def check_equal(found: Sequence[GeneratedToken], expected: Sequence[GeneratedToken]) -> None:
    assert [one.token for one in found] == [one.token for one in expected]
    assert [one.passages_K.tolist() for one in found] == [one.passages_K.tolist() for one in expected]
    np.testing.assert_allclose(
        [one.log_prob for one in found], [one.log_prob for one in expected], rtol=1e-4, atol=1e-4
    )


def check_written(jobs: Sequence[Job], model: WritingModel, shared: SharedModel) -> None:
    """Jobs that are done together write what each writes alone."""
    found = together([lambda job=job: job.tokens(shared) for job in jobs])  # type: ignore[misc]
    for job, tokens in zip(jobs, found, strict=True):
        check_equal(tokens, job.tokens(model))  # type: ignore[arg-type]


@settings(max_examples=examples(12))
@given(jobs=JOBS, chunk=st.sampled_from([1, 7, 512]), cache=st.sampled_from([1, 100, 1 << 16]))
def test_each_is_written_as_if_alone(model: LocalLanguageModel, jobs: list[Job], chunk: int, cache: int) -> None:
    with batched(model, chunk, cache) as shared:
        check_written(jobs, model, shared)


def test_a_model_that_reads_anew(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "continuations", lambda: UncachedDecoder(model.logits, model.max_length))
    jobs = [Job(word, Ensemble(documents=2), GenerationOptions(new_tokens=4, document_tokens=16)) for word in WORDS[:4]]
    with batched(model, chunk=3) as shared:
        check_written(jobs, model, shared)


def random_passes(seed: int, count: int) -> list[ScoringSequence]:
    draws = np.random.default_rng(seed)
    lengths = draws.integers(2, 40, count)
    return [ScoringSequence(draws.integers(0, 256, length), np.arange(1, length)) for length in lengths.tolist()]


def test_passes_are_scored_as_by_the_model(model: LocalLanguageModel) -> None:
    jobs = [random_passes(seed, 5) for seed in range(6)]
    writing = Job("the fox", InContext(), GenerationOptions(new_tokens=20, document_tokens=16))
    with batched(model, chunk=64) as shared:
        found, *written = together(
            [
                lambda: [[*shared.score(passes)] for passes in jobs],
                *(lambda passes=passes: [*shared.score(passes)] for passes in jobs),
                lambda: writing.tokens(shared),
            ]
        )
    for passes, several, alone in zip(jobs, found, written, strict=False):  # type: ignore[call-overload]
        for one, other, expected in zip(several, alone, model.score(passes), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-5)
            np.testing.assert_allclose(other, expected, rtol=1e-5)
    check_equal(written[-1], writing.tokens(model))  # type: ignore[arg-type]


def test_distributions_have_the_scores(model: LocalLanguageModel) -> None:
    passes = random_passes(0, 20)
    with batched(model) as shared:
        found = list(shared.distributions(passes))
    for one, log_probs_PV, scores_P in zip(passes, found, model.score(passes), strict=True):
        assert log_probs_PV.shape == (len(one.targets_P), shared.vocabulary)
        np.testing.assert_allclose(np.exp(log_probs_PV).sum(axis=1), 1, rtol=1e-4)
        targets = one.tokens_N[one.targets_P]
        np.testing.assert_allclose(log_probs_PV[np.arange(len(targets)), targets], scores_P, rtol=1e-5)


@dataclass
class Recorded(CountingModel):
    """Records the texts of every step, waits for leave to read, and cannot read some token."""

    steps: list[list[list[int]]] = field(default_factory=list)
    bad: int = -1
    seconds: float = 0.0

    def continuations(self) -> "RecordedContinuations":
        return RecordedContinuations(self)

    def score(self, passes: Sequence[ScoringSequence]) -> list[FloatArray]:
        self.check([one.tokens_N for one in passes])
        return super().score(passes)

    def check(self, texts: Sequence[IntArray]) -> None:
        time.sleep(self.seconds)
        if any(self.bad in text for text in texts):
            raise ModelError("a bad token")


class RecordedContinuations(UnigramContinuations):
    def known(self, text: IntArray) -> int:
        assert isinstance(self.model, Recorded)
        texts = [beginning for step in self.model.steps[-9:] for beginning in step]
        return max([0, *(len(beginning) for beginning in texts if text[: len(beginning)].tolist() == beginning)])

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        assert isinstance(self.model, Recorded)
        self.model.steps.append([text.tolist() for text in texts])
        self.model.check(texts)
        return super().next_tokens(texts)


def recorded(**settings: object) -> Recorded:
    return Recorded(WordTokenizer(), vocabulary=50, **settings)  # type: ignore[arg-type]


def text_of(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int64)


def test_a_long_text_is_read_in_chunks_between_the_texts_of_others() -> None:
    model = recorded(max_length=1000, seconds=0.001)
    begun, done = threading.Event(), threading.Event()

    def write(shared: SharedModel) -> int:
        """Return how many tokens are written before the long text is read."""
        continuations, text = shared.continuations(), text_of(1, 2)
        while not done.is_set():
            text = np.append(text, continuations.next_tokens([text[-900:]]).log_probs_BC[0].argmax())
            begun.set()
        return len(text)

    def ask(shared: SharedModel) -> int:
        """Return how many short texts are read before the long one is."""
        for number in count():
            shared.continuations().next_tokens([text_of(*[number % 50] * 10)])
            if done.is_set():
                break
        return number

    with batched(model, chunk=10) as shared, ThreadPoolExecutor(2) as pool:
        writing, asking = pool.submit(write, shared), pool.submit(ask, shared)
        assert begun.wait(SECONDS)
        shared.continuations().next_tokens([np.arange(900) % 40])
        done.set()
        assert writing.result(SECONDS) > 60
        assert asking.result(SECONDS) > 20
    lengths = [len(text) for step in model.steps for text in step if text[:3] == [0, 1, 2]]
    assert max(np.diff(lengths)) <= 10
    assert len(lengths) <= 2 * 90 + 1


def test_what_cannot_be_read_fails_alone() -> None:
    model = recorded(bad=7, seconds=0.005)
    with batched(model) as shared:

        def tokens(first: int) -> list[int]:
            continuations, text = shared.continuations(), text_of(first, first)
            for _ in range(10):
                text = np.append(text, continuations.next_tokens([text]).log_probs_BC[0].argmax())
            return [*map(int, text)]

        def scores(token: int) -> list[FloatArray]:
            return [*shared.score([ScoringSequence(text_of(token, 1), text_of(1))])]

        with ThreadPoolExecutor(8) as pool:
            asked = [(first, pool.submit(tokens, first), pool.submit(scores, first)) for first in range(5, 9)]
            for first, written, scored in asked:
                if first == 7:
                    for one in (written, scored):
                        with pytest.raises(ModelError, match="a bad token"):
                            one.result(SECONDS)
                else:
                    assert written.result(SECONDS) == [first] * 12
                    assert len(scored.result(SECONDS)) == 1


@dataclass
class AloneOnly(Recorded):
    """Reads one text at a time, and fails for several."""

    error: Exception = field(default_factory=Exception)

    def check(self, texts: Sequence[IntArray]) -> None:
        time.sleep(0.005)
        if len(texts) > 1:
            raise self.error


@pytest.mark.parametrize(("error", "lines"), [(TypeError("no argument `cache`"), 1), (ModelError("too long"), 0)])
def test_texts_that_cannot_be_read_together_are_logged_once(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = AloneOnly(WordTokenizer(), vocabulary=50, error=error)
    passes = [ScoringSequence(text_of(token, 1), text_of(1)) for token in range(20)]
    with batched(model) as shared:
        together([lambda: [*shared.score(passes)]] * 4)
        together([lambda: shared.continuations().next_tokens([text_of(3, 4)])] * 4)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == lines
    assert all("together failed (TypeError: no argument `cache`); each is read alone" in line for line in warnings)


@pytest.mark.parametrize(
    ("text", "message"), [([], "not 0"), ([1] * 65, "not 65"), ([50], "token 50"), ([-1], "one of")]
)
def test_what_no_model_reads_is_refused_before_the_batch(text: list[int], message: str) -> None:
    model = recorded()
    with batched(model) as shared, pytest.raises(ModelError, match=message):
        shared.continuations().next_tokens([text_of(*text)])
    assert model.steps == []


def test_equal_texts_are_read_once() -> None:
    model = recorded()
    with batched(model) as shared:
        assert shared.continuations().next_tokens([text_of(3), text_of(3), text_of(2)]).log_probs_BC.shape == (3, 50)
        assert model.steps == [[[3], [2]]]


def test_who_has_gone_ends_and_the_others_go_on() -> None:
    model, gone = recorded(seconds=0.01), threading.Event()

    def waits() -> None:
        with in_scope(RequestScope(gone)):
            continuations, text = shared.continuations(), text_of(1)
            while True:
                text = np.append(continuations.next_tokens([text[-20:]]).log_probs_BC[0].argmax(), text)

    with batched(model) as shared, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits)
        shared.continuations().next_tokens([text_of(5)])
        gone.set()
        with pytest.raises(StoppedError):
            waiting.result(SECONDS)
        with in_scope(RequestScope(gone)), pytest.raises(StoppedError):
            [*shared.score(random_small_passes())]
        assert len([*shared.score(random_small_passes())]) == 2
        shared.continuations().next_tokens([text_of(5)])


def random_small_passes() -> list[ScoringSequence]:
    return [ScoringSequence(text_of(1, 2), text_of(1)), ScoringSequence(text_of(3, 2, 1), text_of(1, 2))]


def write_for_good(shared: SharedModel) -> None:
    continuations, text = shared.continuations(), text_of(1)
    while True:
        text = np.append(text, 1)[-20:]
        continuations.next_tokens([text])


def test_closing_ends_whoever_waits() -> None:
    model = recorded(seconds=0.05)
    shared = SharedModel(model)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(write_for_good, shared) for _ in range(4)]
        time.sleep(0.2)
        shared.close()
        for one in waiting:
            with pytest.raises(StoppedError):
                one.result(SECONDS)
    with pytest.raises(StoppedError):
        [*shared.score(random_small_passes())]
    with pytest.raises(StoppedError):
        shared.continuations().next_tokens([text_of(1)])


class Broken(Recorded):
    """Cannot read a bad token, and then nothing any more."""

    def continuations(self) -> "RecordedContinuations":
        if any(self.bad in text for step in self.steps for text in step):
            raise SystemError("the device is gone")
        return super().continuations()


def test_an_error_that_ends_the_thread_reaches_whoever_waits_and_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    model = Broken(WordTokenizer(), vocabulary=50, bad=7, seconds=0.05)
    shared = SharedModel(model)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Future[Any]] = [pool.submit(write_for_good, shared) for _ in range(2)]
        waiting.append(pool.submit(lambda: [*shared.score(random_small_passes() * 100)]))
        time.sleep(0.2)
        assert shared.batcher is not None
        assert shared.batcher.failed is None
        lately = shared.continuations()
        with pytest.raises(ModelError, match="the batcher of the model has failed: SystemError.*device is gone"):
            lately.next_tokens([text_of(7)])
        for one in waiting:
            with pytest.raises(ModelError, match="device is gone") as told:
                one.result(SECONDS)
            assert told.value.__cause__ is shared.batcher.failed
    for later in (shared.continuations, lambda: [*shared.score(random_small_passes())]):
        with pytest.raises(ModelError, match="device is gone"):
            later()
    with pytest.raises(ModelError, match="device is gone"):
        lately.next_tokens([text_of(1)])
    assert [one.exc_info[0] for one in caplog.records if one.levelname == "CRITICAL" and one.exc_info] == [SystemError]
    shared.close()


def test_a_request_that_misses_steps_reads_little_again() -> None:
    model = load_local_model("ralm-tiny")
    text = np.random.default_rng(0).integers(300, 4000, size=200)
    with batched(model) as shared:
        away, here = shared.continuations(), shared.continuations()
        away.next_tokens([text[:150]])
        for end in range(10, 15):
            here.next_tokens([text[50 : 50 + end]])
        before = model.blocks.read
        away.next_tokens([text[:151]])
    assert model.blocks.read - before < 16


def test_less_is_read_at_once_after_a_lack_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    model = AloneOnly(WordTokenizer(), vocabulary=50, error=DeviceMemoryError("out of memory."))
    texts = [text_of(token) for token in range(8)] * 3
    with batched(model) as shared:
        together([lambda text=text: shared.continuations().next_tokens([text]) for text in texts])  # type: ignore[misc]
    warnings = [one.getMessage() for one in caplog.records if "From now on a step has at most" in one.getMessage()]
    assert 1 <= len(warnings) == sum(len(step) > 1 for step in model.steps) <= 4


@pytest.mark.parametrize("chunk", [128, 4096])
@pytest.mark.parametrize("tokens", [550])
def test_the_next_request_with_the_same_passages_reads_little(chunk: int, tokens: int) -> None:
    model = load_local_model("ralm-tiny")
    draw = np.random.default_rng(0)
    passages = draw.integers(300, 4000, size=(5, tokens))
    with batched(model, chunk=chunk) as shared:
        for question in draw.integers(300, 4000, size=(3, 7)):
            before = model.blocks.read
            shared.continuations().next_tokens([np.concatenate([passage, question]) for passage in passages])
    assert model.blocks.read - before <= 5 * (15 + len(question))
