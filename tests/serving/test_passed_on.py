"""Servers that requests are passed on to: their start, what they get, and whether they answer."""

from pathlib import Path

import httpx
import pytest

from ralm.errors import UsageError
from ralm.lm.api.endpoint import Endpoint
from ralm.reading import ReadingOptions
from ralm.serving.options import Settings
from ralm.serving.proxy import ProxyService
from tests.api.dialects import OpenAI
from tests.api.scripted_server import ScriptedServer
from tests.api.served import behind
from tests.serving.chat_upstream import NAME, ChatUpstream, passing_on
from tests.serving.process import running
from tests.serving.served import DOCUMENTS, served, serving

QUESTION = {"messages": [{"role": "user", "content": "What do the whales sing in?"}], "max_tokens": 4}


def test_prompts_of_completions_are_passed_on(index: Path) -> None:
    with ScriptedServer(behind(), OpenAI()) as server:
        service = ProxyService(Endpoint(server.url, server.model), 5.0, served(folders={"few": index}))
        with serving(service) as url:
            for prompt, expected in (
                ("The whales", f"The Sea\n{DOCUMENTS[1].text}\n\nThe whales"),
                (["The whales", "zzz"], [f"The Sea\n{DOCUMENTS[1].text}\n\nThe whales", "zzz"]),
                ([5, 6], [5, 6]),
                ([[5, 6], [7]], [[5, 6], [7]]),
            ):
                answer = httpx.post(
                    f"{url}/v1/completions", json={"model": "scripted", "prompt": prompt, "max_tokens": 2}
                )
                assert answer.status_code == 200, answer.text
                assert server.posts[-1].body == {"model": "scripted", "prompt": expected, "max_tokens": 2}


def test_an_ensemble_cannot_be_passed_on() -> None:
    with pytest.raises(UsageError, match="leave out `reader` ensemble and `rerank`"):
        settings = Settings(reading=ReadingOptions(reader="ensemble"))
        ProxyService(Endpoint("http://h/v1", "m"), 1.0, served(settings=settings))


def test_the_command(index: Path, tmp_path: Path) -> None:
    upstream = ChatUpstream()
    with upstream.server as api:
        arguments = ("--lm", f"{api.url}#{NAME}", "--index", f"few={index}", "--documents", 1)
        with running(*arguments, RALM_API_KEY="sk-upstream", RALM_CACHE=str(tmp_path)) as served:
            assert "requests to" in served.wait_for("are passed on as they are")
            body = {"model": NAME, **QUESTION}
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).json()
            assert len(answer["search_results"]) == 1
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
