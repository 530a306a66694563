"""Fields that clients send by default: those that change nothing pass, a header names those that the answer does not
follow, and those that would make it another are rejected by their name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.lm.registry import ModelOptions, load_language_model
from ralm.serving.requests import _NO_CHANGE, _NOT_FOLLOWED
from ralm.serving.service import Service
from tests.chat_models import save_chat_model
from tests.serving.served import serving

SAID: list[dict[str, Any]] = [{"role": "user", "content": "Who sings in the sea?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The sea"},
    "/v1/chat/completions": {"messages": SAID},
}
NOT_STORED, HAS_ONE, OF_MESSAGES = (
    "answers are not stored",
    "this model has one",
    "a message is its role and its content",
)


@pytest.fixture(scope="module")
def client(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = save_chat_model(tmp_path_factory.mktemp("model") / "tiny-chat")
    model = load_language_model(str(folder), ModelOptions())
    with serving(Service(model, folders={"few": index})) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def answer(client: httpx.Client, path: str, more: dict[str, Any]) -> httpx.Response:
    return client.post(path, json={"model": "tiny-chat", "max_tokens": 4, "seed": 1, **BODIES[path], **more})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "more",
    [
        *({name: value} for name, values in _NO_CHANGE.items() for value in [None, *values]),
        *({name: value} for name, (values, _) in _NOT_FOLLOWED.items() for value in [None, *values]),
        *({"top_k": value} for value in (-1, 0, None)),
        {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0, "n": 1},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"parallel_tool_calls": True, "user": "me", "prompt_cache_key": "a", "safety_identifier": "b"},
        {"guided_json": None, "prompt_logprobs": None, "unknown": None, "stop": None, "logprobs": None, "ralm": None},
    ],
)  # fmt: skip
def test_what_changes_nothing_passes(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    answered = answer(client, path, more)
    assert answered.status_code == 200, answered.text
    assert "x-ralm-warning" not in answered.headers
    assert answered.json()["choices"] == answer(client, path, {}).json()["choices"]


def test_a_seed_of_null_and_logprobs_of_zero_pass(client: httpx.Client) -> None:
    for more in ({"seed": None}, {"top_logprobs": 0}, {"messages": [{**SAID[0], "name": None, "other": None}]}):
        answered = answer(client, "/v1/chat/completions", more)
        assert (answered.status_code, "x-ralm-warning" in answered.headers) == (200, False), answered.text
    assert answer(client, "/v1/completions", {"n": 2, "best_of": 1}).status_code == 200
    assert answer(client, "/v1/completions", {"n": 2, "best_of": 2}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metadata": {"run": "1"}}, f"`metadata`: {NOT_STORED}"),
        ({"prediction": {"type": "content", "content": "a"}}, "`prediction`: it saves no time here"),
        ({"reasoning_effort": "high"}, f"`reasoning_effort`: {HAS_ONE}"),
        ({"service_tier": "flex"}, "`service_tier`: there is one"),
        ({"store": True, "verbosity": "low"}, f"`store`: {NOT_STORED}; without `verbosity`: {HAS_ONE}"),
        ({"messages": [{**SAID[0], "name": "Ann"}]}, f"`messages.name`: {OF_MESSAGES}"),
        ({"messages": [{**SAID[0], "cache_control": {"a": 1}}]}, f"`messages.cache_control`: {OF_MESSAGES}"),
        ({"messages": [{**SAID[0], "\u00e4\n": 1}]}, f"`messages.?\\n`: {OF_MESSAGES}"),
    ],
)  # fmt: skip
def test_a_header_names_what_is_not_followed(
    client: httpx.Client, more: dict[str, Any], said: str, stream: bool
) -> None:
    answered = answer(client, "/v1/chat/completions", {**more, "stream": stream})
    assert answered.status_code == 200, answered.text
    assert answered.headers["x-ralm-warning"] == f"answered without {said}"
    if not stream:
        assert answered.json()["choices"] == answer(client, "/v1/chat/completions", {}).json()["choices"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "more",
    [
        {"best_of": 3}, {"chat_template_kwargs": {"enable_thinking": False}}, {"frequency_penalty": 0.1},
        {"ignore_eos": True}, {"length_penalty": 2}, {"logit_bias": {"5": 1}}, {"min_p": 0.1}, {"min_tokens": 3},
        {"presence_penalty": 1}, {"repetition_penalty": 1.1}, {"response_format": {"type": "json_object"}},
        {"stop_token_ids": [7]}, {"tool_choice": "required"}, {"use_beam_search": True}, {"suffix": "."},
        {"web_search_options": {}}, {"modalities": ["text", "audio"]}, {"audio": {"voice": "ash"}},
    ],
)  # fmt: skip
def test_what_makes_another_answer_is_rejected_by_name(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    [name], answered = more, answer(client, path, more)
    assert answered.status_code == 400
    assert answered.json()["error"]["param"] == name
    assert answered.json()["error"]["message"].startswith(f"`{name}` is not supported: leave it out")
