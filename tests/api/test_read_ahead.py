"""Several tokens a request change how often a server is asked, and nothing else; certified tokens are the likeliest.

L(y) <= p(y) <= U(y): with the k likeliest tokens of each document alone, a greedy token is certified where no other can
be likelier, whatever the documents do not tell.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm import Ensemble, FromRetriever
from ralm.errors import ServerError, UsageError
from ralm.lm.api.model import ApiContinuations, ApiModel
from ralm.protocols import WritingModel
from ralm.reading.mixture import mix
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.pieces import GeneratedToken
from ralm.reading.sampling import bounds_of
from ralm.records import DoubleArray, FloatArray, IntArray, TextsAhead
from tests.api.backings import OfTable
from tests.api.dialects import VLLM, LlamaCppPython
from tests.api.scripted_server import ScriptedServer
from tests.api.served import (
    EXACT,
    VOCABULARY,
    ChatsOnly,
    behind,
    check_tokens,
    served,
    tokens_of,
    unprobed,
)
from tests.campaign import examples
from tests.fakes import SharedWordsRetriever, passages_of

PASSAGES = passages_of(
    "The city was built on a river", "A list is a sequence", "The river is cold", "A tuple is a list", "The sea rises"
)
SOURCE = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})


class OfBeginnings(OfTable):
    """A table whose predictions differ behind texts that begin otherwise, so that documents matter: by much or little.

    With `apart` 0 all documents predict the same. Without `ends` no special token is ever likely.
    """

    def __init__(self, seed: int, apart: float, *, ends: bool = False) -> None:
        super().__init__(seed, VOCABULARY, ends=ends)
        self._apart = apart

    def log_probs(self, tokens: Sequence[int]) -> FloatArray:
        own_NV = np.stack([self._row(*tokens[: min(6, end)]) for end in range(1, len(tokens) + 1)])
        logits_NV = super().log_probs(tokens) + self._apart * own_NV
        if not self.end_tokens:
            logits_NV[:, :2] -= 30
        return np.asarray(logits_NV - np.logaddexp.reduce(logits_NV, axis=1)[:, None], dtype=np.float32)


def written(model: WritingModel, prompt: str, documents: int, **options: Any) -> list[GeneratedToken]:
    parts = Parts(reader=Ensemble(documents=documents, temperature=2.0)) if documents > 1 else IN_CONTEXT
    return tokens_of(model, prompt, parts, SOURCE, document_tokens=24, **options)


@contextmanager
def token_by_token() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(ApiContinuations, ApiContinuations.read_ahead.__name__)
        yield


@pytest.fixture(scope="module", params=EXACT)
def asked_server(request: pytest.FixtureRequest) -> Iterator[tuple[ScriptedServer, str]]:
    """A server of each kind that tells log-probabilities of given texts, and how it is asked."""
    with ScriptedServer(OfTable(vocabulary=VOCABULARY), EXACT[request.param]) as server:
        yield server, request.param


@contextmanager
def asked_of(server: ScriptedServer, kind: str, backing: OfTable, likeliest: int = 5) -> Iterator[ApiModel]:
    """The model behind the server, of which nothing is known; the server forgets what it was asked before."""
    server.backing = backing
    server.requests.clear()
    model = unprobed(server, backing, kind, likeliest, as_ids=kind != "completions")
    try:
        yield model
    finally:
        model.client.close()


PROMPTS = st.sampled_from(["The city", "A list of the river", "The sea is a river and a list is a tuple", "zz"])


@settings(max_examples=examples(8))
@given(
    seed=st.integers(0, 50),
    prompt=PROMPTS,
    documents=st.integers(1, 3),
    stride=st.integers(1, 12),
    new_tokens=st.integers(1, 16),
    ends=st.booleans(),
    apart=st.sampled_from([0, 0.3, 2]),
)
def test_reading_ahead_changes_no_token(
    asked_server: tuple[ScriptedServer, str],
    seed: int,
    prompt: str,
    documents: int,
    stride: int,
    new_tokens: int,
    ends: bool,
    apart: float,
) -> None:
    server, kind = asked_server
    backing = OfBeginnings(seed, apart, ends=ends)
    expected = written(backing, prompt, documents, stride=stride, new_tokens=new_tokens)
    for mode in (nullcontext, token_by_token):
        with mode(), asked_of(server, kind, backing) as model:
            found = written(model, prompt, documents, stride=stride, new_tokens=new_tokens)
        if all(one.certified for one in found):
            check_tokens(found, expected)


@pytest.mark.parametrize("kind", EXACT)
def test_one_document_takes_one_request_a_stride(kind: str) -> None:
    backing = OfTable(seed=1, vocabulary=VOCABULARY)
    with served(backing, EXACT[kind]) as (server, model):
        before = len(server.posts)
        check_tokens(
            written(model, "The city", 1, stride=6, new_tokens=24),
            written(backing, "The city", 1, stride=6, new_tokens=24),
        )
        assert len(server.posts) - before <= 4


def test_what_is_known_is_not_asked_again() -> None:
    backing = OfTable(seed=1, vocabulary=VOCABULARY)
    with served(backing, VLLM()) as (server, model):
        continuations = model.continuations()
        text, other = np.arange(5, 12), np.arange(30, 37)
        continuations.read_ahead([TextsAhead([text], 8)])
        before = len(server.posts)
        grown = np.append(text, backing.log_probs(text.tolist())[-1].argmax())
        continuations.read_ahead([TextsAhead([grown], 7)])
        continuations.next_tokens([grown])
        assert len(server.posts) == before
        continuations.read_ahead([TextsAhead([other], 8)])
        assert len(server.posts) == before + 1


# What the bounds certify


LOG_WEIGHTS = st.lists(st.floats(0.05, 1), min_size=1, max_size=5).map(
    lambda shares: np.log(np.array(shares) / sum(shares))
)


def texts_of(seed: int, count: int) -> list[IntArray]:
    random = np.random.default_rng(seed)
    return [random.integers(4, 90, 6) for _ in range(count)]


def exact_average(backing: OfTable, texts: Sequence[IntArray], log_weights_K: DoubleArray) -> DoubleArray:
    return mix(np.stack([backing.log_probs(text.tolist())[-1] for text in texts]), log_weights_K)


@pytest.fixture(scope="module")
def listing() -> Iterator[ScriptedServer]:
    """A server that lists its likeliest tokens and tells nothing else."""
    with ScriptedServer(OfTable(vocabulary=VOCABULARY), LlamaCppPython()) as server:
        yield server


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1000), likeliest=st.integers(1, VOCABULARY), log_weights_K=LOG_WEIGHTS)
def test_certified_tokens_are_the_likeliest_of_the_exact_average(
    listing: ScriptedServer, seed: int, likeliest: int, log_weights_K: DoubleArray
) -> None:
    backing = OfTable(seed=seed, vocabulary=VOCABULARY)
    texts = texts_of(seed, len(log_weights_K))
    with asked_of(listing, "completions", backing, likeliest) as model:
        bounds = bounds_of(model.continuations().next_tokens(texts), log_weights_K)
    exact_V = exact_average(backing, texts, log_weights_K)
    assert (bounds.lower_Y <= exact_V[bounds.tokens_Y] + 1e-5).all()
    assert (bounds.upper_Y >= exact_V[bounds.tokens_Y] - 1e-5).all()
    others_V = np.delete(exact_V, bounds.tokens_Y)
    assert others_V.max(initial=-np.inf) <= bounds.tail_bound + 1e-5
    if bounds.certified:
        assert exact_V[bounds.tokens_Y[bounds.best]] >= exact_V.max() - 1e-5


@pytest.mark.parametrize("likeliest", [1, 3, 20, VOCABULARY])
def test_generation_from_lists_alone(likeliest: int) -> None:
    """As long as tokens are certified they are those of the exact average, within their bounds."""
    backing = OfBeginnings(6, apart=0.5)
    expected = written(backing, "The city", 3, stride=8, new_tokens=16)
    with served(backing, LlamaCppPython(), options={"top_logprobs": likeliest, "retries": 0}) as (_, model):
        found = written(model, "The city", 3, stride=8, new_tokens=16)
    for one, other in zip(found, expected, strict=True):
        if not one.certified:
            assert likeliest < VOCABULARY
            break
        assert one.token == other.token
        assert one.log_prob <= other.log_prob + 1e-5 <= one.log_prob + one.bound_width + 2e-5
    if likeliest == VOCABULARY:
        check_tokens(found, expected)
        assert all(one.certified and abs(one.bound_width) < 1e-5 for one in found)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("likeliest", [1, 5])
def test_where_tokens_can_be_asked_for_every_figure_is_exact(kind: str, likeliest: int) -> None:
    backing = OfBeginnings(6, apart=0.5)
    with served(backing, EXACT[kind], options={"top_logprobs": likeliest}) as (_, model):
        found = written(model, "The city", 3, stride=4, new_tokens=16)
    expected = written(backing, "The city", 3, stride=4, new_tokens=16)
    for one, other in zip(found, expected, strict=True):
        assert one.bound_width == 0
        if not one.certified:
            break
        assert one.token == other.token
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)
        np.testing.assert_allclose(one.posteriors_K, other.posteriors_K, atol=1e-5)


@pytest.mark.parametrize("kind", EXACT)
def test_an_average_ends_as_the_model_would_where_one_document_ends_it(kind: str) -> None:
    backing, prompt = OfBeginnings(98, apart=0.3, ends=True), "The sea is a river and a list is a tuple"
    with served(backing, EXACT[kind], options={"top_logprobs": 2}) as (_, model):
        found = written(model, prompt, 2, stride=8, new_tokens=8)
    assert len(found) == 3
    assert all(token.certified for token in found)
    check_tokens(found, written(backing, prompt, 2, stride=8, new_tokens=8))


@pytest.mark.parametrize(
    ("prompt", "documents", "options", "error", "said"),
    [
        ("The city", 1, {"new_tokens": 1, "temperature": 1.0, "top_k": 3}, UsageError, "set `temperature` to 0"),
        ("The city", 1, {"new_tokens": 4, "temperature": 1.0, "top_k": 3}, UsageError, "set `temperature` to 0"),
        ("The city", 3, {"stride": 4, "new_tokens": 8}, UsageError, "answers messages"),
        (
            "\u4e2d\u6587 \u4e2d\u6587 \u4e2d\u6587",
            1,
            {"stride": 64, "new_tokens": 64},
            ServerError,
            "as a part of a character",
        ),
    ],
)
def test_what_answers_to_messages_cannot_do(
    prompt: str, documents: int, options: Any, error: type[Exception], said: str
) -> None:
    """Draw token by token, go on after retrieval, and go on after a token without a name."""
    backing = behind() if error is ServerError else OfTable(seed=6, vocabulary=VOCABULARY)
    with served(backing, ChatsOnly()) as (_, model), pytest.raises(error, match=said):
        written(model, prompt, documents, **options)
