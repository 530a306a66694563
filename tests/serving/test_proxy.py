"""Requests that are passed on to a chat API: what it gets, what the client gets, and when."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ralm.errors import UsageError
from ralm.lm.api.endpoint import Endpoint
from ralm.reading import ReadingOptions
from ralm.serving.jobs import Workers
from ralm.serving.middleware import Metrics
from ralm.serving.options import Limits, Settings
from ralm.serving.proxy import EventBuffer, ProxyService
from tests.api.writing import Reply
from tests.serving.chat_upstream import CALL, EVENTS, NAME, USAGE, WORDS, ChatUpstream, event, passing_on
from tests.serving.served import DOCUMENTS, events_of, served

pytestmark = pytest.mark.filterwarnings("ignore")
QUESTION = "What sings in the deep sea by night?"
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me of the sea.", "name": "ada"},
    {"role": "assistant", "content": "It is deep.", "annotations": [], "refusal": None},
    *ASKED,
]
TOOL_TURNS = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]
OF_CLIENTS: dict[str, dict[str, Any]] = {
    "bare": {"messages": ASKED},
    "turns": {"messages": TURNS, "temperature": 0.7, "top_p": 0.9, "max_tokens": 64, "stop": ["\n"], "seed": 3},
    "tools": {"messages": ASKED, "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False},
    "tool result": {"messages": TOOL_TURNS, "tools": TOOLS},
    "image": {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}, IMAGE]}]},
    "json": {"messages": ASKED, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    "penalties": {"messages": ASKED, "frequency_penalty": 0.5, "logit_bias": {"7": -100}, "logprobs": True, "n": 2},
    "unknown": {"messages": ASKED, "reasoning_effort": "low", "provider": {"sort": "price"}, "user": "u1"},
}


@pytest.fixture(scope="module")
def pair(index: Path) -> Iterator[tuple[ChatUpstream, str]]:
    with passing_on(index, key="sk-upstream") as both:
        yield both


@pytest.fixture
def upstream(pair: tuple[ChatUpstream, str]) -> Iterator[ChatUpstream]:
    yield pair[0]
    pair[0].instead = None


@pytest.fixture(scope="module")
def url(pair: tuple[ChatUpstream, str]) -> str:
    return pair[1]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0) as client:
        yield client


def posted(url: str, body: dict[str, Any], path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": NAME, **body}, timeout=30, **more)


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_all_but_passages_goes_on_and_comes_back_as_it_is(name: str, upstream: ChatUpstream, url: str) -> None:
    body = OF_CLIENTS[name]
    straight, sent_straight = posted(upstream.server.root, body), upstream.last.body
    through, sent = posted(url, body), upstream.last.body
    place = max(place for place, one in enumerate(sent["messages"]) if one["role"] == "user")
    with_passages = sent["messages"][place]
    read, own = with_passages["content"], body["messages"][place]["content"]
    is_text = isinstance(read, str)
    assert "\n[1] The Sea\nThe whales sing in the deep blue sea by night.\n\n[2] " in (
        read if is_text else read[0]["text"]
    )
    assert read.endswith(f"\n\n{QUESTION}") if is_text else read[1:] == own
    with_passages["content"] = own
    assert sent == sent_straight
    answer = through.json()
    assert [one["title"] for one in answer.pop("search_results")] == ["The Sea", "night"]
    added = answer.pop("ralm")
    assert [one["title"] for one in added["passages"]] == ["The Sea", ""]
    for choice, own_sources in zip(answer["choices"], added["choices"], strict=True):
        content = choice["message"]["content"]
        known = [one["known"] for one in own_sources["sources"]]
        assert known == (["cited", "retrieved"] if content else [])
        for one in choice["message"].pop("annotations", ()):
            cited = one["url_citation"]
            assert (content[cited["start_index"] : cited["end_index"]], cited["title"]) == ("[1]", "The Sea")
    assert (through.status_code, answer, through.headers["x-request-id"]) == (200, straight.json(), "req_7")


def test_a_stream_comes_as_it_is_and_when_it_is_written(index: Path) -> None:
    with passing_on(index, seconds=0.1) as (upstream, url):
        seen: list[tuple[list[float], bytes]] = []
        for root in (upstream.server.root, url):
            body = {"model": NAME, "messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
            with httpx.stream("POST", f"{root}/v1/chat/completions", json=body, timeout=30) as response:
                parts = [(time.perf_counter(), part) for part in response.iter_raw()]
            seen.append(([at for at, _ in parts], b"".join(part for _, part in parts)))
    [(_, direct), (times, passed)] = seen
    assert sum(after - before > 0.05 for before, after in itertools.pairwise(times)) >= len(WORDS) - 1
    *before, last, usage, done = passed.split(b"\n\n")[:-1]
    *before_straight, last_straight, usage_straight, _ = direct.split(b"\n\n")[:-1]
    assert (before, usage, done) == (before_straight, usage_straight, b"data: [DONE]")
    value = json.loads(last.removeprefix(b"data: "))
    assert [one["title"] for one in value.pop("search_results")] == ["The Sea", "night"]
    added = value.pop("ralm")
    assert (added["index"], [one["known"] for one in added["choices"][0]["sources"]]) == ("few", ["cited", "retrieved"])
    [cited] = value["choices"][0]["delta"].pop("annotations")
    assert "".join(WORDS)[cited["url_citation"]["start_index"] :] == "[1]."
    assert value == json.loads(last_straight.removeprefix(b"data: "))


def test_openai(upstream: ChatUpstream, url: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0)
    answer = client.chat.completions.create(model=NAME, messages=TURNS)
    assert answer.choices[0].message.content == "".join(WORDS)
    assert answer.usage.model_dump(exclude_none=True) == USAGE
    assert answer.search_results[0]["title"] == "The Sea"
    assert upstream.last.key == "sk-upstream"
    called = client.chat.completions.create(model=NAME, messages=ASKED, tools=TOOLS).choices[0].message
    assert called.tool_calls[0].function.name == "weather"
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain"}
    again = client.chat.completions.create(model=NAME, messages=[*ASKED, called, result], tools=TOOLS)
    assert again.choices[0].message.content == "".join(WORDS)
    pieces = client.chat.completions.create(model=NAME, messages=ASKED, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "".join(WORDS)

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as other:

            async def one() -> str:
                stream: Any = await other.chat.completions.create(model=NAME, messages=ASKED, stream=True)
                return "".join([piece.choices[0].delta.content or "" async for piece in stream])

            return await asyncio.gather(*(one() for _ in range(32)))

    assert asyncio.run(ask()) == ["".join(WORDS)] * 32


def test_sources_stand_behind_the_text_if_asked(index: Path, url: str) -> None:
    body = {"messages": ASKED, "ralm": {"sources": "text"}}
    answer = posted(url, body).json()
    link = answer["search_results"][0]["url"]
    behind = f"\n\nSources:\n[1] The Sea: {link}"
    assert answer["choices"][0]["message"]["content"] == "".join(WORDS) + behind
    assert link.startswith(f"{url}/passages/few?document=sea&text=")
    streamed = posted(url, {**body, "stream": True}).text.removeprefix(": waiting\n\n")
    deltas = [one["choices"][0]["delta"] for one in events_of(streamed)]
    assert "".join(one.get("content") or "" for one in deltas) == "".join(WORDS) + behind
    quoted = "I read that the WHALES sing in the deep, blue sea."
    with passing_on(index, prompt="chat") as (upstream, other):  # its passages have no numbers
        upstream.instead = Reply({"choices": [{"index": 0, "message": {"content": quoted}, "finish_reason": "stop"}]})
        told: list[Any] = [{"role": "user", "content": "Tell me more."}]
        [choice] = posted(other, {"messages": told, "ralm": {"query": QUESTION}}).json()["ralm"]["choices"]
        [one, *others] = choice["sources"]
        assert (one["known"], one["number"], one["share"], one["gain"]) == ("quoted", None, None, None)
        assert [quoted[slice(*span["answer"])] for span in one["quotes"]] == ["the WHALES sing in the deep, blue sea"]
        assert {one["known"] for one in others} == {"retrieved"}
    refused = posted(url, {"prompt": "a", "ralm": {"sources": "text"}}, "/v1/completions")
    assert refused.json()["error"]["message"].startswith("`sources` is for chats")


def test_errors_come_back_with_their_status(upstream: ChatUpstream, client: openai.OpenAI, url: str) -> None:
    limited = {"error": {"message": "slow down", "type": "rate_limit", "param": None, "code": "rate"}}
    headers = {
        "Retry-After": "7",
        "X-RateLimit-Remaining-Requests": "0",
        "Set-Cookie": "a",
        "X-Request-Id": "sk-upstream",
    }
    upstream.instead = Reply(limited, 429, headers)
    for stream in (False, True):
        answer = posted(url, {"messages": ASKED, "stream": stream})
        assert (answer.status_code, answer.json()) == (429, limited)
        assert (answer.headers["retry-after"], answer.headers["x-ratelimit-remaining-requests"]) == ("7", "0")
        assert ("set-cookie" in answer.headers, answer.headers["x-request-id"]) == (False, "[key]")
    with pytest.raises(openai.RateLimitError, match="slow down"):
        client.chat.completions.create(model=NAME, messages=ASKED)
    upstream.instead = Reply({"error": {"message": "wrong key: sk-upstream"}}, 401)
    assert posted(url, {"messages": ASKED}).json() == {"error": {"message": "wrong key: [key]"}}
    upstream.instead = Reply("<h1>Bad Gateway</h1>", 502)
    assert posted(url, {"messages": ASKED}).text == "<h1>Bad Gateway</h1>"


@pytest.mark.parametrize(
    "reply",
    [Reply({}, 307, {"Location": "http://other/"}), Reply({}, cut_after=-1)]
    + [
        Reply({}, raw=lambda _, status=status: iter([b"HTTP/1.1 %d Odd\r\nContent-Length: 2\r\n\r\n{}" % status]))  # type: ignore[misc]
        for status in (199, 600, 999)
    ],
)
def test_what_is_no_answer_is_an_error_of_the_server(reply: Reply, upstream: ChatUpstream, url: str) -> None:
    upstream.instead = reply
    answer = posted(url, {"messages": ASKED})
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
    assert answer.json()["error"]["message"].startswith("the server of the language model failed")


def test_a_server_that_breaks_off(upstream: ChatUpstream, url: str) -> None:
    whole = event({"delta": {"content": "The"}})
    upstream.instead = Reply(
        {}, raw=lambda _: iter([EVENTS.replace(b"close", b"close\r\nContent-Length: 9999"), whole])
    )
    first, last, end = posted(url, {"messages": ASKED, "stream": True}).content.split(b"\n\n")
    assert (first + b"\n\n", end) == (whole, b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "server_error"


def test_a_client_that_goes_away_stops_the_server(index: Path) -> None:
    with passing_on(index, seconds=0.5) as (upstream, url):
        body = {"model": NAME, "messages": ASKED, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            next(response.iter_raw())
        assert upstream.left.wait(2)  # of the 3 seconds that the answer takes
        end = time.monotonic() + 5
        while "ralm_requests_under_way 0.0" not in httpx.get(f"{url}/metrics").text:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_places_for_passages(upstream: ChatUpstream, url: str) -> None:
    system = [{"role": "system", "content": "Say hello."}]
    for messages in (system, [{"role": "user", "content": [IMAGE]}], [{"role": "user", "content": ""}], [], "none"):
        answer = posted(url, {"messages": messages})
        assert upstream.last.body["messages"] == messages
        if answer.status_code == 200:
            assert answer.json()["search_results"] == []
    plain = posted(url, {"messages": ASKED, "ralm": {"index": None}}).json()
    assert upstream.last.body == {"model": NAME, "messages": ASKED}
    assert "search_results" not in plain
    assert posted(url, {"messages": ASKED, "model": f"{NAME}:plain"}).json() == plain
    assert upstream.last.body == {"model": NAME, "messages": ASKED}
    found = posted(
        url, {"messages": [{"role": "user", "content": [IMAGE]}], "ralm": {"query": "sheep hill", "documents": 1}}
    )
    assert [one["title"] for one in found.json()["search_results"]] == ["The Hill"]
    text, image = upstream.last.body["messages"][0]["content"]
    assert text["text"].endswith("[1] The Hill\nThe dog keeps the sheep together on the green hill.\n\n")
    assert image == IMAGE


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "other"}, 404, "the model 'other' is not served; the models are: hosted/chat-1, hosted/chat-1:few"),
    ({"model": 3}, 400, "`model` must be a valid string."),
    (
        {"ralm": {"reader": "ensemble"}},
        400,
        "`reader` ensemble has no effect here, where requests are passed on: leave it out.",
    ),
    ({"ralm": {"gain": True}}, 400, "`gain` has no effect here, where requests are passed on: leave it out."),
    ({"ralm": {"document": 3}}, 400, "`ralm.document` is not supported: leave it out."),
    ({"ralm": {"index": "none"}}, 400, "`index` 'none' is not served; the indexes are: few."),
    ({"ralm": {"documents": 101}}, 400, "`documents` must be at most 100 here, not 101."),
    *(({"n": count}, 400, "`n` must be a whole number of at most 128 here.") for count in (129, 2.0, "2")),
    ({"ralm": {"query": " "}}, 400, "`ralm.query` is empty"),
    ({"ralm": {"query": "a" * 300_000}}, 400, "`ralm.query` has 300,000 bytes"),
    ({"ralm": {"query": "sea"}, "messages": []}, 400, "`ralm.query` has no effect without a message of the user"),
]


@pytest.mark.parametrize(("more", "status", "message"), REFUSED)
def test_what_is_refused_here(
    more: dict[str, Any], status: int, message: str, upstream: ChatUpstream, url: str
) -> None:
    before = len(upstream.server.posts)
    answer = posted(url, {"messages": ASKED, **more})
    assert (answer.status_code, answer.json()["error"]["message"][: len(message)]) == (status, message)
    assert len(upstream.server.posts) == before


SYSTEM = {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        QUESTION,
        [SYSTEM, {"role": "user", "content": QUESTION}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
    ],
    ids=["text", "messages", "parts"],
)
def test_responses_get_passages_and_sources(asked: Any, stream: bool, upstream: ChatUpstream, url: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-client", max_retries=0)
    more = {"instructions": "Answer.", "reasoning": {"effort": "low"}, "store": False}
    answer = client.responses.create(model=f"{NAME}:few", input=asked, stream=stream, **more)
    if stream:
        events = [*answer]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "".join(WORDS)
        answer = events[-1].response
    assert answer.output_text == "".join(WORDS)
    [cited] = answer.output[1].content[0].annotations
    assert (cited.title, answer.output_text[cited.start_index : cited.end_index]) == ("The Sea", "[1]")
    assert [one["title"] for one in answer.search_results] == ["The Sea", "night"]
    assert [one["known"] for one in answer.ralm["choices"][0]["sources"]] == ["cited", "retrieved"]
    sent = upstream.last.body
    before = json.dumps(sent["input"]).partition(json.dumps(QUESTION)[1:-1])[0]
    assert "[1] The Sea\\nThe whales sing in the deep blue sea by night.\\n\\n[2] " in before
    assert {name: sent[name] for name in more} == more
    assert (sent["model"], sent.get("stream", False)) == (NAME, stream)


def test_what_has_no_passages_is_passed_on_as_it_is(upstream: ChatUpstream, url: str) -> None:
    upstream.instead = Reply({"id": "file-1", "deleted": True})
    for method, path in (
        ("GET", "/v1/responses/resp_1?a=1"),
        ("DELETE", "/v1/files/file-1"),
        ("POST", "/v1/moderations"),
    ):
        content = b'{"input" : [1.0, 2e3]}' if method == "POST" else None
        headers = {"content-type": "application/json"} if content else {}
        answer = httpx.request(method, f"{url}{path}", content=content, headers=headers, timeout=30)
        assert (answer.status_code, answer.json()) == (200, {"id": "file-1", "deleted": True})
        last = upstream.server.requests[-1]
        assert (last.method, last.path) == (method, path)
    asked = len(upstream.server.requests)
    for path in ("a/%2e%2e/%2e%2e/metrics", "/v1/chat/completions", "chat/completions/"):
        assert httpx.post(f"{url}/v1/{path}", json={"model": "other"}, timeout=30).status_code == 404
    assert len(upstream.server.requests) == asked


@pytest.mark.parametrize(
    "odd",
    [{"usage": {"prompt_tokens": count, "completion_tokens": count}} for count in (-5, 10**400, "7", None, True, 1.5)]
    + [{"index": number} for number in (-5, 10**30, "a")]
    + [{"annotations": value} for value in (7, [None, 3])],
)
def test_an_odd_answer_comes_back(odd: dict[str, Any], upstream: ChatUpstream, url: str) -> None:
    said = {"content": "The whales sing in the deep [1].", "annotations": odd.get("annotations", [])}
    choice = {"index": odd.get("index", 0), "message": said, "finish_reason": "stop"}
    upstream.instead = Reply({"choices": [choice], "usage": odd.get("usage", USAGE)})
    answer = posted(url, {"messages": ASKED, "ralm": {"sources": "text"}})
    assert (answer.status_code, said["content"] in answer.text, "Sources:" in answer.text) == (200, True, True)


def test_a_slot_is_free_when_its_threads_have_ended() -> None:
    async def check() -> None:
        workers, end = Workers(Limits(requests_at_once=1), Metrics()), threading.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(workers.in_slot(lambda slot: slot.in_thread(end.wait, 10)), 0.1)
        waiting = asyncio.ensure_future(workers.take_slot())
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0], "the thread goes on"
        end.set()
        await waiting

    asyncio.run(check())


def test_a_key_in_a_stream_does_not_reach_the_client(upstream: ChatUpstream, url: str) -> None:
    parts = event({"delta": {"content": "it is sk-upstream."}}).partition(b"sk-up")
    upstream.instead = Reply({}, raw=lambda _: iter([EVENTS, parts[0] + parts[1], 0.05, parts[2]]))
    answer = posted(url, {"messages": ASKED, "stream": True}).text
    assert ("sk-upstream" in answer, "it is [key]." in answer) == (False, True)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_events_that_come_in_any_parts(size: int) -> None:
    buffer, events = EventBuffer(), [b"data: 1\n\n", b"event: a\r\ndata: 2\r\n\r\n", b": wait\n\n"]
    content = b"".join(events) * 2 + b"data: un"
    given = [one for at in range(0, len(content), size) for one in buffer.add(content[at : at + size])]
    assert (given, buffer.rest) == (events * 2, b"data: un")


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_json_does_not_have(number: str, upstream: ChatUpstream, url: str) -> None:
    before = len(upstream.server.posts)
    content = f'{{"model": "{NAME}", "messages": [], "temperature": {number}}}'
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{url}/v1/chat/completions", content=content, headers=headers, timeout=30)
    assert (answer.status_code, len(upstream.server.posts)) == (400, before)


def test_embeddings_are_passed_on(upstream: ChatUpstream, url: str) -> None:
    body = {"input": ["whales", "sheep"], "dimensions": 1, "unknown": 3}
    for name, sent in ((NAME, NAME), ("text-embedding-3-small", "text-embedding-3-small"), (f"{NAME}:few", NAME)):
        answer = posted(url, {**body, "model": name}, "/v1/embeddings")
        assert answer.json()["data"][0]["embedding"] == [0.5], answer.text
        assert upstream.last.body == {**body, "model": sent}


def test_metrics_count_tokens_and_name_no_other_routes(url: str) -> None:
    def counts() -> list[float]:
        lines = dict(line.rsplit(" ", 1) for line in httpx.get(f"{url}/metrics").text.splitlines() if line[0] != "#")
        return [float(lines.get(f'ralm_tokens_total{{kind="{kind}"}}', 0)) for kind in ("prompt", "written")]

    before = counts()
    posted(url, {"messages": ASKED, "stream": True, "stream_options": {"include_usage": True}})
    posted(url, {"input": "The sea"}, "/v1/embeddings")
    counted = [after - earlier for earlier, after in zip(before, counts(), strict=True)]
    assert counted == [USAGE["prompt_tokens"], USAGE["completion_tokens"]]
    told = httpx.get(f"{url}/metrics").text
    assert 'route="/v1/chat/completions"' in told
    assert 'route="/v1/{path:path}"' in told
    assert "embeddings" not in told


def test_a_body_that_is_no_object(url: str) -> None:
    for content in ("[1]", "{", ""):
        answer = httpx.post(f"{url}/v1/chat/completions", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["message"][:30]) == (400, "the body must be a JSON object")


def test_the_routes_of_every_server(url: str) -> None:
    assert [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]] == [NAME, f"{NAME}:few", f"{NAME}:plain"]
    assert httpx.get(f"{url}/search", params={"q": "whales"}).json()["hits"][0]["title"] == "The Sea"


@pytest.mark.parametrize("prompt", ["The whales", ["The whales", "zzz"], [5, 6], [[5, 6], [7]]])
def test_passages_stand_before_prompts_of_completions(prompt: Any, upstream: ChatUpstream, url: str) -> None:
    upstream.instead = Reply({"choices": [{"index": 0, "text": " sing", "finish_reason": "stop"}]})
    assert posted(url, {"prompt": prompt, "ralm": {"documents": 1}}, "/v1/completions").status_code == 200
    read = f"The Sea\n{DOCUMENTS[1].text}\n\nThe whales"
    expected = {str(["The whales", "zzz"]): [read, "zzz"], "The whales": read}.get(str(prompt), prompt)
    assert upstream.last.body == {"model": NAME, "prompt": expected}


def test_an_ensemble_cannot_be_passed_on() -> None:
    with pytest.raises(UsageError, match="leave out `reader` ensemble and `rerank`"):
        settings = Settings(reading=ReadingOptions(reader="ensemble"))
        ProxyService(Endpoint("http://h/v1", "m"), 1.0, served(settings=settings))


def test_a_server_is_ready_if_the_one_behind_answers(index: Path) -> None:
    with passing_on(index) as (upstream, url):
        assert httpx.get(f"{url}/ready").json()["status"] == "ok"
        upstream.server.__exit__(None, None, None)
        refused = httpx.get(f"{url}/ready")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json()["error"]["message"] == "the server of the language model does not answer."
        assert httpx.get(f"{url}/health").status_code == 200
