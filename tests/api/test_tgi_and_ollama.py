"""Servers whose own endpoints take text alone: Text Generation Inference, and Ollama."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ralm import Ensemble, InContext, Reader, UniformWeights
from ralm.errors import ServerError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.api.model import ApiModel
from ralm.lm.api.probe import load_api_model
from ralm.protocols import UNLIMITED, LanguageModel, WritingModel
from ralm.records import FloatArray, ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects import TGI, Call, Dialect, LlamaCppPython, Ollama
from tests.api.faults import InTheMiddle, OneShort
from tests.api.scripted_server import ScriptedServer
from tests.api.served import VOCABULARY, behind, served, tiny, tokens_of
from tests.api.writing import Json

TABLE = OfTable(seed=2, vocabulary=VOCABULARY)
BEGUN = OfTable(seed=2, vocabulary=VOCABULARY, begins=True)
TEXT = TABLE.tokenizer.encode("The list type has a method.")
BOS = BEGUN.tokenizer.special_tokens.before
OTHERS = np.array([1254, 3930])
"""Tokens of ralm-tiny, whose text (" multicular") its tokenizer splits into two others."""


def scored(model: LanguageModel, tokens: Any) -> FloatArray:
    """The log-probability of each token but the first."""
    [found] = model.score([ScoringSequence(np.asarray(tokens), np.arange(1, len(tokens)))])
    return found


def bounded(model: ApiModel, tokens: Any) -> tuple[FloatArray, FloatArray]:
    assert model.bounds is not None
    lower, upper = (scored(bound, tokens) for bound in model.bounds)
    return lower, upper


def check_bounds(lower: FloatArray, upper: FloatArray, model: LanguageModel, tokens: Any) -> FloatArray:
    """The exact figures, which are within their bounds."""
    exact = scored(model, tokens)
    assert (lower <= exact + 1e-4).all()
    assert (exact <= upper + 1e-4).all()
    return exact


def written(model: WritingModel, prompt: str, reader: Reader, new_tokens: int = 10) -> tuple[list[int], list[float]]:
    tokens = tokens_of(model, prompt, reader, new_tokens=new_tokens, max_length=200)
    return [one.token for one in tokens], [one.log_prob for one in tokens]


# TGI that tells of prompts


@pytest.mark.parametrize("backing", [TABLE, "ralm-tiny"])
def test_tgi_scores_like_the_model_behind_it(backing: Any) -> None:
    backing, local = (backing, backing) if isinstance(backing, OfTable) else (behind(), tiny())
    text = backing.tokenizer.encode("The list type has a method.\n\nIt's 3.14 km from here.")
    with served(backing, TGI()) as (server, model):
        assert (model.backend.name, model.tier, model.bounds) == ("tgi", "top_k", None)
        assert model.backend.tier.startswith("1")
        np.testing.assert_allclose(scored(model, text), scored(local, text), atol=1e-4)
        asked = server.posts[-1].body
    assert asked["parameters"] == {
        "max_new_tokens": 1,
        "details": True,
        "top_n_tokens": 5,
        "decoder_input_details": True,
    }


@pytest.mark.parametrize("backing", [TABLE, "ralm-tiny"])
@pytest.mark.parametrize("reader", [Ensemble(documents=2), Ensemble(documents=3, mixer=UniformWeights())])
def test_what_tgi_writes_from_several_documents_is_certified_where_it_is_surely_right(
    backing: Any, reader: Reader
) -> None:
    """Nothing is drafted, since it lists no likeliest tokens in a prompt, and no token is chosen, since text is split
    in its own way."""
    backing, local = (backing, backing) if isinstance(backing, OfTable) else (behind(), tiny())
    with served(backing, TGI()) as (server, model):
        sent = len(server.posts)
        found, expected = (tokens_of(one, "The river ", reader, new_tokens=10) for one in (model, local))
        assert not any(request.body["parameters"].get("decoder_input_details") for request in server.posts[sent:])
    same = [one.token == other.token for one, other in zip(found, expected, strict=True)]
    upto = same.index(False) if False in same else len(same)
    assert upto == len(same) or not found[upto].certified
    assert sum(one.certified for one in found[:upto]) > 4


def test_the_bos_that_tgi_puts_before_a_text() -> None:
    text = np.concatenate([BOS, TEXT])
    with served(BEGUN, TGI()) as (server, model):
        assert model.capabilities.config.begin == BOS[0]
        np.testing.assert_allclose(scored(model, text), scored(BEGUN, text), atol=1e-5)
        assert server.posts[-1].body["inputs"] == "The list type has a method."
        with pytest.raises(ServerError, match="read with `bos` always"):
            scored(model, TEXT)


def test_tokens_that_tgi_would_not_read_are_an_error() -> None:
    """A text of which the tokenizer makes other tokens, as many or fewer."""
    said = "splits the text into other tokens"
    with served(behind(), TGI()) as (_, model), pytest.raises(ServerError, match=said):
        scored(model, OTHERS)
    shorter = np.append(tiny().tokenizer.encode(" hist"), tiny().tokenizer.encode("ory"))
    with served(behind(), TGI()) as (_, model), pytest.raises(ServerError, match="log-probabilities for 2 tokens"):
        scored(model, shorter)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(OneShort(), "26 log-probabilities for 27 tokens"), (InTheMiddle(None), "TGI gives None where a log-probability")],
)
def test_a_wrong_list_of_tgi_is_an_error(fault: Any, said: str) -> None:
    with served(TABLE, TGI()) as (server, model):
        server.faults = lambda _: fault
        with pytest.raises(ServerError, match=said):
            scored(model, TEXT)


def test_the_one_model_of_tgi_goes_by_a_name_for_any() -> None:
    with ScriptedServer(behind(), TGI(), model="mine") as server:
        load_api_model(f"{server.url}#tgi", ApiOptions(tokenizer="ralm-tiny")).client.close()


# Those that list the likeliest tokens


LISTING: dict[str, Dialect] = {"tgi top tokens": TGI(prefill=False), "ollama": Ollama()}


@pytest.mark.parametrize("kind", LISTING)
def test_bounds_hold_and_are_tight_where_a_token_is_listed(kind: str) -> None:
    text = tiny().tokenizer.encode("The list type has a method that sorts its items.")
    with served(behind(), LISTING[kind]) as (_, model):
        assert (model.backend.name, model.tier, model.max_length) == (kind, "top_k", 1023)
        lower, upper = bounded(model, text)
        listed = model.backend.top_logprobs
    exact = check_bounds(lower, upper, tiny(), text)
    ranks = [int((row > row[token]).sum()) for row, token in zip(behind().log_probs(text), text[1:], strict=False)]
    known = np.array(ranks) < listed
    assert known.any()
    np.testing.assert_allclose(lower[known], exact[known], atol=1e-4)
    np.testing.assert_allclose(upper[known], exact[known], atol=1e-4)


@pytest.mark.parametrize("dialect", [Ollama(), LlamaCppPython()], ids=str)
def test_bounds_where_the_server_writes_a_part_of_a_character(dialect: Dialect) -> None:
    """The name of such a token has several; what is listed still bounds all others."""
    text = tiny().tokenizer.encode("Caf\u00e9 \u4e2d\u6587 \u2260 are characters of \u4e2d\u6587.")
    rows = behind().log_probs(text)
    parts = ["\ufffd" in tiny().tokenizer.decode(np.array([row.argmax()])) for row in rows]
    with served(behind(), dialect, options={"retries": 0}) as (_, model):
        kept = [model.backend.keeps_tokens(text[:end]) for end in range(1, len(text))]
        assert any(part and one for part, one in zip(parts, kept, strict=False))
        lower, upper = bounded(model, text)
    check_bounds(lower, upper, tiny(), text)
    assert (lower == upper).any()
    assert (upper[np.array(kept)] < 0).all()


@pytest.mark.parametrize("kind", LISTING)
def test_what_is_written_behind_other_tokens_bounds_nothing_that_is_not_listed(kind: str) -> None:
    with served(behind(), LISTING[kind]) as (_, model):
        given = model.continuations().next_tokens([OTHERS, tiny().tokenizer.encode("The list")])
    assert given.rest_B is not None
    assert given.rest_B[0] == 0 > given.rest_B[1]


@pytest.mark.parametrize("kind", LISTING)
def test_nothing_is_bounded_behind_tokens_that_are_not_read_as_such(kind: str) -> None:
    """They are others to the server, and as many."""
    with served(behind(), LISTING[kind]) as (_, model):
        lower, upper = bounded(model, np.append(OTHERS, 5))
    assert lower[-1] == -np.inf
    assert upper[-1] == 0


@pytest.mark.parametrize("kind", LISTING)
def test_the_bos_before_a_text_whose_likeliest_tokens_are_listed(kind: str) -> None:
    text = np.concatenate([BOS, TEXT])
    with served(BEGUN, LISTING[kind]) as (_, model):
        assert model.capabilities.config.begin == BOS[0]
        lower, upper = bounded(model, text)
    check_bounds(lower, upper, BEGUN, text)
    assert (lower == upper).any()


@pytest.mark.parametrize("kind", LISTING)
@pytest.mark.parametrize("seed", [2, 3])
def test_greedy_texts_of_likeliest_tokens(kind: str, seed: int) -> None:
    """The first one ends after 15 tokens, the second one does not end."""
    backing = OfTable(seed=seed, vocabulary=VOCABULARY, ends=True)
    with served(backing, LISTING[kind]) as (server, model):
        (found, log_probs), (expected, own) = (written(one, "The river ", InContext(), 40) for one in (model, backing))
        asked = server.posts[-1].body
    assert found == expected
    assert len(found) == (15 if seed == 2 else 40)
    np.testing.assert_allclose(log_probs, own, atol=1e-4)
    if kind == "ollama":
        assert asked["raw"] is True
        assert asked["truncate"] is False
        assert asked["options"]["repeat_penalty"] == 1


def test_why_tgi_does_not_score_is_told() -> None:
    with served(TABLE, TGI(prefill=False)) as (_, model):
        [(what, why)] = model.capabilities.ruled_out
        assert what == "tgi"
        assert "without --enable-prefill-logprobs" in why
        assert model.backend.tier.startswith("2")
        assert model.backend.top_logprobs == 5
    with served(TABLE, TGI(prefill=False, max_top_n_tokens=30)) as (_, model):
        assert model.backend.top_logprobs == 20


@pytest.mark.parametrize("length", [None, "1024"])
def test_a_length_that_is_no_number_is_none(length: Any) -> None:
    with served(TABLE, OddLength(length=length)) as (_, model):
        assert model.max_length == UNLIMITED


@dataclass(frozen=True, kw_only=True)
class OddLength(TGI):
    length: Any

    def info(self, call: Call) -> Json:
        return {**super().info(call), "max_input_tokens": self.length, "max_total_tokens": self.length}


# Ollama


@pytest.mark.parametrize("backing", [TABLE, BEGUN])
def test_an_ollama_that_lists_nothing_gives_raw_text(backing: OfTable) -> None:
    """It puts the BOS before a text itself, if the model has one."""
    with served(backing, Ollama(knows_logprobs=False)) as (server, model):
        assert (model.backend.name, model.tier) == ("ollama text", "text")
        assert model.backend.tier.startswith("3")
        found, _ = written(model, "The river ", InContext())
        assert {request.path for request in server.posts} == {"/api/generate"}
        assert all(request.body.get("raw") for request in server.posts if request.body.get("prompt"))
        assert server.posts[-1].body["prompt"].startswith("The ")
    assert found == written(backing, "The river ", InContext())[0]


def test_ollama_refuses_what_is_too_long() -> None:
    """It would read the end of a text alone, and say nothing."""
    with served(OfTable(seed=4, vocabulary=VOCABULARY, max_length=220), Ollama()) as (_, model):
        assert model.max_length == 219
        text = np.arange(230) % 90 + 4
        assert list(model.client.answers([model.backend.generation_request(text[:219], 1)]))
        with pytest.raises(ServerError, match="exceeds the context length"):
            list(model.client.answers([model.backend.generation_request(text[:220], 1)]))
