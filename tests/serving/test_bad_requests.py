"""Everything that is wrong with a request is one clear sentence and a status of 4xx, never an error of the server."""

import json
import re
from typing import Any

import httpx
import pytest

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
