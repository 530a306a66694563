"""A chat API that streams slowly, as hosted ones do, and a server of ralm that passes requests on to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ralm.lm.api.endpoint import Endpoint
from ralm.reading import ReadingOptions
from ralm.serving.middleware import AuditLog
from ralm.serving.options import ServeOptions, Settings
from ralm.serving.proxy import ProxyService
from tests.api.scripted_server import HttpServer, Request
from tests.api.writing import Reply
from tests.serving.served import served, serving

WORDS = ["The", " whales", " sing", " \U0001f40b", " [1]", "."]
USAGE = {"prompt_tokens": 71, "completion_tokens": 6, "total_tokens": 77}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bergen"}'}}
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: req_7\r\nConnection: close\r\n\r\n"
NAME = "hosted/chat-1"


class ChatUpstream:
    """What the API answers; `seconds` pass before each word, `instead` is an answer to all requests."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.instead: Reply | None = None
        self.left = threading.Event()
        self.server = HttpServer(self.reply)

    @property
    def last(self) -> Request:
        return self.server.posts[-1]

    def reply(self, request: Request) -> Reply:
        if request.method == "GET" and request.path == "/v1/models":
            return Reply({"object": "list", "data": [{"id": NAME, "owned_by": "hosted", "context_length": 9_000}]})
        if self.instead is not None:
            return self.instead
        if request.path == "/v1/embeddings":
            vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
            return Reply({"object": "list", "data": [vector], "usage": {"prompt_tokens": 3, "total_tokens": 3}})
        if request.path == "/v1/responses":
            stream = request.body.get("stream")
            return Reply({}, raw=lambda _: self.stream_response()) if stream else Reply(response_of("completed"))
        if request.path.partition("?")[0] != "/v1/chat/completions":
            return Reply({"error": {"message": "This is a chat model", "type": "invalid_request_error"}}, 404)
        body = request.body
        if body.get("stream"):
            return Reply({}, raw=lambda _: self.stream(body))
        wants_call = body.get("tools") and body["messages"][-1]["role"] != "tool"
        message = {"content": None, "tool_calls": [CALL]} if wants_call else {"content": "".join(WORDS)}
        reason = "tool_calls" if wants_call else "stop"
        choices = [
            {"index": number, "message": {"role": "assistant", **message}, "finish_reason": reason}
            for number in range(body.get("n") or 1)
        ]
        return Reply({**head("chat.completion"), "choices": choices, "usage": USAGE}, headers={"X-Request-Id": "req_7"})

    def stream_response(self) -> Iterator[bytes | float]:
        yield EVENTS
        yield response_event({"type": "response.created", "response": response_of("in_progress")})
        for word in WORDS:
            place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            yield response_event({"type": "response.output_text.delta", **place, "delta": word})
        yield response_event({"type": "response.completed", "response": response_of("completed")})

    def stream(self, body: dict[str, Any]) -> Iterator[bytes | float]:
        try:
            yield EVENTS
            yield b": waiting\n\n"
            yield event({"delta": {"role": "assistant", "content": ""}})
            for word in WORDS:
                yield self.seconds
                whole = event({"delta": {"content": word}})
                yield whole[:40]  # events are cut anywhere, also within a character
                yield whole[40:]
            yield event({"delta": {}, "finish_reason": "stop"})
            if (body.get("stream_options") or {}).get("include_usage"):
                yield b"data: " + json.dumps({**head("chat.completion.chunk"), "choices": [], "usage": USAGE}).encode()
                yield b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            self.left.set()


def head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "chat-1-0613", "system_fingerprint": "fp_1"}


def response_of(status: str) -> dict[str, Any]:
    """What /responses answers."""
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [text]}
    usage = {"input_tokens": 71, "output_tokens": 6, "total_tokens": 77}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": NAME, "status": status, "tools": []}
    done = {"output": [{"type": "reasoning", "id": "rs_1", "summary": []}, message], "usage": usage}
    return {**head, **(done if status == "completed" else {"output": [], "usage": None})}


def response_event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps({'sequence_number': 1, **value})}\n\n".encode()


def event(choice: dict[str, Any]) -> bytes:
    choices = [{"index": 0, "finish_reason": None, **choice}]
    value = json.dumps({**head("chat.completion.chunk"), "choices": choices}, ensure_ascii=False)
    return b"data: " + value.encode() + b"\n\n"


@contextmanager
def passing_on(
    index: Path | None, seconds: float = 0.0, key: str | None = None, audit: AuditLog | None = None, **options: Any
) -> Iterator[tuple[ChatUpstream, str]]:
    """A chat API, and the address of a server in front of it with an index; `key` is the API's."""
    upstream = ChatUpstream(seconds)
    with upstream.server as server:
        settings = Settings(reading=ReadingOptions(reader="concatenation:documents=2"))
        folders = {} if index is None else {"few": index}
        endpoint = Endpoint(server.url, NAME, key)
        given = served(ServeOptions(**options), settings=settings, folders=folders, audit=audit)
        with serving(ProxyService(endpoint, 5.0, given)) as url:
            yield upstream, url
