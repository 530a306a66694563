"""Questions to a chat API: one request each, with passages, and sources by the text of the answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ralm.lm.api.endpoint import PROVIDERS, Provider
from tests.api.writing import Reply
from tests.cli.program import done, failed, printed, ralm
from tests.serving.chat_upstream import NAME, WORDS, ChatUpstream
from tests.serving.served import save_index

QUESTION = "What sings in the deep sea by night?"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_index(tmp_path_factory.mktemp("chat") / "few")


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ChatUpstream]:
    monkeypatch.setenv("RALM_CACHE", str(tmp_path))
    upstream = ChatUpstream()
    with upstream.server:
        yield upstream


def asked(upstream: ChatUpstream, *more: object) -> list[object]:
    return ["ask", QUESTION, "--lm", f"{upstream.server.url}#{NAME}", *more]


def test_a_question_is_one_request(upstream: ChatUpstream, index: Path) -> None:
    answer = printed(*asked(upstream, "--index", index, "--documents", 2))
    assert (answer["question"], answer["answer"]) == (QUESTION, "".join(WORDS))
    assert [(one["title"], one["known"]) for one in answer["sources"]] == [("The Sea", "cited"), ("", "retrieved")]
    [request] = upstream.server.requests
    [message] = request.body.pop("messages")
    assert request.body == {"model": NAME, "max_tokens": 256, "temperature": 0.0}
    assert "[1] The Sea\nThe whales sing in the deep blue sea by night." in message["content"]
    assert message["content"].endswith(QUESTION)
    assert printed(*asked(upstream, "--index", index, "--documents", 2)) == answer
    assert len(upstream.server.requests) == 2, "there may be another model now"


def test_openai_draws_as_it_does_by_default(upstream: ChatUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "openai", Provider(upstream.server.url, "KEY"))
    monkeypatch.setenv("KEY", "secret")
    for more in ((), (), ("--temperature", 0)):
        done("ask", QUESTION, "--lm", f"openai:{NAME}", *more)
    assert [request.body.get("temperature") for request in upstream.server.posts] == [None, 0.0]


def test_what_is_named_is_sent(upstream: ChatUpstream) -> None:
    out = done(*asked(upstream, "--new-tokens", 5, "--temperature", 0.5, "--seed=3", "--stop=a", "--prompt=chat"))
    assert out.out == "".join(WORDS) + "\n"
    sampled = {"max_tokens": 5, "temperature": 0.5, "seed": 3, "top_p": 1.0, "stop": ["a"]}
    assert upstream.last.body == {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], **sampled}


def test_an_ensemble_of_one_request_is_an_error(upstream: ChatUpstream, index: Path) -> None:
    answer = ralm(*asked(upstream, "--index", index, "--reader", "ensemble:documents=2"))
    failed(answer, 2, "leave out --reader ensemble and --rerank")
    assert upstream.server.requests == []


@pytest.mark.parametrize("message", [{"content": None}, {"content": 3}, {}, None])
def test_an_answer_without_text_is_an_error(message: object, upstream: ChatUpstream) -> None:
    upstream.instead = Reply({"choices": [{"index": 0, "message": message}]})
    failed(ralm(*asked(upstream)), 1, "the server")
