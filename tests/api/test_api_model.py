"""A model behind a server gives the figures of the same model here, or bounds; with prompts as text, too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm import (
    Ensemble,
    InContext,
    PlanOptions,
    PosteriorWeights,
    Question,
    UniformWeights,
    ZeroShot,
    evaluate_text,
)
from ralm.answering.answers import answer_all, room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.sources import PromptBuilder
from ralm.errors import ServerError, UsageError
from ralm.lm.api.model import ApiModel
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.records import FloatArray, IntArray, Request, ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects import LlamaCppPython, OpenAI
from tests.api.served import (
    EXACT,
    PASSAGES,
    SOURCE,
    VOCABULARY,
    TextsOnly,
    behind,
    check_tokens,
    served,
    tiny,
    tokens_of,
)
from tests.campaign import examples

TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
TEXT = (
    "The city by the river was built in the spring of a cold year . A list is a sequence and a tuple is a sequence "
    "of the language too , and the length of a list is not the length of the river . In the sea there is a city ."
)


@pytest.fixture(scope="module", params=EXACT)
def of_table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiModel]:
    """The table behind each kind of server that tells the log-probabilities of given texts."""
    answers = {"answers": tmp_path_factory.mktemp("answers") / "answers.sqlite"}
    with served(TABLE, EXACT[request.param], options=answers) as (_, model):
        assert model.backend.name == request.param
        yield model


@pytest.fixture(scope="module", params=EXACT)
def of_tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiModel]:
    """The built-in model behind each of them."""
    answers = {"answers": tmp_path_factory.mktemp("answers") / "answers.sqlite"}
    with served(behind(), EXACT[request.param], options=answers) as (_, model):
        yield model


TOKENS = st.lists(st.integers(1, 20), max_size=6).map(lambda ids: np.array(ids, dtype=np.int64))
TARGETS = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=5).map(lambda ids: np.array(ids))
REQUESTS = st.builds(
    lambda document, context, targets: Request(np.append(document, 7), context, targets), TOKENS, TOKENS, TARGETS
)


@settings(max_examples=examples(25))
@given(requests=st.lists(REQUESTS, min_size=1, max_size=6))
def test_scores(of_table: ApiModel, requests: list[Request]) -> None:
    found = Scorer(of_table, progress=False).log_probs(requests)
    expected = Scorer(TABLE, progress=False).log_probs(requests)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_scores_of_every_kind_of_token(of_tiny: ApiModel) -> None:
    """Parts of characters, white space, the end of a text, texts of one target."""
    text = tiny().tokenizer.encode("caf\u00e9 \u2014 \u65e5\u672c \U0001f389\n\n\tx  = '\u00df'")
    tokens = np.concatenate([[5], text, [0, 300], text[:4]]).astype(np.int64)
    requests = [Request(tokens[:1], tokens[:0], tokens[1:]), Request(tokens[:3], tokens[3:9], tokens[9:10])]
    for one, other in zip(
        Scorer(of_tiny, progress=False).log_probs(requests),
        Scorer(tiny(), progress=False).log_probs(requests),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_evaluations(of_tiny: ApiModel) -> None:
    """Passages are chosen and read by the server's figures; the baseline is, too."""
    parts = Parts(reader=Ensemble(documents=2), reranker=ZeroShot(candidates=4))
    options = PlanOptions(stride=6, query_tokens=12, document_tokens=16, max_length=40)
    mine, theirs = (
        evaluate_text(TEXT, model, options, source=SOURCE, parts=parts, limit_tokens=48, baseline=True)
        for model in (of_tiny, tiny())
    )
    for found, expected in ((mine.reading, theirs.reading), (mine.baseline, theirs.baseline)):
        assert found is not None
        assert expected is not None
        assert abs(found.scored.nll - expected.scored.nll) < 1e-4 * len(expected.scored)
        np.testing.assert_allclose(found.scored.log_probs_T, expected.scored.log_probs_T, atol=1e-4)
        np.testing.assert_array_equal(found.scored.passages_T, expected.scored.passages_T)


@pytest.mark.parametrize(
    "parts",
    [IN_CONTEXT, Parts(reader=Ensemble(documents=3), mixer=UniformWeights())],
)
@pytest.mark.parametrize("prompt", ["The list of the river", "In the city the \u2014\u2014"])
def test_what_is_generated(of_tiny: ApiModel, parts: Parts, prompt: str) -> None:
    if of_tiny.backend.name == "echo" and "\u2014" in prompt:
        with pytest.raises(ServerError, match="the text of several tokens or of none"):
            tokens_of(of_tiny, prompt, parts)
        return
    check_tokens(tokens_of(of_tiny, prompt, parts), tokens_of(tiny(), prompt, parts), 1e-4)


def test_evidence_from_a_server(of_tiny: ApiModel) -> None:
    """Also where the drawn token is not among those that each passage lists."""
    prompt, parts = "The list of the river", Parts(reader=Ensemble(documents=2), mixer=PosteriorWeights(evidence=5))
    if of_tiny.tier not in ("all", "chosen"):
        with pytest.raises(UsageError, match="the mixer PosteriorWeights"):
            tokens_of(of_tiny, prompt, parts)
        return
    check_tokens(tokens_of(of_tiny, prompt, parts), tokens_of(tiny(), prompt, parts), 1e-4)


@pytest.mark.parametrize("documents", [None, 3])
def test_answers(of_tiny: ApiModel, documents: int | None) -> None:
    questions = [
        Question("0", "where is the city?", ("by the river",)),
        Question("1", "what is a list?", ("a sequence", "a type")),
        Question("2", "who knows?", ()),
    ]
    prompt, options = open_prompt("in-context-ralm"), AnswerOptions(new_tokens=6)
    reader = InContext() if documents is None else Ensemble(documents=documents)
    found = []
    for model in (of_tiny, tiny()):
        builder = PromptBuilder(prompt, model.tokenizer, room_for_prompts(tiny(), options) - 8, Parts(reader=reader))
        hits = [(0, 1.5), (2, 0.5), (4, 0.25)] if documents else []
        asked = [builder.build(question, hits, PASSAGES) for question in questions]
        found.append(list(answer_all(asked, model, options, prompt=prompt)))
    for (number, mine, gold), (other, theirs, expected) in zip(*found, strict=True):
        assert (number, mine.text) == (other, theirs.text)
        assert mine.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
        assert mine.shares == pytest.approx(theirs.shares, abs=1e-4)
        assert (gold is None) == (expected is None)
        assert gold is None or gold == pytest.approx(expected, abs=1e-4)


# Lengths


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("length", [200, 223])
def test_the_length_is_the_most_that_works(kind: str, length: int) -> None:
    backing = OfTable(seed=4, vocabulary=VOCABULARY, max_length=length)
    with served(backing, EXACT[kind]) as (_, model):
        text = np.arange(length + 3) % 90 + 4
        longest = model.max_length
        assert length - 2 <= longest < length
        full = Request(text[:1], text[1:longest], text[longest : longest + 1])
        local = OfTable(seed=4, vocabulary=VOCABULARY, max_length=length)
        [found], [expected] = (Scorer(one, progress=False).log_probs([full]) for one in (model, local))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        beyond = model.backend.scoring_request(text[: longest + 2]) if model.backend.scores_prompts else None
        beyond = beyond or model.backend.choice_request(text[: longest + 1], [7])
        with pytest.raises(ServerError, match="rejected a request"):
            list(model.client.answers([beyond]))


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp", "echo"])
@pytest.mark.parametrize("parts", [IN_CONTEXT, Parts(reader=Ensemble(documents=2))])
def test_generation_up_to_the_length(kind: str, parts: Parts) -> None:
    """No request asks for more than fits, and the oldest tokens are dropped as a local model does."""
    backing = OfTable(seed=4, vocabulary=VOCABULARY, max_length=240)
    with served(backing, EXACT[kind]) as (_, model):
        options: dict[str, Any] = {"max_length": 238, "new_tokens": 40, "stride": 40, "document_tokens": 10}
        prompt = "The river " * 21
        found, expected = (tokens_of(one, prompt, parts, **options) for one in (model, backing))
        check_tokens(found, expected)


def test_a_text_that_is_too_long_for_a_server_that_does_not_say_its_length() -> None:
    with served(OfTable(seed=4, vocabulary=VOCABULARY, max_length=200), OpenAI()) as (_, model):
        text = np.arange(300) % 90 + 4
        with pytest.raises(ServerError, match="maximum context length is 200 tokens"):
            Scorer(model, progress=False).log_probs([Request(text[:1], text[1:100], text[100:])])


OTHERS = np.array([1254, 3930])
"""Tokens of ralm-tiny, whose text (" multicular") its tokenizer splits into two others."""


def scored_tokens(model: LanguageModel, tokens: IntArray) -> FloatArray:
    """The log-probability of each token but the first."""
    [found] = model.score([ScoringSequence(tokens, np.arange(1, len(tokens)))])
    return found


def test_scores_of_tokens_that_the_server_would_not_read_are_an_error() -> None:
    """A text of which the tokenizer makes other tokens, as many or fewer."""
    shorter = np.append(tiny().tokenizer.encode(" hist"), tiny().tokenizer.encode("ory"))
    for tokens, said in ((OTHERS, "splits the text into other tokens"), (shorter, "2 log-probabilities for 3 tokens")):
        with served(behind(), TextsOnly()) as (_, model), pytest.raises(ServerError, match=said):
            scored_tokens(model, tokens)


def test_a_server_that_lists_top_tokens_rejects_scoring() -> None:
    with served(behind(), LlamaCppPython(), options={"top_logprobs": 20}) as (_, model):
        assert (model.backend.name, model.tier) == ("completions", "top_k")
        assert model.backend.tier.startswith("2")
        assert "echo of text" in dict(model.capabilities.ruled_out)
        with pytest.raises(UsageError, match="which scoring needs: use a local model or a server that returns them"):
            scored_tokens(model, tiny().tokenizer.encode("The list type"))


def test_what_is_written_behind_other_tokens_bounds_nothing_that_is_not_listed() -> None:
    with served(behind(), LlamaCppPython()) as (_, model):
        given = model.continuations().next_tokens([OTHERS, tiny().tokenizer.encode("The list")])
    assert given.rest_B is not None
    assert given.rest_B[0] == 0 > given.rest_B[1]
