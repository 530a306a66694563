"""Fields that clients send by default: those that change nothing pass, and those that would make it another answer are
rejected by their name."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ralm.serving.requests import TextRequest
from tests.serving.served import events_of

SAID: list[dict[str, Any]] = [{"role": "user", "content": "Who sings in the sea?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The sea"},
    "/v1/chat/completions": {"messages": SAID},
}


@pytest.fixture(scope="module")
def client(chat_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=chat_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def usual(client: httpx.Client) -> dict[str, Any]:
    """The choices of the answer at each path if nothing else is sent."""
    return {path: answer(client, path, {}).json()["choices"] for path in BODIES}


def answer(client: httpx.Client, path: str, more: dict[str, Any]) -> httpx.Response:
    return client.post(path, json={"model": "tiny-chat", "max_tokens": 4, "seed": 1, **BODIES[path], **more})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "more",
    [
        *({name: value} for name, values in TextRequest.without_effect.items() for value in [None, *(values or ())]),
        {"metadata": {"run": "1"}, "prediction": {"type": "content", "content": "a"}},
        {"service_tier": "flex", "store": True},
        *({"top_k": value} for value in (-1, 0, None)),
        {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0, "n": 1},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"parallel_tool_calls": True, "user": "me", "prompt_cache_key": "a", "safety_identifier": "b"},
        {"guided_json": None, "prompt_logprobs": None, "unknown": None, "stop": None, "logprobs": None, "ralm": None},
    ],
)  # fmt: skip
def test_what_changes_nothing_passes(
    client: httpx.Client, usual: dict[str, Any], path: str, more: dict[str, Any]
) -> None:
    answered = answer(client, path, more)
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"] == usual[path]


def test_a_seed_of_null_and_logprobs_of_zero_pass(client: httpx.Client) -> None:
    for more in ({"seed": None}, {"top_logprobs": 0}):
        assert answer(client, "/v1/chat/completions", more).status_code == 200
    assert answer(client, "/v1/completions", {"n": 2, "best_of": 1}).status_code == 200


@pytest.mark.parametrize("more", [{"name": None}, {"name": "Ann"}, {"cache_control": {"a": 1}}, {"\u00e4\n": 1}])
def test_a_message_is_its_role_and_its_content(
    client: httpx.Client, usual: dict[str, Any], more: dict[str, Any]
) -> None:
    answered = answer(client, "/v1/chat/completions", {"messages": [{**SAID[0], **more}]})
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"] == usual["/v1/chat/completions"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "more",
    [
        {"best_of": 3}, {"chat_template_kwargs": {"enable_thinking": False}}, {"frequency_penalty": 0.1},
        {"ignore_eos": True}, {"length_penalty": 2}, {"logit_bias": {"5": 1}}, {"min_p": 0.1}, {"min_tokens": 3},
        {"presence_penalty": 1}, {"repetition_penalty": 1.1}, {"response_format": {"type": "json_object"}},
        {"stop_token_ids": [7]}, {"tool_choice": "required"}, {"use_beam_search": True}, {"suffix": "."},
        {"tools": [{"type": "function", "function": {"name": "weather"}}]}, {"reasoning_effort": "high"},
        {"verbosity": "low"}, {"web_search_options": {}},
        {"modalities": ["text", "audio"]}, {"audio": {"voice": "ash"}},
    ],
)  # fmt: skip
def test_what_makes_another_answer_is_rejected_by_name(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    [name], answered = more, answer(client, path, more)
    assert answered.status_code == 400
    assert answered.json()["error"]["param"] == name
    assert answered.json()["error"]["message"].startswith(f"`{name}` is not supported: leave it out")


TASK = "### Task:\nGenerate a concise title.\n### Chat History:\n<chat_history>\nUSER: Who sings?\n</chat_history>"
USAGE = {"include_usage": True}
OPENAI = {"User-Agent": "OpenAI/Python 3.57.0", "Accept": "application/json", "X-Stainless-Retry-Count": "0"}
AIOHTTP = {"User-Agent": "Python/3.11 aiohttp/3.14.5", "Accept-Encoding": "gzip, deflate, br"}
RECORDED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "curl 7.88.1": ({"User-Agent": "curl/7.88.1", "Accept": "*/*"}, {"stream": True}),
    "LiteLLM 1.110.2, stream": (OPENAI, {"stream": True, "stream_options": USAGE}),
    "LlamaIndex OpenAILike 0.8.1, stream": (OPENAI, {"stream": True, "temperature": 0.0}),
    "Open WebUI 0.12.4, usage": (AIOHTTP, {"stream": True, "stream_options": USAGE}),
    "Open WebUI 0.12.4, title": (AIOHTTP, {"messages": [{"role": "user", "content": TASK}], "stream": False}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_requests_of_clients_are_answered(client: httpx.Client, name: str) -> None:
    headers, body = RECORDED[name]
    body = {"model": "tiny-chat", "messages": SAID, "temperature": 0, "max_tokens": 8, **body}
    answered = client.post("/v1/chat/completions", headers=headers, json=body)
    events = events_of(answered.text) if body["stream"] else [answered.json()]
    pieces = [one.get("message") or one["delta"] for event in events for one in event["choices"]]
    [choice] = client.post("/v1/chat/completions", json={**body, "stream": False}).json()["choices"]
    assert "".join(one.get("content") or "" for one in pieces) == choice["message"]["content"] != ""
