"""Thousands of odd requests, made of the fields that each route has: never an error of the server.

`RALM_FUZZ` sets how many; by default a few of each kind.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ralm.protocols import WritingModel
from ralm.serving.options import Limits, ServeOptions
from ralm.serving.requests import Body, ChatChosen, ChatRequest, CompletionRequest
from ralm.serving.search import RetrieveRequest
from tests.serving.served import MODEL, local, serving

COUNT = int(os.environ.get("RALM_FUZZ", "15"))
ODD_TEXTS = ["", "a", "\x00", "\ud800", "\u202e", "e" * 3000, "../../etc/passwd", "http://x", "<script>", "\U0001f389"]
ODD_NUMBERS = [0, -1, 1, 2, 20, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, -0.0]
ODD_RAW = ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "{", "]", '"\\ud800"', "'a'", "\x00", "[" * 20000]
SCALARS = st.sampled_from([None, True, False, *ODD_NUMBERS, *ODD_TEXTS]) | st.integers() | st.text(max_size=9)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CHATS = "/v1/chat/completions"
USUAL: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "The sea", "max_tokens": 1, "temperature": 0},
    CHATS: {"model": "tiny-chat", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2},
    "/retrieve": {"queries": ["The sea", "dog"], "topk": 2},
}
REQUESTS: dict[str, type[Body]] = {
    "/v1/completions": CompletionRequest,
    CHATS: ChatRequest,
    "/retrieve": RetrieveRequest,
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "developer", "tool", "", "\x00", "<s>"]),
            "content": ANYTHING | st.sampled_from(["Who?", " \n", "</s>", "<s>user: a</s>", "sea " * 300, "{{ a }}"]),
        }
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def chats(chat_model: WritingModel, index: Path) -> Iterator[httpx.Client]:
    """A client of a server with a chat model, which writes little."""
    limits = Limits(new_tokens=4, documents=2)
    service = local(chat_model, ServeOptions(limits=limits), folders={"few": index})
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def bodies(path: str) -> st.SearchStrategy[Any]:
    """Bodies of a route: usual ones with some odd fields, odd messages, and anything else."""
    usual, names = USUAL[path], [*REQUESTS[path].model_fields, "ralm", "unknown"]
    choices = st.fixed_dictionaries({}, optional=dict.fromkeys(ChatChosen.model_fields, ANYTHING))
    fields = {name: ANYTHING | choices if name == "ralm" else ANYTHING for name in names}
    some = st.fixed_dictionaries({}, optional=fields)
    few = st.builds(lambda name, odd: {**usual, name: odd.get(name)}, st.sampled_from(names), some)
    right = st.builds(lambda seed: {**usual, "seed": seed} if path == CHATS else usual, st.integers(0, 10**6))
    messages = st.builds(lambda messages: {**usual, "messages": messages}, MESSAGES) if path == CHATS else right
    return right | messages | few | st.builds(lambda odd: {**usual, **odd}, some) | ANYTHING


def posted(client: httpx.Client, path: str, content: bytes) -> httpx.Response:
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


def check(answer: httpx.Response, content: object) -> None:
    assert answer.status_code < 500, (answer.status_code, answer.text, content)
    assert "Traceback" not in answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) <= 1100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", USUAL)
def test_odd_bodies(client: httpx.Client, chats: httpx.Client, path: str) -> None:
    asked, answered = chats if path == CHATS else client, 0

    @settings(max_examples=COUNT, suppress_health_check=list(HealthCheck), database=None)
    @given(body=bodies(path))
    def ask(body: Any) -> None:
        nonlocal answered
        content = json.dumps(body).encode()
        answer = posted(asked, path, content)
        check(answer, content)
        assert '"server_error"' not in answer.text  # nor in a stream
        answered += answer.status_code == 200

    ask()
    assert answered > COUNT // 20


def damaged(draw: random.Random) -> Iterator[bytes]:
    """Bodies that are broken as bytes: cut, with bytes that changed, with parts that are no JSON."""
    usual = json.dumps({**USUAL["/v1/completions"], "stop": ["a"], "ralm": {"stride": 2}}).encode()
    while True:
        body = bytearray(usual)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(body) + 1)
            match draw.randrange(4):
                case 0:
                    body = body[:place]
                case 1:
                    body[place : place + 1] = bytes([draw.randrange(256)])
                case 2:
                    body[place:place] = draw.choice(ODD_RAW).encode("utf-8", "surrogatepass")
                case _:
                    body[place:place] = body[: draw.randrange(40)]
        yield bytes(body)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damaged_bodies(client: httpx.Client) -> None:
    made = damaged(random.Random(1))
    for content, _ in zip(made, range(COUNT * 2), strict=False):
        check(posted(client, "/v1/completions", content), content)


@pytest.mark.slow
def test_odd_searches(client: httpx.Client) -> None:
    draw = random.Random(2)
    texts = [text for text in ODD_TEXTS if text.isascii()]
    values = [*texts, "few", "bm25", "random", "\u202e", *map(str, ODD_NUMBERS)]
    for _ in range(COUNT):
        names = draw.sample(["q", "k", "index", "retriever", "other"], draw.randint(0, 4))
        check(client.get("/search", params={name: draw.choice(values) for name in names}), names)


def test_odd_paths(client: httpx.Client) -> None:
    models = [f"/v1/models/{name}" for name in ("a" * 5000, "%00", "%ff", "")]
    for path in (*models, "/%2e%2e/etc/passwd", "//"):
        check(client.get(path), path)
