"""The imitated providers: their log-probabilities are those of the model behind them, their faults come as told."""

import http.client
import json
import math
import threading
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest

from ralm.lm.registry import load_local_model
from ralm.records import ScoringSequence
from tests.api.backings import Backing, OfModel, OfTable
from tests.api.dialects.base import Dialect, chat_text
from tests.api.dialects.llamacpp import LlamaCpp
from tests.api.dialects.llamacpp_python import LlamaCppPython
from tests.api.dialects.ollama import Ollama
from tests.api.dialects.openai import QUOTA_USED_UP, OpenAI
from tests.api.dialects.sglang import SGLang
from tests.api.dialects.text_only import TextOnly
from tests.api.dialects.tgi import TGI
from tests.api.dialects.vllm import VLLM
from tests.api.faults import (
    BeginAdded,
    Cut,
    EchoIgnored,
    Fault,
    HtmlPage,
    InTheMiddle,
    NoFirstNull,
    NotJson,
    OneLong,
    OneShort,
    SameText,
    Slow,
    Status,
    Swapped,
    Ties,
    http_date,
)
from tests.api.replies import Reply
from tests.api.scripted_server import Request, ScriptedServer

TABLE = OfTable(seed=3)
TEXT = "The list type"
TOKENS = TABLE.tokenizer.encode(TEXT).tolist()
SCORED = {"prompt": TOKENS, "max_tokens": 0, "echo": True, "logprobs": 2}


def post(server: ScriptedServer, path: str, body: Any, key: str | None = None) -> Any:
    """The JSON of an answer with status 200."""
    status, _, answer = ask(server, "POST", path, {"model": server.model, **body}, key)
    assert status == 200, answer
    return answer


def get(server: ScriptedServer, path: str) -> Any:
    status, _, answer = ask(server, "GET", path)
    assert status == 200, answer
    return answer


def refused(server: ScriptedServer, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    status, _, answer = ask(server, "POST", path, {"model": server.model, **body}, key)
    return status, answer


def ask(
    server: ScriptedServer, method: str, path: str, body: Any = None, key: str | None = None
) -> tuple[int, http.client.HTTPMessage, Any]:
    connection = HTTPConnection(server.root.removeprefix("http://"))
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        raw = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(raw) if is_json else raw
    finally:
        connection.close()


def own(tokens: list[int], backing: Backing = TABLE) -> list[float | None]:
    """The log-probability of each token, None for the first."""
    rows_NV = backing.log_probs(tokens)
    return [None, *(float(row_V[token]) for row_V, token in zip(rows_NV, tokens[1:], strict=False))]


def greedy(tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens after a text."""
    written = list(tokens)
    for _ in range(count):
        written.append(int(TABLE.log_probs(written)[-1].argmax()))
    return written[len(tokens) :]


def top(tokens: list[int], count: int) -> list[int]:
    """The likeliest next tokens after a text."""
    return [int(token) for token in np.argsort(-TABLE.log_probs(tokens)[-1])[:count]]


# The models behind a server


def test_a_local_model_gives_the_log_probabilities_that_it_scores_with() -> None:
    model = load_local_model("ralm-tiny")
    tokens = model.tokenizer.encode("The list type of Python is é and 中.")
    [scored] = model.score([ScoringSequence(tokens, np.arange(1, len(tokens)))])
    backing = OfModel(model, kept=2)
    for length in (len(tokens), 3, len(tokens) - 1):
        assert own(tokens[:length].tolist(), backing)[1:] == pytest.approx(scored[: length - 1].tolist(), abs=1e-4)
    other = np.concatenate([tokens[:2], tokens[4:]])
    [scored] = model.score([ScoringSequence(other, np.arange(1, len(other)))])
    assert own(other.tolist(), backing)[1:] == pytest.approx(scored.tolist(), abs=1e-4)
    assert b"".join(map(backing.piece, tokens.tolist())).decode() == "The list type of Python is é and 中."
    assert backing.piece(0) == b"<|endoftext|>"


def test_a_table_depends_on_the_last_three_tokens_and_the_seed() -> None:
    rows_NV = TABLE.log_probs([5, 6, 7, 8])
    assert np.allclose(np.logaddexp.reduce(rows_NV, axis=1), 0, atol=1e-5)
    assert np.array_equal(rows_NV[-1], TABLE.log_probs([9, 6, 7, 8])[-1])
    assert not np.allclose(rows_NV[-1], TABLE.log_probs([5, 9, 7, 8])[-1])
    assert not np.allclose(rows_NV[-1], OfTable(seed=4).log_probs([5, 6, 7, 8])[-1])
    assert np.array_equal(rows_NV, OfTable(seed=3).log_probs([5, 6, 7, 8]))


def test_a_table_is_a_language_model() -> None:
    tokens = np.array(TOKENS)
    [scored] = TABLE.score([ScoringSequence(tokens, np.array([1, 4]))])
    assert scored.tolist() == [own(TOKENS)[1], own(TOKENS)[4]]
    [every_V] = TABLE.continuations().next_tokens([tokens]).log_probs_BC
    assert np.array_equal(every_V, TABLE.log_probs(TOKENS)[-1])
    assert TABLE.tokenizer.decode(TABLE.tokenizer.encode("a\nB ~")) == "a\nB ~"


# OpenAI


@pytest.mark.parametrize("prompt", [TEXT, TOKENS, [TEXT], [TOKENS]])
def test_an_echoed_prompt_has_its_log_probabilities(prompt: Any) -> None:
    with ScriptedServer(TABLE, OpenAI()) as server:
        answer = post(server, "/v1/completions", {**SCORED, "prompt": prompt})
    [choice] = answer["choices"]
    told = choice["logprobs"]
    assert choice["text"] == TEXT
    assert told["tokens"] == list(TEXT)
    assert told["token_logprobs"] == pytest.approx(own(TOKENS))
    assert told["top_logprobs"][0] is None
    expected = {*top(TOKENS[:4], 2), TOKENS[4]}
    assert {TABLE.tokenizer.token_of(text) for text in told["top_logprobs"][4]} == expected
    assert answer["usage"] == {"prompt_tokens": 13, "completion_tokens": 0, "total_tokens": 13}


def test_new_tokens_are_the_likeliest_at_temperature_0() -> None:
    with ScriptedServer(TABLE, OpenAI()) as server:
        asked = {"prompt": TOKENS, "max_tokens": 4, "temperature": 0, "logprobs": 3}
        [choice] = post(server, "/v1/completions", asked)["choices"]
    new = greedy(TOKENS, 4)
    assert choice["text"] == TABLE.tokenizer.decode(np.array(new))
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(own([*TOKENS, *new])[-4:])
    assert len(choice["logprobs"]["top_logprobs"][0]) == 3


def test_a_chat_lists_the_likeliest_tokens_with_their_bytes() -> None:
    messages = [{"role": "user", "content": "a question"}]
    prompt = TABLE.tokenizer.encode(chat_text(messages)).tolist()
    with ScriptedServer(TABLE, OpenAI()) as server:
        asked = {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 20}
        [choice] = post(server, "/v1/chat/completions", asked)["choices"]
        bare = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    first = choice["logprobs"]["content"][0]
    assert bytes(first["bytes"]).decode() == first["token"] == TABLE.tokenizer.spellings[greedy(prompt, 1)[0]]
    assert [TABLE.tokenizer.token_of(one["token"]) for one in first["top_logprobs"]] == top(prompt, 20)
    log_probs_V = TABLE.log_probs(prompt)[-1]
    assert [one["logprob"] for one in first["top_logprobs"]] == pytest.approx(log_probs_V[top(prompt, 20)].tolist())
    assert bare["choices"][0]["logprobs"] is None


def test_parts_of_characters_are_called_by_their_bytes() -> None:
    model = load_local_model("ralm-tiny")
    tokens = model.tokenizer.encode("é中").tolist()
    with ScriptedServer(OfModel(model), OpenAI()) as server:
        told = post(server, "/v1/completions", {**SCORED, "prompt": tokens})["choices"][0]["logprobs"]
    assert told["tokens"][-1].startswith("bytes:\\x")


def test_vllm_names_parts_of_characters_by_what_they_end() -> None:
    model = load_local_model("ralm-tiny")
    tokens = model.tokenizer.encode("a 中 b").tolist()
    with ScriptedServer(OfModel(model), VLLM()) as server:
        told = post(server, "/v1/completions", {**SCORED, "prompt": tokens})["choices"][0]["logprobs"]
    assert "".join(told["tokens"]) == "a 中 b"
    assert told["tokens"].count("") == 2


@pytest.mark.parametrize(
    ("dialect", "path", "body", "status", "said"),
    [
        (OpenAI(), "/v1/completions", {**SCORED, "logprobs": 6}, 400, "logprobs"),
        (OpenAI(echoes=False), "/v1/completions", SCORED, 400, "at the same time"),
        (OpenAI(), "/v1/completions", {"model": "gone", "prompt": "a"}, 404, "model_not_found"),
        (OpenAI(), "/v1/completions", {"prompt": "a" * 250, "max_tokens": 9}, 400, "maximum context length is 256"),
        (OpenAI(), "/v1/chat/completions", {"messages": [], "top_logprobs": 2}, 400, "only allowed when"),
        (OpenAI(), "/v1/chat/completions", {"messages": [], "logprobs": True, "top_logprobs": 21}, 400, "equal to 20"),
        (OpenAI(), "/generate", {}, 404, "Invalid URL"),
        (VLLM(), "/v1/completions", {**SCORED, "logprobs": 21}, 400, "sample logprobs of 21, which is greater"),
        (VLLM(), "/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, 400, "prompt logprobs of 21"),
        (VLLM(), "/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        (VLLM(), "/v1/completions", {"prompt": "a", "logprob_token_ids": [1]}, 400, "`logprobs` must be set"),
        (VLLM(), "/v1/completions", {**SCORED, "logprob_token_ids": [1]}, 400, "not supported when `echo=True`"),
        (VLLM(), "/v1/completions", {"prompt": "a" * 257}, 400, "input_tokens, value=257"),
        (VLLM(), "/v1/completions", {**SCORED, "prompt": "a" * 256}, 400, "decoder prompt (length 256)"),
        (VLLM(), "/v1/completions", {"prompt": "a", "logprobs": 0, "logprob_token_ids": [1] * 129}, 400, "length 129"),
        (VLLM(), "/v1/completions", {"prompt": "a", "logprobs": 0, "logprob_token_ids": [128]}, 400, "out-of-vocab"),
        (VLLM(template=False), "/v1/chat/completions", {"messages": []}, 400, "chat template"),
        (VLLM(), "/v1/completions", {"model": "gone", "prompt": "a"}, 404, "NotFoundError"),
        (LlamaCpp(), "/completion", {"prompt": "a" * 256}, 400, "exceed_context_size_error"),
        (LlamaCpp(), "/completion", {"prompt": [999]}, 400, "invalid tokens"),
        (LlamaCpp(), "/completion", {"prompt": []}, 400, "must not be empty"),
        (VLLM(), "/v1/completions", {"prompt": [[128]]}, 400, "Token id 128 is out of vocabulary"),
        (VLLM(), "/v1/completions", {"prompt": ""}, 400, "must be provided and non-empty"),
        (VLLM(), "/v1/completions", {"prompt": [[]]}, 400, "cannot be empty"),
        (LlamaCpp(), "/v1/chat/completions", {"messages": [], "top_logprobs": 2}, 400, "requires logprobs"),
        (LlamaCpp(echo="refused"), "/v1/completions", SCORED, 500, "Only no echo is supported"),
        (LlamaCppPython(), "/v1/completions", SCORED, 500, "string_type"),
        (LlamaCppPython(), "/v1/completions", {"prompt": ["a", "b"]}, 500, "internal_server_error"),
        (LlamaCppPython(), "/v1/completions", {"prompt": "a" * 256}, 400, "context_length_exceeded"),
        (LlamaCppPython(logits_all=False), "/v1/completions", {"prompt": "a", "logprobs": 1}, 500, "logits_all=False"),
        (SGLang(), "/generate", {"text": "a" * 250, "sampling_params": {"max_new_tokens": 9}}, 400, "259 tokens"),
        (TGI(), "/generate", {"inputs": "a", "parameters": {"max_new_tokens": 0}}, 422, "strictly positive"),
        (TGI(), "/generate", {"inputs": "a", "parameters": {"top_n_tokens": 6}}, 422, "<= 5"),
        (TGI(), "/generate", {"inputs": "a" * 250, "parameters": {"max_new_tokens": 9}}, 422, "must be <= 256"),
        (Ollama(), "/api/generate", {"prompt": "a", "stream": False, "top_logprobs": 21}, 400, "between 0 and 20"),
        (Ollama(), "/api/generate", {"model": "gone", "prompt": "a"}, 404, "not found"),
        (
            Ollama(),
            "/api/generate",
            {"raw": True, "prompt": "a" * 256, "truncate": False, "stream": False},
            400,
            "exceeds the context",
        ),
        (TextOnly(refuses=True), "/v1/completions", SCORED, 400, "not supported by this model"),
        (TextOnly(refuses=True), "/v1/chat/completions", {"messages": [], "logprobs": True}, 400, "not supported"),
    ],
)
def test_what_a_provider_refuses(dialect: Dialect, path: str, body: Any, status: int, said: str) -> None:
    with ScriptedServer(TABLE, dialect) as server:
        refusal = refused(server, path, body)
    assert refusal[0] == status
    assert said in json.dumps(refusal[1])


# vLLM


def test_vllm_tells_the_tokens_of_the_prompt_by_id() -> None:
    with ScriptedServer(TABLE, VLLM()) as server:
        asked = {"prompt": TOKENS, "max_tokens": 1, "prompt_logprobs": 3, "temperature": 0}
        [choice] = post(server, "/v1/completions", asked)["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"][0] is None
    for place in range(1, len(TOKENS)):
        told = choice["prompt_logprobs"][place]
        row_V = TABLE.log_probs(TOKENS[:place])[-1]
        assert next(iter(told)) == str(TOKENS[place])
        assert {int(token) for token in told} == {TOKENS[place], *top(TOKENS[:place], 3)}
        assert all(one["logprob"] == pytest.approx(float(row_V[int(token)])) for token, one in told.items())
        assert [one["rank"] for one in list(told.values())[-2:]] == [2, 3] or told[str(TOKENS[place])]["rank"] <= 3


def test_vllm_echo_tells_the_actual_token_even_at_0_and_names_ids() -> None:
    with ScriptedServer(TABLE, VLLM()) as server:
        asked = {**SCORED, "logprobs": 0, "return_tokens_as_token_ids": True}
        answer = post(server, "/v1/completions", asked)
    [choice] = answer["choices"]
    names = [f"token_id:{token}" for token in TOKENS]
    assert answer["usage"]["completion_tokens"] == 1
    assert choice["logprobs"]["tokens"] == names
    assert [list(one) for one in choice["logprobs"]["top_logprobs"][1:]] == [[name] for name in names[1:]]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(own(TOKENS))
    assert [
        one[str(token)]["logprob"] for one, token in zip(choice["prompt_logprobs"][1:], TOKENS[1:], strict=True)
    ] == (pytest.approx(own(TOKENS)[1:]))


def test_vllm_tells_chosen_ids_in_the_place_of_new_tokens() -> None:
    asked = {"prompt": TOKENS, "max_tokens": 1, "temperature": 0, "logprobs": 1, "logprob_token_ids": [50, 60]}
    asked["return_tokens_as_token_ids"] = True
    with ScriptedServer(TABLE, VLLM()) as server:
        [told] = post(server, "/v1/completions", asked)["choices"][0]["logprobs"]["top_logprobs"]
    row_V = TABLE.log_probs(TOKENS)[-1]
    expected = [greedy(TOKENS, 1)[0], 50, 60]
    assert told == pytest.approx({f"token_id:{token}": float(row_V[token]) for token in expected})
    with ScriptedServer(TABLE, VLLM(knows_token_ids=False)) as server:
        [told] = post(server, "/v1/completions", asked)["choices"][0]["logprobs"]["top_logprobs"]
    assert list(told) == [f"token_id:{expected[0]}"]


# llama.cpp


@pytest.mark.parametrize("prompt", [TEXT, TOKENS, [TOKENS[0], TEXT[1:]], [TEXT[:2], *TOKENS[2:]]])
def test_llamacpp_tells_as_many_likeliest_tokens_as_there_are(prompt: Any) -> None:
    with ScriptedServer(TABLE, LlamaCpp()) as server:
        asked = {"prompt": prompt, "n_predict": 1, "n_probs": 500, "temperature": 0, "return_tokens": True}
        answer = post(server, "/completion", asked)
    [entry] = answer["completion_probabilities"]
    assert answer["tokens"] == [entry["id"]] == greedy(TOKENS, 1)
    assert answer["tokens_evaluated"] == 13
    told = {one["id"]: one["logprob"] for one in entry["top_logprobs"]}
    assert [told[token] for token in range(128)] == pytest.approx(TABLE.log_probs(TOKENS)[-1].tolist())
    assert bytes(entry["bytes"]).decode() == entry["token"]


def test_llamacpp_tells_a_forced_token_as_it_was_before_the_bias() -> None:
    with ScriptedServer(TABLE, LlamaCpp()) as server:
        asked = {"prompt": TOKENS, "n_predict": 1, "n_probs": 1, "temperature": 0, "logit_bias": [[70, 100]]}
        [entry] = post(server, "/completion", asked)["completion_probabilities"]
    assert (entry["id"], entry["logprob"]) == (70, pytest.approx(float(TABLE.log_probs(TOKENS)[-1][70])))
    assert [one["id"] for one in entry["top_logprobs"]] == top(TOKENS, 1)


def test_llamacpp_ignores_echo_and_writes_one_token_where_none_was_asked() -> None:
    with ScriptedServer(TABLE, LlamaCpp()) as server:
        [choice] = post(server, "/v1/completions", {**SCORED, "temperature": 0, "model": "any"})["choices"]
        several = post(server, "/completion", {"prompt": [TOKENS, TEXT], "n_predict": 1})
        empty = post(server, "/completion", {"prompt": ""})
    assert choice["text"] == TABLE.tokenizer.decode(np.array(greedy(TOKENS, 1)))
    assert [one["id"] for one in choice["logprobs"]["content"]] == greedy(TOKENS, 1)
    assert [one["index"] for one in several] == [0, 1]
    assert (empty["content"], empty["tokens_predicted"]) == ("", 0)


def test_llamacpp_tells_its_lengths_and_tokens() -> None:
    with ScriptedServer(OfTable(seed=3, begins=True), LlamaCpp(), key="secret") as server:
        assert refused(server, "/tokenize", {"content": TEXT})[0] == 401
        tokenized = [
            post(server, "/tokenize", {"content": TEXT, **options}, "secret")["tokens"]
            for options in ({}, {"add_special": True}, {"with_pieces": True})
        ]
        text = post(server, "/detokenize", {"tokens": TOKENS}, "secret")["content"]
        assert post(server, "/completion", {"prompt": TEXT, "n_predict": 1}, "secret")["tokens_evaluated"] == 14
    assert tokenized[:2] == [TOKENS, [1, *TOKENS]]
    assert tokenized[2][0] == {"id": TOKENS[0], "piece": "T"}
    assert text == TEXT
    with ScriptedServer(TABLE, LlamaCpp()) as server:
        assert get(server, "/props")["default_generation_settings"]["n_ctx"] == 256
        assert get(server, "/v1/models")["data"][0]["meta"]["n_vocab"] == 128


def test_llamacpp_tells_no_token_after_which_a_character_is_unfinished() -> None:
    model = load_local_model("ralm-tiny")
    first = int(model.tokenizer.encode("中")[0])
    asked = {"prompt": "a", "n_predict": 1, "n_probs": 1, "temperature": 0, "return_tokens": True}
    with ScriptedServer(OfModel(model), LlamaCpp()) as server:
        forced = post(server, "/completion", {**asked, "logit_bias": [[first, 1000]]})
        [ended] = post(server, "/completion", {**asked, "logit_bias": [[0, 1000]]})["completion_probabilities"]
        openai = post(server, "/v1/completions", {**asked, "logprobs": 1, "logit_bias": [[first, 1000]]})
    assert forced["tokens"] == [first]
    assert "completion_probabilities" not in forced
    assert openai["choices"][0]["logprobs"] is None
    assert (ended["id"], ended["token"], ended["bytes"]) == (0, "", [])
    with ScriptedServer(OfTable(seed=3), LlamaCpp()) as server:
        two_bytes = {**asked, "n_predict": 2, "logit_bias": [[127, 1000]]}
        entries = post(server, "/completion", two_bytes)["completion_probabilities"]
    assert [entry["bytes"] for entry in entries] == [[195, 157]] * 2


# llama-cpp-python


def test_llamacpp_python_echo_tells_each_token_after_itself() -> None:
    asked = {"prompt": TEXT, "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
    new = greedy(TOKENS, 2)
    with ScriptedServer(TABLE, LlamaCppPython()) as server:
        [choice] = post(server, "/v1/completions", asked)["choices"]
        [bare] = post(server, "/v1/completions", {**asked, "echo": False})["choices"]
    written = [*TOKENS, *new]
    rows_NV = TABLE.log_probs(written)
    wrong = [float(row_V[token]) for row_V, token in zip(rows_NV, written, strict=True)]
    assert choice["text"] == TEXT + TABLE.tokenizer.decode(np.array(new))
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([None, *wrong[1:-1]])
    assert len(choice["logprobs"]["tokens"]) == len(TOKENS) + 1
    assert bare["logprobs"]["token_logprobs"] == pytest.approx(own(written)[-2:])


def test_llamacpp_python_echo_is_right_behind_a_bos() -> None:
    begins = OfTable(seed=3, begins=True)
    asked = {"prompt": TEXT, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    with ScriptedServer(begins, LlamaCppPython()) as server:
        [choice] = post(server, "/v1/completions", asked)["choices"]
    told = choice["logprobs"]
    assert told["tokens"][:-1] == list(TEXT)
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:-1] == pytest.approx(own([1, *TOKENS])[2:])


# SGLang


@pytest.mark.parametrize("start", [0, 5])
def test_sglang_tells_the_prompt_from_a_place_on(start: int) -> None:
    asked = {
        "input_ids": TOKENS,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 2,
        "token_ids_logprob": [60, 50],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    }
    with ScriptedServer(TABLE, SGLang()) as server:
        answer = post(server, "/generate", asked)
    meta = answer["meta_info"]
    assert [one[0] for one in meta["input_token_logprobs"]] == pytest.approx([None, *own(TOKENS)[start + 1 :]])
    assert [one[1:] for one in meta["input_token_logprobs"]] == [[token, None] for token in TOKENS[start:]]
    assert meta["input_top_logprobs"][0] is meta["input_token_ids_logprobs"][0] is None
    assert [one[1] for one in meta["input_top_logprobs"][3]] == top(TOKENS[: start + 3], 2)
    row_V = TABLE.log_probs(TOKENS[: start + 3])[-1]
    assert meta["input_token_ids_logprobs"][3] == [
        [pytest.approx(float(row_V[60])), 60, None],
        [pytest.approx(float(row_V[50])), 50, None],
    ]
    assert answer["output_ids"] == [meta["output_token_logprobs"][0][1]] == greedy(TOKENS, 1)
    assert [one[1] for one in meta["output_top_logprobs"][0]] == top(TOKENS, 2)
    assert [one[1] for one in meta["output_token_ids_logprobs"][0]] == [60, 50]


def test_sglang_echo_tells_the_prompt_only_with_likeliest_tokens() -> None:
    with ScriptedServer(TABLE, SGLang()) as server:
        [told, nothing] = [
            post(server, "/v1/completions", {**SCORED, "max_tokens": 1, "logprobs": count})["choices"][0]
            for count in (1, 0)
        ]
    assert told["logprobs"]["token_logprobs"][:-1] == pytest.approx(own(TOKENS))
    assert nothing["text"].startswith(TEXT)
    assert len(nothing["logprobs"]["token_logprobs"]) == 1


# TGI, Ollama, texts alone


def test_tgi_tells_the_prompt_if_it_was_started_so() -> None:
    asked = {"inputs": TEXT, "parameters": {"max_new_tokens": 4, "decoder_input_details": True, "top_n_tokens": 3}}
    with ScriptedServer(TABLE, TGI()) as server:
        details = post(server, "/generate", asked)["details"]
        assert get(server, "/info")["max_total_tokens"] == 256
        assert [one["id"] for one in post(server, "/tokenize", {"inputs": TEXT})] == TOKENS
    with ScriptedServer(TABLE, TGI(prefill=False)) as server:
        assert post(server, "/generate", asked)["details"]["prefill"] == []
    assert [one["id"] for one in details["prefill"]] == TOKENS
    assert [one["logprob"] for one in details["prefill"]] == pytest.approx(own(TOKENS))
    assert [one["id"] for one in details["tokens"]] == greedy(TOKENS, 4)
    assert [one["id"] for one in details["top_tokens"][0]] == top(TOKENS, 3)


def test_ollama_tells_new_tokens_of_raw_texts() -> None:
    asked = {"prompt": TEXT, "raw": True, "logprobs": True, "top_logprobs": 3}
    asked["options"] = {"temperature": 0, "num_predict": 2}
    with ScriptedServer(TABLE, Ollama()) as server:
        answer = post(server, "/api/generate", {**asked, "stream": False})
        long = post(server, "/api/generate", {**asked, "prompt": "a" * 300, "stream": False})
    new = greedy(TOKENS, 2)
    assert answer["response"] == TABLE.tokenizer.decode(np.array(new))
    assert [one["logprob"] for one in answer["logprobs"]] == pytest.approx(own([*TOKENS, *new])[-2:])
    likeliest = [TABLE.tokenizer.token_of(one["token"]) for one in answer["logprobs"][0]["top_logprobs"]]
    assert likeliest == top(TOKENS, 3)
    assert long["prompt_eval_count"] == 255
    with ScriptedServer(TABLE, Ollama(knows_logprobs=False)) as server:
        assert "logprobs" not in post(server, "/api/generate", {**asked, "stream": False})


def test_a_server_of_texts_alone_ignores_that_more_is_asked() -> None:
    with ScriptedServer(TABLE, TextOnly()) as server:
        [choice] = post(server, "/v1/completions", SCORED)["choices"]
        asked = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 1}
        [chat] = post(server, "/v1/chat/completions", asked)["choices"]
    assert (choice["text"], choice["logprobs"], chat["logprobs"]) == (TEXT, None, None)


# Faults


def test_a_script_is_followed_in_order_and_then_all_is_well() -> None:
    faults = [Status(429, retry_after=2), None, Status(429, http_date(30)), Status(500), Status(503), HtmlPage(200)]
    with ScriptedServer(TABLE, OpenAI(), faults=faults) as server:
        get(server, "/v1/models")
        seen = [ask(server, "POST", "/v1/completions", {**SCORED, "model": "scripted"}) for _ in range(8)]
    assert [status for status, _, _ in seen] == [429, 200, 429, 500, 503, 200, 200, 200]
    assert seen[0][1]["Retry-After"] == "2"
    assert seen[0][2]["error"]["code"] == "rate_limit_exceeded"
    assert parsedate_to_datetime(seen[2][1]["Retry-After"]).tzinfo is not None
    assert seen[5][2].startswith(b"<html>")
    assert seen[1][2]["choices"] == seen[6][2]["choices"] == seen[7][2]["choices"]
    assert [request.number for request in server.posts] == list(range(8))
    assert list(server.times_asked.values()) == [8]


def test_a_script_may_be_a_function_of_the_request() -> None:
    def script(request: Request) -> Fault | None:
        return Status(429, body=QUOTA_USED_UP) if request.number >= 1 else None

    with ScriptedServer(TABLE, OpenAI(), faults=script) as server:
        assert refused(server, "/v1/completions", SCORED)[0] == 200
        status, answer = refused(server, "/v1/completions", SCORED)
    assert (status, answer["error"]["code"]) == (429, "insufficient_quota")


def test_answers_that_are_cut_or_no_json() -> None:
    with ScriptedServer(TABLE, OpenAI(), faults=[Cut(40), Cut(), NotJson(), HtmlPage()]) as server:
        with pytest.raises(http.client.IncompleteRead) as cut:
            post(server, "/v1/completions", SCORED)
        assert len(cut.value.partial) == 40
        with pytest.raises(http.client.RemoteDisconnected):
            post(server, "/v1/completions", SCORED)
        with pytest.raises(json.JSONDecodeError):
            post(server, "/v1/completions", SCORED)
        assert refused(server, "/v1/completions", SCORED)[0] == 502


def test_a_slow_answer_does_not_outlive_its_server() -> None:
    gone: list[type[BaseException]] = []

    def wait(server: ScriptedServer) -> None:
        try:
            post(server, "/v1/completions", SCORED)
        except (OSError, http.client.HTTPException) as error:
            gone.append(type(error))

    with ScriptedServer(TABLE, OpenAI(), faults=[Slow(600)]) as server:
        client = threading.Thread(target=wait, args=(server,))
        client.start()
        while server.most_at_once == 0:
            threading.Event().wait(0.001)
    client.join(timeout=20)
    assert len(gone) == 1


def told(fault: Fault, dialect: Dialect | None = None, **options: Any) -> Any:
    """What a completion says of an echoed prompt, with a fault."""
    with ScriptedServer(TABLE, dialect or OpenAI(), faults=[fault]) as server:
        return post(server, "/v1/completions", {**SCORED, **options})


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        (OneShort(), lambda log_probs: log_probs[:-1]),
        (OneLong(), lambda log_probs: [*log_probs, log_probs[-1]]),
        (NoFirstNull(), lambda log_probs: log_probs[1:]),
        (InTheMiddle(None), lambda log_probs: [*log_probs[:6], None, *log_probs[7:]]),
        (InTheMiddle(0.5), lambda log_probs: [*log_probs[:6], 0.5, *log_probs[7:]]),
    ],
)
def test_wrong_log_probabilities_of_the_prompt(
    fault: Fault, change: Callable[[list[float | None]], list[float | None]]
) -> None:
    expected = change(own(TOKENS))
    assert told(fault)["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(expected)
    [choice] = told(fault, VLLM(), return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected)
    with ScriptedServer(TABLE, SGLang(), faults=[fault]) as server:
        meta = post(server, "/generate", {"input_ids": TOKENS, "return_logprob": True, "logprob_start_len": 0})
    assert [one[0] for one in meta["meta_info"]["input_token_logprobs"]] == pytest.approx(expected)
    with ScriptedServer(TABLE, TGI(), faults=[fault]) as server:
        asked = {"inputs": TEXT, "parameters": {"decoder_input_details": True}}
        prefill = post(server, "/generate", asked)["details"]["prefill"]
    assert [one["logprob"] for one in prefill] == pytest.approx(expected)


def test_nan_in_the_middle() -> None:
    log_probs = told(InTheMiddle(math.nan))["choices"][0]["logprobs"]["token_logprobs"]
    assert [place for place, log_prob in enumerate(log_probs) if log_prob != log_prob] == [6]


def test_echo_ignored_and_a_bos_added() -> None:
    [ignored] = told(EchoIgnored())["choices"]
    assert (ignored["text"], ignored["logprobs"]["tokens"]) == ("", [])
    [begun] = told(BeginAdded())["choices"]
    assert begun["logprobs"]["token_logprobs"] == pytest.approx(own([0, *TOKENS]))


def test_ties_keep_the_sum_and_make_pairs_equal() -> None:
    with ScriptedServer(TABLE, LlamaCpp(), faults=[Ties()]) as server:
        asked = {"prompt": TOKENS, "n_predict": 1, "n_probs": 128}
        [entry] = post(server, "/completion", asked)["completion_probabilities"]
    log_probs = [one["logprob"] for one in entry["top_logprobs"]]
    assert log_probs[0::2] == log_probs[1::2]
    assert sum(map(math.exp, log_probs)) == pytest.approx(1, abs=1e-5)
    assert {entry["top_logprobs"][0]["id"], entry["top_logprobs"][1]["id"]} == set(top(TOKENS, 2))


@pytest.mark.parametrize(("dialect", "stays"), [(OpenAI(), 1), (VLLM(), 1), (SGLang(), 0)])
def test_a_dictionary_loses_one_of_two_tokens_with_the_same_text(dialect: Dialect, stays: int) -> None:
    both = top(TOKENS[:4], 2)
    listed = told(SameText(*both), dialect, logprobs=3)["choices"][0]["logprobs"]["top_logprobs"][4]
    whole = told(Fault(), dialect, logprobs=3)["choices"][0]["logprobs"]["top_logprobs"][4]
    assert len(listed) == len(whole) - 1
    assert TABLE.tokenizer.spellings[both[1]] not in listed
    expected = float(TABLE.log_probs(TOKENS[:4])[-1][both[stays]])
    assert listed[TABLE.tokenizer.spellings[both[0]]] == pytest.approx(expected)


def test_another_model_from_a_request_on() -> None:
    def script(request: Request) -> Fault | None:
        return Swapped() if request.number >= 1 else None

    with ScriptedServer(TABLE, OpenAI(), faults=script) as server:
        before, after = (post(server, "/v1/completions", SCORED) for _ in range(2))
    assert (before["system_fingerprint"], after["system_fingerprint"]) == ("fp_scripted", "fp_another")
    first, second = (one["choices"][0]["logprobs"]["token_logprobs"] for one in (before, after))
    assert first[1:] != pytest.approx(second[1:])
    assert told(Swapped(fingerprint=None))["system_fingerprint"] == "fp_scripted"


# What a server records


@pytest.mark.parametrize("dialect", [OpenAI(), VLLM(), LlamaCpp(), SGLang(), TGI(), TextOnly()])
def test_a_wrong_key_is_refused(dialect: Dialect) -> None:
    path, body = ("/generate", {"inputs": TEXT}) if isinstance(dialect, TGI) else ("/v1/completions", SCORED)
    with ScriptedServer(TABLE, dialect, key="sk-right-1234") as server:
        assert refused(server, path, body)[0] == 401
        status, answer = refused(server, path, body, "sk-wrong-9876")
        assert post(server, path, body, "sk-right-1234")
        assert [request.key for request in server.requests] == ["", "sk-wrong-9876", "sk-right-1234"]
    assert status == 401
    assert "sk-wrong-9876" not in json.dumps(answer)


def test_requests_are_recorded_with_their_bodies() -> None:
    with ScriptedServer(TABLE, OpenAI()) as server:
        for body in (SCORED, {**SCORED, "logprobs": 1}, SCORED):
            post(server, "/v1/completions", body)
        get(server, "/v1/models")
    assert [request.path for request in server.requests] == ["/v1/completions"] * 3 + ["/v1/models"]
    assert server.posts[1].body == {"model": "scripted", **SCORED, "logprobs": 1}
    assert server.times_asked[server.posts[0].asked] == 2
    assert server.posts[0].headers["content-type"] == "application/json"


def test_any_number_of_requests_is_under_way_at_once() -> None:
    everyone = threading.Barrier(8)

    class Together(Fault):
        def instead(self, failure: Callable[[int], Any]) -> Reply | None:
            everyone.wait(timeout=60)
            return None

    with ScriptedServer(TABLE, OpenAI(), faults=[Together()] * 8, delay=0.001) as server:
        clients = [threading.Thread(target=post, args=(server, "/v1/completions", SCORED)) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        post(server, "/v1/completions", SCORED)
    assert server.most_at_once == 8
    assert len(server.posts) == 9


def test_an_error_of_the_imitation_itself_is_not_lost() -> None:
    with pytest.raises(KeyError), ScriptedServer(TABLE, OpenAI()) as server, pytest.raises(http.client.HTTPException):
        post(server, "/v1/completions", {**SCORED, "prompt": "a\tb"})
