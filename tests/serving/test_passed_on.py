"""Which servers requests are passed on to, and which requests of a server that answers itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm.errors import ServerError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.api.model import ProxiedModel
from ralm.lm.registry import ModelOptions, open_served_model
from ralm.protocols import WritingModel
from ralm.reading import ReadingOptions
from ralm.serving.options import Limits, ServeOptions, Settings
from ralm.serving.service import Service
from tests.api.dialects import Dialect, LlamaCpp, OpenAI, TransformersServe
from tests.api.scripted_server import ScriptedServer
from tests.api.served import ChatsOnly, NewChatsOnly, Ollama, behind
from tests.serving.chat_upstream import NAME, ChatUpstream, passing_on
from tests.serving.process import running
from tests.serving.served import DOCUMENTS, serving

WARNED = "passed on to the server of the model: "
QUESTION = {"messages": [{"role": "user", "content": "What do the whales sing in?"}], "max_tokens": 4}
PROMPT = {"prompt": "The whales sing in the", "max_tokens": 4}


def opened(server: ScriptedServer, folder: Path, *, proxy: bool = False, **options: Any) -> WritingModel:
    api = ApiOptions(answers=folder / "answers.sqlite", retries=0, **options)
    return open_served_model(f"{server.url}#{server.model}", ModelOptions(api=api), proxy=proxy)


@pytest.mark.parametrize(
    ("dialect", "options", "is_proxied", "posts"),
    [
        (ChatsOnly(), {}, True, 1),
        (NewChatsOnly(), {"tokenizer": "ralm-tiny"}, True, 1),
        (TransformersServe(), {}, True, 1),
        (Ollama(), {"tokenizer": "ralm-tiny"}, True, 0),
        (OpenAI(), {"tokenizer": "ralm-tiny", "proxy": True}, True, 0),
        (OpenAI(), {"tokenizer": "ralm-tiny"}, False, 9),
        (LlamaCpp(), {}, False, 99),
    ],
)
def test_what_is_passed_on(
    dialect: Dialect, options: dict[str, Any], is_proxied: bool, posts: int, tmp_path: Path
) -> None:
    with ScriptedServer(behind(), dialect) as server:
        model: Any = opened(server, tmp_path, **options)
        assert isinstance(model, ProxiedModel) == is_proxied
        assert len(server.posts) <= posts
        if not is_proxied:
            model.client.close()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with ScriptedServer(behind(), ChatsOnly(), key="secret") as server, pytest.raises(ServerError, match="needs a key"):
        opened(server, tmp_path, proxy=True)
    with pytest.raises(ServerError, match="cannot be reached"):
        opened(server, tmp_path, proxy=True)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(behind(), OpenAI()) as server:
        yield server


def asked(
    server: ScriptedServer, index: Path, folder: Path, path: str, body: dict[str, Any], **options: Any
) -> httpx.Response:
    """The response of a server in front of a model of tier 1."""
    model: Any = opened(server, folder, tokenizer="ralm-tiny")
    try:
        service = Service(model, ServeOptions(**options), folders={"few": index})
        with serving(service) as url:
            return httpx.post(f"{url}/v1{path}", json={"model": "scripted", **body}, timeout=60)
    finally:
        model.client.close()


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/completions", {**PROMPT}, "the model lists only its 5 top next tokens: set `top_k`"),
        ("/completions", {**PROMPT, "temperature": 0, "presence_penalty": 1.0}, "`presence_penalty` is not supported"),
        ("/completions", {**PROMPT, "temperature": 0, "unknown": [1]}, "`unknown` is not a field of this request"),
        ("/completions", {**PROMPT, "prompt": ["The whales sing", "the"], "suffix": "."}, "`suffix` is not supported"),
        ("/chat/completions", {**QUESTION, "temperature": 0}, "the model http"),
        ("/chat/completions", {**QUESTION, "tools": [{"type": "function"}]}, "`tools` is not supported"),
    ],
)
def test_requests_that_only_this_server_rejects(
    path: str, body: dict[str, Any], reason: str, server: ScriptedServer, index: Path, tmp_path: Path
) -> None:
    answer = asked(server, index, tmp_path, path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ralm-warning"].startswith(WARNED + reason)
    sent = server.posts[-1].body
    assert DOCUMENTS[1].text in str(sent)
    same = httpx.post(f"{server.url}{path}", json=sent).json()
    assert answer.json()["choices"] == same["choices"]
    assert answer.json()["search_results"][0]["title"] == "The Sea"
    refused = asked(server, index, tmp_path, path, body, strict=True)
    assert (refused.status_code, refused.json()["error"]["message"].startswith(reason)) == (400, True)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({**PROMPT, "ralm": {"reader": "ensemble"}, "unknown": 1}, {}),
        ({**PROMPT, "ralm": {"index": "none"}, "temperature": 0}, {}),
        ({**PROMPT, "max_tokens": 9, "temperature": 0}, {"limits": Limits(new_tokens=8)}),
        ({**PROMPT, "prompt": "a " * 99}, {"limits": Limits(prompt_tokens=90)}),
    ],
)
def test_what_the_operator_forbids_is_not_passed_on(
    body: dict[str, Any], options: dict[str, Any], server: ScriptedServer, index: Path, tmp_path: Path
) -> None:
    assert asked(server, index, tmp_path, "/completions", body, **options).status_code == 400


def test_what_this_server_can_do_it_does(server: ScriptedServer, index: Path, tmp_path: Path) -> None:
    answer = asked(server, index, tmp_path, "/completions", {**PROMPT, "temperature": 0})
    assert "x-ralm-warning" not in answer.headers
    assert answer.json()["ralm"]["choices"][0]["tokens"][0]["passages"] == [1]


def test_prompts_of_completions_are_passed_on(server: ScriptedServer, index: Path, tmp_path: Path) -> None:
    with serving(Service(opened(server, tmp_path, proxy=True), folders={"few": index})) as url:
        for prompt, expected in (
            ("The whales", f"The Sea\n{DOCUMENTS[1].text}\n\nThe whales"),
            (["The whales", "zzz"], [f"The Sea\n{DOCUMENTS[1].text}\n\nThe whales", "zzz"]),
            ([5, 6], [5, 6]),
            ([[5, 6], [7]], [[5, 6], [7]]),
        ):
            answer = httpx.post(f"{url}/v1/completions", json={"model": "scripted", "prompt": prompt, "max_tokens": 2})
            assert answer.status_code == 200, answer.text
            assert server.posts[-1].body == {"model": "scripted", "prompt": expected, "max_tokens": 2}


def test_an_ensemble_cannot_be_passed_on() -> None:
    model = ProxiedModel("http://h/v1#m", None, 1.0, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave out `reader` ensemble and `rerank`"):
        Service(model, settings=Settings(reading=ReadingOptions(reader="ensemble")))


def test_the_command(index: Path, tmp_path: Path) -> None:
    upstream = ChatUpstream()
    with upstream.server as api:
        arguments = ("--lm", f"{api.url}#{NAME}", "--index", f"few={index}", "--query", "rewrite")
        with running(*arguments, RALM_API_KEY="sk-upstream", RALM_CACHE=str(tmp_path)) as served:
            assert "requests to" in served.wait_for("are passed on as they are")
            body = {"model": NAME, **QUESTION}
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
            assert answer["ralm"]["query"] == "The whales sing \U0001f40b [1]."
            assert upstream.last.key == "sk-upstream"


def test_a_server_is_ready_if_the_one_behind_answers(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with passing_on(index) as (upstream, url):
        assert httpx.get(f"{url}/ready").json()["status"] == "ok"
        asked = len(upstream.server.requests)
        assert httpx.get(f"{url}/ready").status_code == 200
        assert len(upstream.server.requests) == asked  # the outcome holds for some seconds
        upstream.server.__exit__(None, None, None)
        monkeypatch.setattr("ralm.lm.api.http._SECONDS_FRESH", -1.0)
        refused = httpx.get(f"{url}/ready")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json()["error"]["message"] == "the server of the language model does not answer."
        assert httpx.get(f"{url}/health").status_code == 200
