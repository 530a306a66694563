"""How answers are read: exact where they say all, never wrong, and never a traceback whatever they hold."""

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.errors import RalmError, ServerError
from ralm.lm.api.answers import END, Prediction, ServerTokenNames, build_prediction, parse_log_prob, parse_log_probs
from ralm.lm.api.backend import Backend
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.http import ApiRequest, JsonObject
from ralm.records import ScoringSequence
from tests.api.backings import OfTable
from tests.api.dialects import VLLM, Dialect, LlamaCpp, OpenAI, TextOnly
from tests.api.scripted_server import ScriptedServer
from tests.api.served import VOCABULARY, backend_named, served

TABLE = OfTable(seed=5, vocabulary=VOCABULARY)
TEXT = TABLE.tokenizer.encode("The list type")
ROWS_NV = TABLE.log_probs(TEXT.tolist())
DIALECTS: dict[str, Dialect] = {
    "completions": OpenAI(),
    "echo": OpenAI(),
    "vllm": VLLM(),
    "llama.cpp": LlamaCpp(),
    "chat": OpenAI(),
    "text": TextOnly(),
    "text chat": TextOnly(),
}
WRITERS = ("completions", "echo", "vllm", "llama.cpp")
READERS = ("echo", "vllm")
CHOOSERS = ("vllm", "llama.cpp")


def answered(dialect: Dialect, asked: ApiRequest, backing: OfTable = TABLE) -> Any:
    """What a server of this dialect answers."""
    with ScriptedServer(backing, dialect) as server, Client(Endpoint(server.url, server.model)) as client:
        [answer] = client.answers([asked])
        return answer


def named(name: str, likeliest: int = 5, backing: OfTable = TABLE) -> Backend:
    return backend_named(name, backing, likeliest)


def check_prediction(found: Prediction, row_V: Any, likeliest: int) -> None:
    """The figures are the model's, the likeliest are all there, and the rest is bounded by the last of them."""
    assert found.log_prob == pytest.approx(row_V[found.token], abs=1e-5)
    np.testing.assert_allclose(found.log_probs_C, row_V[found.tokens_C], atol=1e-5)
    order = np.argsort(-row_V)
    assert {*order[:likeliest].tolist()} <= {*found.tokens_C.tolist()}
    assert np.delete(row_V, found.tokens_C).max() <= found.rest + 1e-6
    left = math.log(1 - np.exp(row_V[order[:likeliest]].astype(np.float64)).sum() + 1e-5)
    assert found.rest <= min(row_V[order[likeliest - 1]], left) + 1e-5


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("most", [1, 4])
def test_what_is_written(name: str, most: int) -> None:
    one, text = named(name), TEXT
    written = one.generated(answered(DIALECTS[name], one.generation_request(TEXT, most)), most)
    for found in written:
        row_V = TABLE.log_probs(text.tolist())[-1]
        check_prediction(found, row_V, 5)
        assert found.token == row_V.argmax()
        text = np.append(text, found.token)
    assert len(written) == most


@pytest.mark.parametrize("name", READERS)
def test_the_scores_of_some_tokens(name: str) -> None:
    one = named(name)
    answer = answered(DIALECTS[name], one.scoring_request(TEXT))
    for places in ([1], [3, 4, 9], [len(TEXT) - 1], [*range(1, len(TEXT))]):
        expected = [ROWS_NV[place - 1, TEXT[place]] for place in places]
        assert one.scored_log_probs(answer, TEXT, np.array(places)) == pytest.approx(expected, abs=1e-5)
    other = TEXT.copy()
    other[3] += 1  # a token before the one that is scored
    with pytest.raises(ServerError):
        one.scored_log_probs(answer, other, np.array([len(TEXT) - 1]))


def test_scores_ask_for_no_other_tokens() -> None:
    [choice] = answered(VLLM(), named("vllm").scoring_request(TEXT))["choices"]
    assert [len(one) for one in choice["prompt_logprobs"][1:]] == [1] * (len(TEXT) - 1)
    assert choice["logprobs"] is None
    with served(TABLE, VLLM()) as (server, model):
        [found_P] = model.score([ScoringSequence(TEXT, np.array([2, 5]))])
        assert server.posts[-1].body["prompt_logprobs"] == 0
        [found_1] = model.score([ScoringSequence(TEXT[:6], np.array([5]))])
        assert server.posts[-1].body["logprob_token_ids"] == [TEXT[5]]
    assert found_P == pytest.approx([ROWS_NV[1, TEXT[2]], ROWS_NV[4, TEXT[5]]], abs=1e-5)
    assert found_1 == pytest.approx([found_P[1]])


@pytest.mark.parametrize("name", CHOOSERS)
def test_what_is_chosen(name: str) -> None:
    one = named(name)
    for tokens in ([7], [101], [3, 150, 90][: one.max_chosen]):
        found = one.chosen_log_probs(answered(DIALECTS[name], one.choice_request(TEXT, tokens)), tokens)
        assert found == pytest.approx(ROWS_NV[-1, tokens].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", WRITERS)
def test_the_end_of_a_text(name: str) -> None:
    """A server that ends a text says so, with a token of its own or without; nothing is told of what is behind."""
    backing = next(table for seed in range(100) if len(ends_of(table := ending(seed))) in (2, 3))
    expected = ends_of(backing)
    one = named(name, 5, backing)
    written = one.generated(answered(DIALECTS[name], one.generation_request(TEXT, 6), backing), 6)
    tokens = [found.token for found in written]
    assert [END if token == 0 else token for token in tokens][: len(expected)] == [*expected[:-1], END]
    assert tokens[len(expected) :] in ([], [END])
    unknown = [found for found in written if found.token == END]
    assert all(found.rest == 0 and found.log_prob == -np.inf for found in unknown)


@pytest.mark.parametrize("name", READERS)
def test_a_prompt_that_the_server_ends_is_scored(name: str) -> None:
    backing = next(table for seed in range(1000) if ends_of(table := ending(seed)) == [0])
    one, places = named(name, 5, backing), np.arange(1, len(TEXT))
    scored = one.scored_log_probs(answered(DIALECTS[name], one.scoring_request(TEXT), backing), TEXT, places)
    assert scored == pytest.approx(backing.log_probs(TEXT.tolist())[places - 1, TEXT[places]].tolist(), abs=1e-5)


def ending(seed: int) -> OfTable:
    return OfTable(seed=seed, vocabulary=VOCABULARY, ends=True)


def ends_of(backing: OfTable) -> list[int]:
    """The greedy tokens until the end of the text, which is 0; none if there are more than 6."""
    text = TEXT.tolist()
    while len(text) < len(TEXT) + 6 and 0 not in text[len(TEXT) :]:
        text.append(int(backing.log_probs(text)[-1].argmax()))
    return text[len(TEXT) :] if 0 in text[len(TEXT) :] else []


# Bounds of lists


@st.composite
def lists(draw: st.DrawFn) -> tuple[Any, int, int, dict[int, float]]:
    """Log-probabilities, a token, a count k, and what a server lists: the k likeliest and the token itself."""
    logits = np.array(draw(st.lists(st.floats(-8, 0, width=32), min_size=6, max_size=12)))
    row_V = logits - np.logaddexp.reduce(logits)
    count, token = draw(st.integers(1, len(row_V))), draw(st.integers(0, len(row_V) - 1))
    order = np.argsort(-row_V, kind="stable")[:count].tolist()
    return row_V, token, count, {other: float(row_V[other]) for other in (*order, token)}


@given(lists(), st.data())
def test_bounds_of_lists_hold_whatever_is_added_or_lost(given: Any, data: st.DataObject) -> None:
    """The k likeliest, the token itself, one of two with the same name: the rest is no less than what is left out."""
    row_V, token, count, listed = given
    shared = data.draw(st.sampled_from([None, *range(len(row_V) - 1)]))
    known: list[tuple[int | None, float]] = [*listed.items()]
    if shared is not None:  # two tokens share a name: one of them is lost, and the id of the other is not known
        both = [other for other in (shared, shared + 1) if other in listed]
        lost = data.draw(st.sampled_from(both)) if len(both) == 2 else None
        known = [(None if other in both else other, value) for other, value in listed.items() if other != lost]
    found = build_prediction(token, float(row_V[token]), data.draw(st.permutations(known)), count)
    for other in range(len(row_V)):
        value = found.listed(other)
        assert value is None or value == pytest.approx(row_V[other], abs=1e-5)
        assert value is not None or row_V[other] <= found.rest + 1e-5
    assert found.listed(token) == pytest.approx(row_V[token], abs=1e-5)


@given(lists())
def test_lists_of_ids_bound_as_tightly_as_they_can(given: Any) -> None:
    """r = min(the k-th likeliest, 1 - sum of those that are listed)"""
    row_V, token, count, listed = given
    found = build_prediction(token, float(row_V[token]), [*listed.items()], count)
    left = np.log(max(0.0, 1 - np.exp([*listed.values()]).sum()) + 1e-6)
    assert np.exp(found.rest) == pytest.approx(np.exp(min(np.sort(row_V)[-count], left)), abs=1e-6)


def test_a_name_of_two_tokens_is_noticed_by_its_figures() -> None:
    """The token has -1, and the only entry of its name has the -3 of another: that one is of a token without a name."""
    found = build_prediction(7, -1.0, [(7, -3.0), (8, -0.6)], 2)
    assert found.listed(7) == -1.0
    assert found.rest >= -3.0


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 0.02, 5, "-1", [], {}, True, False, -(10**400)])
def test_what_is_no_log_probability(value: Any) -> None:
    with pytest.raises((ServerError, OverflowError)):
        parse_log_prob(value, "it")
    with pytest.raises((ServerError, OverflowError)):
        parse_log_probs([-1.0, value, -2.0], "it")


def test_what_is_one() -> None:
    values = [-2, -0.5, 0, 0.001, -math.inf]
    assert [parse_log_prob(value, "it") for value in values] == [-2, -0.5, 0, 0, -math.inf]
    assert parse_log_probs(values, "it").tolist() == [-2, -0.5, 0, 0, -math.inf]
    assert parse_log_probs([], "it").tolist() == []


# Answers of another form


def parsed(name: str) -> Iterator[tuple[str, JsonObject, Callable[[JsonObject], Any]]]:
    """What is asked in a way, the answer, and how it is read."""
    one = named(name)

    def written(answer: JsonObject, most: int) -> Any:
        return one.generated(answer, most), one.generated_text(answer), one.prompt_token_count(answer)

    asked: list[tuple[str, ApiRequest, Callable[[JsonObject], Any]]] = [
        (f"writing {most}", one.generation_request(TEXT, most), partial(written, most=most)) for most in (1, 3)
    ]
    if one.scores_prompts:
        places = np.arange(1, len(TEXT))
        scored = lambda answer: one.scored_log_probs(answer, TEXT, places)  # noqa: E731
        asked.append(("scoring", one.scoring_request(TEXT), scored))
    if one.max_chosen:
        chosen = lambda answer: one.chosen_log_probs(answer, [40])  # noqa: E731
        asked.append(("choosing", one.choice_request(TEXT, [40]), chosen))
    return ((what, answered(DIALECTS[name], request), parse) for what, request, parse in asked)


def places_of(value: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in inner:
        yield (step,)
        yield from ((step, *rest) for rest in places_of(one))


def inside(answer: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        answer = answer[step]
    return answer


def changed(answer: Any, path: tuple[Any, ...], new: Any) -> Any:
    """An answer with something else in one place; `...` takes it out."""
    other = copy.deepcopy(answer)
    part = inside(other, path[:-1])
    if new is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = new
    return other


@pytest.mark.parametrize("name", DIALECTS)
def test_whatever_an_answer_holds_it_is_read_or_refused(name: str) -> None:
    """Every place of every answer, with something else in it: an error that says so, or figures."""
    for what, answer, parse in parsed(name):
        parse(answer)
        for path in [*places_of(answer)][:: 1 if "RALM_FUZZ" in os.environ else 3]:
            for new in (..., None, "x", [], {}, 0.5, math.nan, [None], {"a": None}, 10**400):
                try:
                    parse(changed(answer, path, new))
                except RalmError as error:
                    assert str(error), (what, path, new)  # noqa: PT017
                except Exception as error:
                    raise AssertionError((what, path, new)) from error


FIGURES: dict[str, tuple[Any, ...]] = {
    "echo": ("choices", 0, "logprobs", "token_logprobs", 3),
    "vllm": ("choices", 0, "prompt_logprobs", 3, str(TEXT[3]), "logprob"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("new", [None, math.nan, 0.5, "-1.0", ...], ids=str)
def test_a_figure_that_is_none_is_never_read(name: str, new: Any) -> None:
    """A log-probability of a prompt's token that is not there, or no number, or above 0."""
    one = named(name)
    answer = changed(answered(DIALECTS[name], one.scoring_request(TEXT)), FIGURES[name], new)
    with pytest.raises(ServerError):
        one.scored_log_probs(answer, TEXT, np.array([9]))


LISTS: dict[str, list[tuple[Any, ...]]] = {
    "echo": [("choices", 0, "logprobs", key) for key in ("tokens", "token_logprobs", "top_logprobs")],
    "vllm": [("choices", 0, "prompt_logprobs")],
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("change", ["one less", "one more", "shifted", "another token"])
def test_log_probabilities_of_other_tokens_are_refused(name: str, change: str) -> None:
    one = named(name)
    answer = answered(DIALECTS[name], one.scoring_request(TEXT))
    tokens = TEXT.copy()
    if change == "another token":
        tokens[4] = tokens[4] + 1
    else:
        for path in LISTS[name]:
            told: list[Any] = inside(answer, path)
            new = {"one less": told[:-1], "one more": [*told, told[-1]], "shifted": [*told[1:], told[-1]]}[change]
            answer = changed(answer, path, new)
    with pytest.raises(ServerError):
        one.scored_log_probs(answer, tokens, np.array([9]))


# Names and prompts


def test_names_of_tokens() -> None:
    names = ServerTokenNames(TABLE.tokenizer, VOCABULARY)
    assert names.id_of("token_id:17") == 17
    assert names.id_of("T") == TEXT[0]
    assert names.id_of("") is names.id_of("Th") is names.id_of("\ufffd") is names.id_of("bytes:\\xe2") is None


def test_a_server_that_puts_a_bos_before_texts() -> None:
    plain = backend_named("completions", TABLE, 5, as_ids=False)
    begins = replace(plain, config=replace(plain.config, begin=1))
    assert begins.encode(np.append(1, TEXT)) == "The list type"
    with pytest.raises(ServerError, match="read with `bos` always"):
        begins.encode(TEXT)
    assert plain.encode(TEXT) == "The list type"
    assert named("completions").encode(TEXT) == TEXT.tolist()


def test_texts_that_are_tokenised_again_end_only_where_nothing_is_cut() -> None:
    one = named("text")
    answer: JsonObject = {"choices": [{"text": "abcdef", "finish_reason": "stop"}]}
    tokens = TABLE.tokenizer.encode("abcdef").tolist()
    assert [found.token for found in one.generated(answer, 4)] == tokens[:4]
    assert [found.token for found in one.generated(answer, 6)] == tokens
    assert [found.token for found in one.generated(answer, 7)] == [*tokens, END]
    cut = json.loads(json.dumps(answer).replace("stop", "length"))
    assert [found.token for found in one.generated(cut, 7)] == tokens
