"""Requests of clients as they were recorded: a local model answers all that ask for no tools."""

from typing import Any

import httpx
import pytest

from tests.serving.chat_upstream import NAME
from tests.serving.served import events_of

pytestmark = pytest.mark.filterwarnings("ignore")
ONE: list[Any] = [{"role": "user", "content": "What sings in the deep sea by night?"}]
TURNS: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me of the sea."},
    {"role": "assistant", "content": "It is deep."},
    *ONE,
]
WEATHER = {"description": "weather(city: str) -> str", "parameters": {"properties": {}, "type": "object"}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "strict": False, **WEATHER}}]
TASK = "### Task:\nGenerate a concise title summarizing the chat history.\n### Chat History:\n<chat_history>\nUSER: "
TITLE = [{"role": "user", "content": f"{TASK}{ONE[0]['content']}\nASSISTANT: \n</chat_history>"}]
OPENAI = {"User-Agent": "OpenAI/Python 3.57.0", "Accept": "application/json", "X-Stainless-Retry-Count": "0"}
AIOHTTP = {"User-Agent": "Python/3.11 aiohttp/3.14.5", "Accept-Encoding": "gzip, deflate, br"}
USAGE = {"include_usage": True}
ASKS_FOR_A_CALL = {"messages": ONE, "tools": TOOLS, "tool_choice": "auto"}
RECORDED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "curl 7.88.1": ({"User-Agent": "curl/7.88.1", "Accept": "*/*"}, {"messages": ONE, "stream": True}),
    "LiteLLM 1.110.2, stream": (OPENAI, {"messages": TURNS, "stream": True, "stream_options": USAGE}),
    "LlamaIndex OpenAILike 0.8.1, stream": (OPENAI, {"stream": True, "messages": TURNS, "temperature": 0.1}),
    "Open WebUI 0.12.4, usage": (AIOHTTP, {"stream": True, "messages": ONE, "stream_options": USAGE}),
    "Open WebUI 0.12.4, title": (AIOHTTP, {"messages": TITLE, "stream": False, "max_tokens": 50}),
}


def answer_to(name: str, root: str, **changes: Any) -> tuple[list[Any], httpx.Response]:
    """What a recorded client reads: the messages, or their pieces, and the usage; and the response."""
    headers, body = RECORDED[name]
    url = f"{root}/v1/chat/completions"
    response = httpx.post(url, headers=headers, json={"model": NAME, **body, **changes}, timeout=60)
    assert response.status_code == 200, response.text
    events = events_of(response.text.removeprefix(": waiting\n\n")) if body.get("stream") else [response.json()]
    pieces = [one.get("message") or one["delta"] for event in events for one in event["choices"]]
    for piece in pieces:
        piece.pop("annotations", None)
    return [*pieces, events[-1].get("usage")], response


@pytest.mark.parametrize("name", RECORDED)
def test_a_local_model_answers_recorded_requests(name: str, chat_url: str) -> None:
    greedy = {"model": "tiny-chat", "temperature": 0, "max_tokens": 8}
    pieces, _ = answer_to(name, chat_url, **greedy)
    plain = {"messages": RECORDED[name][1]["messages"], **greedy}
    [choice] = httpx.post(f"{chat_url}/v1/chat/completions", json=plain, timeout=60).json()["choices"]
    assert "".join(one.get("content") or "" for one in pieces[:-1]) == choice["message"]["content"] != ""


def test_a_local_model_rejects_tools(chat_url: str) -> None:
    body = {**ASKS_FOR_A_CALL, "model": "tiny-chat"}
    error = httpx.post(f"{chat_url}/v1/chat/completions", json=body, timeout=60).json()["error"]
    assert (error["param"], error["message"]) == ("tools", "`tools` is not supported: leave it out.")
