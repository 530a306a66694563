"""Scores of prompts: as few figures as possible are asked for, and those of some tokens are read alone."""

import copy
from typing import Any, cast

import numpy as np
import pytest

from ralm.errors import ServerError
from ralm.lm.api.backends import Backend
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.predictions import ServerTokenNames, parse_log_prob, parse_log_probs
from ralm.lm.api.servers import BackendConfig, build_backend
from ralm.lm.api.transport import ApiRequest
from ralm.protocols import FullTokenizer
from ralm.records import ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects.base import Dialect
from tests.api.dialects.openai import OpenAI
from tests.api.dialects.sglang import SGLang
from tests.api.dialects.tgi import TGI
from tests.api.dialects.vllm import VLLM
from tests.api.scripted_server import ScriptedServer
from tests.api.served import VOCABULARY, served, way_named

TABLE = OfTable(seed=5, vocabulary=VOCABULARY)
TEXT = TABLE.tokenizer.encode("A list of lists")
READERS: dict[str, Dialect] = {"echo": OpenAI(), "vllm": VLLM(), "sglang": SGLang(), "tgi": TGI()}


def way_for(name: str) -> Backend:
    """The way of asking a reader; TGI takes text alone."""
    if name != "tgi":
        return way_named(name, TABLE, 5)
    names = ServerTokenNames(TABLE.tokenizer, TABLE.vocabulary)
    asking = BackendConfig(backend="tgi", top_logprobs=5, as_ids=False)
    return build_backend(asking, "scripted", cast("FullTokenizer", TABLE.tokenizer), names)


def answered(dialect: Dialect, asked: ApiRequest) -> Any:
    with ScriptedServer(TABLE, dialect) as server, Client(Endpoint(server.url, server.model)) as client:
        [answer] = client.answers([asked])
        return answer


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("begin", [1, 4, len(TEXT) - 1, len(TEXT)])
def test_the_end_of_a_prompt_is_read_as_with_the_rest(name: str, begin: int) -> None:
    way = way_for(name)
    answer = answered(READERS[name], way.prompt_request(TEXT))
    whole, end = way.prompt_predictions(answer, TEXT), way.prompt_predictions(answer, TEXT, begin)
    assert len(end) == len(TEXT) - begin + 1
    for one, other in zip(end, whole[begin - 1 :], strict=True):
        assert (one.token, one.log_prob, one.rest) == (other.token, other.log_prob, other.rest)
        assert one.tokens_C.tolist() == other.tokens_C.tolist()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("places", [[1], [3, 4, 9], [len(TEXT) - 1], [*range(1, len(TEXT))]])
def test_the_scores_of_some_tokens(name: str, places: list[int]) -> None:
    way = way_for(name)
    found = way.scored_log_probs(answered(READERS[name], way.scoring_request(TEXT)), TEXT, np.array(places))
    rows_NV = TABLE.log_probs(TEXT.tolist())
    assert found == pytest.approx([rows_NV[place - 1, TEXT[place]] for place in places], abs=1e-5)


def test_vllm_is_asked_for_no_other_tokens() -> None:
    asked = way_for("vllm").scoring_request(TEXT)
    answer = answered(VLLM(), asked)
    assert [len(one) for one in answer["choices"][0]["prompt_logprobs"][1:]] == [1] * (len(TEXT) - 1)
    assert answer["choices"][0]["logprobs"] is None


def test_sglang_is_asked_for_no_other_tokens() -> None:
    way = way_for("sglang")
    told = answered(SGLang(), way.scoring_request(TEXT))["meta_info"]
    assert [name for name in told if "logprobs" in name] == ["input_token_logprobs", "output_token_logprobs"]
    told = answered(SGLang(), way.choice_request(TEXT, [40]))["meta_info"]
    assert "output_token_ids_logprobs" in told
    assert "output_top_logprobs" not in told


def test_a_model_scores_by_such_requests() -> None:
    with served(TABLE, VLLM()) as (server, model):
        before = len(server.posts)
        [found_P] = model.score([ScoringSequence(TEXT, np.array([2, 5]))])
        [request] = server.posts[before:]
    assert request.body["prompt_logprobs"] == 0
    rows_NV = TABLE.log_probs(TEXT.tolist())
    assert found_P == pytest.approx([rows_NV[1, TEXT[2]], rows_NV[4, TEXT[5]]], abs=1e-5)


@pytest.mark.parametrize("name", READERS)
def test_a_score_is_refused_if_a_token_before_it_is_another_one(name: str) -> None:
    way = way_for(name)
    answer = answered(READERS[name], way.scoring_request(TEXT))
    other = TEXT.copy()
    other[3] += 1
    with pytest.raises(ServerError):
        way.scored_log_probs(answer, other, np.array([len(TEXT) - 1]))


@pytest.mark.parametrize("figure", [None, 0.5, "-1.0", float("nan")])
def test_a_score_that_is_no_log_probability_is_refused(figure: Any) -> None:
    way = way_for("vllm")
    answer = copy.deepcopy(answered(VLLM(), way.scoring_request(TEXT)))
    answer["choices"][0]["prompt_logprobs"][4][str(TEXT[4])]["logprob"] = figure
    with pytest.raises(ServerError):
        way.scored_log_probs(answer, TEXT, np.array([9]))
    way = way_for("sglang")
    answer = copy.deepcopy(answered(SGLang(), way.scoring_request(TEXT)))
    answer["meta_info"]["input_token_logprobs"][4][0] = figure
    with pytest.raises(ServerError):
        way.scored_log_probs(answer, TEXT, np.array([9]))


@pytest.mark.parametrize("values", [[], [0], [-1, -2.5, 0.009], [-np.inf, -1.0]])
def test_many_log_probabilities_are_those_of_each(values: list[float]) -> None:
    assert parse_log_probs(values, "it").tolist() == [parse_log_prob(value, "it") for value in values]


@pytest.mark.parametrize("value", [None, True, False, "-1", float("nan"), 0.02, []])
def test_one_of_many_is_no_log_probability(value: Any) -> None:
    with pytest.raises(ServerError):
        parse_log_probs([-1.0, value, -2.0], "it")
