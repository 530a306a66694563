"""All that is wrong with a request is one clear sentence and a status of 4xx, never an error of the server.

`RALM_FUZZ` sets how many odd requests are made from the fields of each route; by default a few of each kind.
"""

import json
import os
import random
import re
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
from tests.api.backings import OfTable
from tests.serving.served import MODEL, local, serving

ASK: dict[str, Any] = {"model": MODEL, "prompt": "The sea", "max_tokens": 2, "temperature": 0}
JSON = {"Content-Type": "application/json"}


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith((".", "..."))
    assert "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"prompt": None}, "prompt", "`prompt` must be text, a list of texts, a list of token ids"),
        ({"prompt": []}, "prompt", "none empty"),
        ({"prompt": ["a", 1]}, "prompt", "`prompt` must be"),
        ({"prompt": ""}, "prompt", "`prompt` is empty"),
        ({"prompt": [-1]}, "prompt", "`prompt` has the token -1, and the model knows 0 to 4,095."),
        ({"prompt": [10**40]}, "prompt", "0,000, and the model knows"),
        ({"prompt": "word " * 2000}, "prompt", "and `max_tokens` is 2, together"),
        ({"prompt": "a" * 10**6}, "prompt", "`prompt` has 1,000,000 bytes, and the limit is 131,072"),
        ({"max_tokens": 1024}, "prompt", "the limit is 1,024: send at most 0 tokens"),
        ({"max_tokens": 1.5}, "max_tokens", "`max_tokens` must be a valid integer"),
        ({"n": 0}, "n", "`n` must be greater than or equal to 1."),
        ({"n": 100, "prompt": ["a", "b"]}, "n", "2 prompts times `n` 100 exceed 128 texts"),
        ({"temperature": 1e-9}, "temperature", "`temperature` must be 0 \\(greedy\\)"),
        ({"top_p": 0}, "top_p", "`top_p` must be above 0"),
        ({"logprobs": 21}, "logprobs", "`logprobs` must be less than or equal to 20."),
        ({"stop": ["a", ""]}, "stop", "`stop` must not contain an empty text."),
        ({"stream": "yes"}, "stream", "`stream` must be a valid boolean."),
        ({"tempreature": 1}, "tempreature", "`tempreature` is not supported: leave it out."),
        ({"ralm": {"documnets": 2}}, "ralm.documnets", "is not supported"),
        ({"ralm": {"index": "other"}}, "ralm.index", "`index` 'other' is not served; the indexes are: few."),
        ({"ralm": {"documents": 2, "mixer": "uniform"}}, "ralm.mixer", "`mixer` has no effect without `reader"),
        ({"ralm": {"reader": "ensemble", "documents": 101}}, "ralm.documents", "`documents` must be at most 100 here"),
        ({"ralm": {"reader": "concatenation", "documents": 9}}, "ralm.documents", "do not fit"),
        ({"ralm": {"retriever": "dense"}}, "ralm.retriever", "the index 'few' has no vectors"),
        ({"ralm": {"retriever": "os:system"}}, "ralm.retriever", "is a class, which only the operator can choose"),
        ({"ralm": {"rerank": "oracle"}}, None, "looks at the text to be predicted"),
        ({"ralm": {"rerank": "predictive"}}, "ralm.rerank", "needs a cross-encoder, and this server has none."),
        ({"ralm": {"index": None, "stride": 2}}, "ralm.stride", "`stride` has no effect without an `index`."),
        ({"ralm": {"query": "a"}, "echo": True}, "ralm.query", "`ralm.query` has no effect with `echo`"),
        ({"ralm": {"gain": True}, "echo": True}, "ralm.gain", "`ralm.gain` has no effect with `echo`"),
        ({"seed": 0.5}, "seed", "`seed` must be a valid integer"),
    ],
)
def test_a_wrong_value(client: httpx.Client, change: dict[str, Any], param: str | None, said: str) -> None:
    for more in ({}, {"stream": True}):
        if "stream" in change:
            more = {}
        error = refused(client.post("/v1/completions", json={**ASK, **more, **change}))
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert re.search(said, error["message"]), error["message"]


@pytest.mark.parametrize("model", ["gpt-5", "", "../../etc/passwd", "http://example.com#x", "x\u202e", "\x1b[2J"])
def test_an_unknown_model(client: httpx.Client, model: str) -> None:
    error = refused(client.post("/v1/completions", json={**ASK, "model": model}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert not {"\u202e", "\x1b"} & set(error["message"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'"text"',
        b"\xff\xfe",
        *(json.dumps(ASK).encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32-be")),
        b"[" * 100_000,
        b'{"a":' * 50_000,
        *(
            b'{"model": "ralm-tiny", "prompt": "a", ' + field + b"}"
            for field in (
                b'"temperature": NaN',
                b'"temperature": 1e999',
                b'"seed": ' + b"9" * 5000,
                b'"model": "\\udfff"',
                b'"ralm": {"query": "\\ud83d"}',
                b'"prompt": "\\ud800"',
                b'"\\ud83d": 1',
                b'"ralm": {"\\ud83d": 1}',
            )
        ),
    ],
)
def test_a_body_that_is_no_request(client: httpx.Client, body: bytes) -> None:
    refused(client.post("/v1/completions", content=body, headers=JSON))


def test_a_body_of_another_kind(client: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", ""):
        answer = client.post("/v1/completions", content=json.dumps(ASK), headers={"Content-Type": kind})
        assert "Content-Type: application/json" in refused(answer)["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/none", None, 404),
        ("GET", "/v1/models/none", None, 404),
        ("POST", "/../etc", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("GET", "/?/metrics", None, 400),
        ("GET", "/health?a=b", None, 400),
        ("GET", "/search?q=sea&other=1", None, 400),
        ("POST", "/retrieve?a", {"queries": ["a"]}, 400),
        ("POST", "/retrieve", {"queries": ["a"], "other": 1}, 400),
    ],
)
def test_other_routes(client: httpx.Client, method: str, path: str, body: Any, status: int) -> None:
    error = refused(client.request(method, path, json=body), status)
    assert status != 405 or "(method not allowed)" in error["message"]
    assert "?" not in path or f"is not a parameter of {path.partition('?')[0]}." in error["message"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "`q` is missing."),
        ({"q": "a", "k": "0"}, "`k` must be from 1 to 100."),
        ({"q": "a", "k": "101"}, "`k` must be from 1 to 100."),
        ({"q": "a", "k": "x"}, "`k` must be a valid integer"),
        ({"q": "a", "index": "/etc"}, "`index` '/etc' is not served; the indexes are: few."),
        ({"q": "a", "retriever": "dense"}, "the index 'few' has no vectors"),
        ({"q": "a", "retriever": "x"}, '`retriever="x"` is not known: write one of bm25'),
    ],
)
def test_a_wrong_search(client: httpx.Client, query: dict[str, str], said: str) -> None:
    assert said in refused(client.get("/search", params=query))["message"]


def test_likeliest_tokens_of_a_prompt_that_the_model_does_not_tell() -> None:
    with serving(local(OfTable(seed=1))) as url:
        body = {"model": "table-1", "prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1}
        error = refused(httpx.post(f"{url}/v1/completions", json=body))
        assert "with `echo`, set `logprobs` to 0 or leave it out." in error["message"]
        body |= {"logprobs": 0}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200


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
