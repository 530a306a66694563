"""Passes requests on to another server: chats, completions and responses get passages, all else stays as it is.

The passages stand in the last message of the user, or before a prompt. All other fields go on and come back as they
are, except for `ralm`, which is for this server, and the name of the model.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import pydantic
from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.errors import ServerError, UsageError
from ralm.lm.api.answers import tokens_in_answer
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.http import Upstream, UpstreamAnswer
from ralm.reading.readers import Concatenation
from ralm.records import Passage
from ralm.serving import answers, audit, chat, errors, indexes, jobs, options, requests, state, text_sources
from ralm.serving.dialects import DIALECTS, CompletionDialect, RequestBody, message_text

_ROUTER: Final = APIRouter(include_in_schema=False)
_CHATS: Final = "/chat/completions"
_REWRITE: Final = (
    "Write one search query that finds texts for answering the last message of the user in this conversation. Replace "
    "its pronouns by what they stand for. Write the query alone, on one line."
)
"""The message that asks the model for a query; the conversation follows."""
_COUNTS_OF_TEXTS: Final = ("n", "best_of")
_COUNTS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", *_COUNTS_OF_TEXTS)
"""Fields of requests that the operator limits."""
_END_OF_EVENT: Final = re.compile(rb"\n\n|\r\n\r\n")
_MAX_EVENT: Final = 16 << 20  # bytes of a server-sent event


class ProxyService(state.ModelService):
    """The model of another server, to which requests go with passages in one context; UsageError for an ensemble."""

    routers = (_ROUTER,)
    may_choose = options.PASSED_ON
    can = MappingProxyType({"chat": True, "turns": True})

    def __init__(self, endpoint: Endpoint, seconds: float, served: state.Served) -> None:
        super().__init__(endpoint.model, served)
        if self.settings.reading.mixes or self.settings.reading.reranks:
            raise UsageError(
                f"requests to {endpoint.url} are passed on, with passages as they are found in one context: leave out "
                "`reader` ensemble and `rerank`."
            )
        self.open_upstream = partial(Upstream, endpoint, seconds)
        self.prompt = chat.open_chat_prompt(self.options.prompt or "numbered")
        self.reads({})  # fail at startup if a retriever cannot be opened

    def reads(self, choice: Mapping[str, Any]) -> indexes.ReadConfig:
        """Return how passages are found for a request with these choices; RequestError if one is not possible."""
        for name in choice:
            if name not in options.PASSED_ON:
                raise _without_effect(name)
        settings = self._chosen(choice)
        if settings.reading.mixes:
            raise _without_effect("reader", settings.reading.reader_name)
        try:
            return indexes.ReadConfig(settings, None if settings.index is None else self._source(settings))
        except UsageError as error:
            raise state.choice_error(error, choice) from None

    def rewrites(self, choice: Mapping[str, Any]) -> bool:
        """Return whether the model writes the query of a chat with these choices."""
        return self.options.query == "rewrite" and bool(choice.get("index", self.settings.index))

    def checked(self, body: RequestBody) -> Mapping[str, Any]:
        """Return the choices of a request; RequestError if its fields for this server are wrong, or beyond a limit."""
        try:
            request = requests.PassedOnRequest.model_validate(body)
        except pydantic.ValidationError as error:
            raise errors.validation_error({**error.errors()[0]}) from None
        if request.ralm is not None and request.ralm.sources is not None and "messages" not in body:
            message = "`sources` is for chats, and has no effect in other requests: leave it out."
            raise errors.RequestError(message, param="ralm.sources")
        limits = self.options.limits
        for name in _COUNTS:
            most, count = limits.texts if name in _COUNTS_OF_TEXTS else limits.new_tokens, body.get(name)
            if most is not None and count is not None and (type(count) is not int or count > most):
                raise errors.RequestError(f"`{name}` must be a whole number of at most {most:,} here.", param=name)
        return self.chosen(request)


def _without_effect(name: str, value: str = "") -> errors.RequestError:
    what = f"`{name}` {value}".strip()
    message = f"{what} has no effect here, where requests are passed on: leave it out."
    return errors.RequestError(message, param=f"ralm.{name}")


async def pass_on(request: Request) -> Response:
    """Answer with what the server of the model answers; the bodies of some routes get passages."""
    path = request.scope["path"].removeprefix("/v1/")
    if {"", ".", ".."} & {*path.removesuffix("/").split("/")}:  # a server may read them as another path
        return errors.error_response(errors.RequestError(f"there is no {request.url.path} here.", status=404))
    content = await request.body()

    async def work(slot: jobs.Slot) -> Response:
        return await _Exchange(request, f"/{quote(path)}", content, slot).answer()

    return await jobs.respond(request, work)


for _name in (*DIALECTS, "/{path:path}"):  # the log and the metrics name these, and no other path that a client sends
    _ROUTER.add_api_route(f"/v1{_name}", pass_on, methods=["GET", "POST", "DELETE", "PUT", "PATCH"])


class _Exchange:
    """One request and its answer in a slot, which closes what it opens. Raises RequestError and ServerError."""

    def __init__(self, request: Request, path: str, content: bytes, slot: jobs.Slot) -> None:
        self._request = request
        self._path = path
        self._content = content
        self._slot = slot
        self._dialect = DIALECTS.get(path.removesuffix("/")) if request.method == "POST" else None
        self._service: ProxyService = request.app.state.service
        self._upstream: Upstream = request.app.state.upstream
        self._entry = audit.entry_of(request)
        self._sources: text_sources.TextSources | None = None
        self._usage: Mapping[str, JsonValue] = {}
        """The last event of a stream that counts tokens, those of the whole answer."""

    async def answer(self) -> Response:
        """Return the answer of the server; a stream once it begins."""
        body = _json_object(self._content)
        changed = None if body is None else self._renamed(body)
        if self._dialect is not None:
            if body is None:
                raise errors.RequestError(errors.NO_OBJECT)
            with_passages = await self._with_passages(self._dialect, body)
            if isinstance(with_passages, Response):
                return with_passages
            changed = with_passages
        query = self._request.url.query
        path = f"{self._path}?{query}" if query else self._path
        content = self._content if changed is None or changed == body else _json(changed)
        answer = await self._opened(content, self._request.method, path)
        if answer.is_stream:
            return jobs.EventStream(self._request, self._slot, b"", self._events(answer), answer.headers)
        whole = await answer.content()
        if answer.status < 400 and (value := _json_object(whole)) is not None and self._dialect is not None:
            self._count(value)
            self._note(value)
            if self._sources is not None:
                whole = _json(await self._slot.in_thread(partial(self._sources.added, value, whole=True)))
        return Response(whole, answer.status, answer.headers, answer.kind)

    async def _with_passages(self, dialect: CompletionDialect, body: RequestBody) -> RequestBody | Response:
        """Return a body with passages; the error of the server if it was to write the query."""
        choice, prompt = self._service.checked(body), self._service.prompt
        texts = self._texts(dialect, body)
        query, written = choice.get("query"), dict[str, JsonValue]()
        if query is not None and not texts:
            message = "`ralm.query` has no effect without a message of the user: leave it out."
            raise errors.RequestError(message, param="ralm.query")
        if query is None and texts and self._path == _CHATS and self._service.rewrites(choice):
            answer = await self._opened(_json(self._rewriting(body)), "POST", self._path)
            content = await answer.content()
            if answer.status >= 400:
                return Response(content, answer.status, answer.headers, answer.kind)
            written = _rewritten(content)
            query = written["query"]
        queries = texts if query is None else [query] * len(texts)
        reads, passages = await self._slot.in_thread(_search, queries, self._service, choice, self._entry)
        if reads.source is not None:
            address = partial(jobs.passage_address, self._request, reads)
            self._sources = dialect.sources(
                [*zip(passages, texts, strict=True)],
                partial(_fields, reads, passages, written, address),  # called after the first words are sent
                address,
                prompt=prompt if dialect.has_messages else None,
                answers=self._entry.answers,
                times=body.get("n") or 1,
                as_text=(body.get("ralm") or {}).get("sources") == "text",
            )
        changed = self._renamed(body)
        return dialect.with_passages(changed, passages, prompt) if any(passages) else changed

    def _texts(self, dialect: CompletionDialect, body: RequestBody) -> list[str]:
        """Return the texts that passages are searched for; RequestError if there are more than the limit."""
        texts, most_texts = dialect.texts(body), self._service.options.limits.texts
        prompts = body.get("prompt")
        count = len(prompts) if isinstance(prompts, list) and not isinstance(next(iter(prompts), 0), int) else 1
        times = max(body.get(name) or 1 for name in _COUNTS_OF_TEXTS)
        if count * times > most_texts:
            message = f"{count:,} prompts times `n` {times} exceed {most_texts} texts: send several requests."
            raise errors.RequestError(message, param="n")
        self._entry.prompts = [*texts]
        return texts

    def _renamed(self, body: RequestBody) -> RequestBody:
        """Return a body with the server's own name of the model, and without the choices."""
        name = body.get("model")
        self._entry.model = name if isinstance(name, str) else None
        changed = {field: value for field, value in body.items() if field != "ralm"}
        if self._entry.model in self._service.models:
            changed["model"] = self._upstream.endpoint.model
        return changed

    def _rewriting(self, body: RequestBody) -> RequestBody:
        """Return the request for a query from a conversation."""
        endpoint, new_tokens = self._upstream.endpoint, self._service.options.limits.new_tokens
        turns = [turn for turn in body["messages"] if isinstance(turn, dict)]
        said = "\n".join(f"{turn.get('role')}: {text}" for turn in turns if (text := message_text(turn.get("content"))))
        limit = {} if new_tokens is None else {endpoint.limit_field: new_tokens}
        return {"model": endpoint.model, "messages": [{"role": "user", "content": f"{_REWRITE}\n\n{said}"}], **limit}

    async def _opened(self, content: bytes, method: str, path: str) -> UpstreamAnswer:
        answer = await self._upstream.send(method, path, content)
        self._slot.at_end.push_async_callback(answer.close)
        return answer

    def _note(self, value: Mapping[str, JsonValue]) -> None:
        """Note the texts in an answer or an event."""
        for choice, text in self._dialect.answer_texts(value) if self._dialect else ():
            self._entry.wrote(choice, text)

    def _count(self, value: Mapping[str, JsonValue]) -> None:
        """Count the tokens that an answer or an event reports."""
        if (counts := tokens_in_answer(value)) is not None:
            self._entry.prompt_tokens, self._entry.completion_tokens = counts
            self._service.metrics.count_tokens(*counts)

    async def _events(self, answer: UpstreamAnswer) -> AsyncIterator[bytes]:
        """Yield the server-sent events of an answer as they come; those that end a choice have its sources."""
        buffer = EventBuffer()
        try:
            async for part in answer.parts():
                yield b"".join([await self._event(answer.without_key(event)) for event in buffer.add(part)])
            yield answer.without_key(buffer.rest)
        finally:
            self._count(self._usage)

    async def _event(self, event: bytes) -> bytes:
        """Return an event as the client gets it."""
        head, _, content = event.partition(b"data:")
        value = _json_object(content)
        if self._dialect is None or value is None:
            return event
        self._note(value)
        response = value.get("response")  # of the API of responses
        counted = response if isinstance(response, dict) else value
        self._usage = counted if counted.get("usage") else self._usage
        if self._sources is None or not self._sources.ends(value):
            return event
        changed = await self._slot.in_thread(partial(self._sources.added, value, whole=False))
        return head + b"data: " + _json(changed) + b"\n\n"


def _rewritten(content: bytes) -> dict[str, JsonValue]:
    """Return the query that the model wrote, its last line, None if it is empty, and the usage of writing it."""
    try:
        answer = json.loads(content)
        lines = message_text(answer["choices"][0]["message"]["content"]).split("\n")
    except (LookupError, RecursionError, TypeError, ValueError):
        raise ServerError("the server of the model answered the request for a query in an unexpected format.") from None
    query = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return {"query": query, "query_usage": answer.get("usage")}


def _search(
    texts: Sequence[str], service: ProxyService, choice: Mapping[str, Any], entry: audit.AuditEntry
) -> tuple[indexes.ReadConfig, Sequence[Sequence[Passage]]]:
    """Return how passages are found, and those for the beginning of each text in the order in which they are read."""
    reads, most = service.reads(choice), service.options.limits.text_bytes
    passages: list[Sequence[Passage]] = [()] * len(texts)
    asked = [place for place, text in enumerate(texts) if text[:most].strip()]
    if reads.source is None or not asked:
        return reads, passages
    reader = reads.settings.reading.chosen_reader
    hits = reads.source.search([texts[place][:most] for place in asked], reader.hits)
    for row, place in enumerate(asked):
        numbers = tuple(number for number, _ in hits.of(row))
        entry.add_passages(reads.settings.index, [reads.passages[number] for number in numbers])
        if isinstance(reader, Concatenation):
            numbers = reader.in_order(numbers)
        passages[place] = [reads.passages[number] for number in numbers]
    return reads, passages


def _fields(
    reads: indexes.ReadConfig,
    retrieved: Sequence[Sequence[Passage]],
    written: Mapping[str, JsonValue],
    address: Callable[[Passage], str],
) -> answers.ResponseJson:
    """Return the fields of a response about its passages."""
    passages = [passage for passages in retrieved for passage in passages]
    config: answers.ResponseJson = {"index": reads.settings.index, "retriever": reads.settings.retrieval.retriever}
    return {
        "ralm": {**config, **written, "passages": [answers.passage_json(passage) for passage in passages]},
        "search_results": [answers.search_result(passage, address(passage)) for passage in passages],
    }


class EventBuffer:
    """The beginning of an event that has not come whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return bytes(self._buffer)

    def add(self, part: bytes) -> list[bytes]:
        """Return the events that a part makes whole; ServerError if one is too long."""
        begin, place, events = 0, max(0, len(self._buffer) - 3), list[bytes]()  # an end may have begun before the part
        self._buffer += part
        while (end := _END_OF_EVENT.search(self._buffer, place)) is not None:
            events.append(bytes(self._buffer[begin : end.end()]))
            begin = place = end.end()
        del self._buffer[:begin]
        if len(self._buffer) > _MAX_EVENT:
            raise ServerError(f"the server of the model sent an event of more than {_MAX_EVENT:,} bytes.", 200)
        return events


def _json(value: RequestBody) -> bytes:
    """Return a value as JSON in ASCII: a server may send a lone surrogate, which UTF-8 does not have."""
    return json.dumps(value, separators=(",", ":")).encode()


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(text)
    return number


_DECODER: Final = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _json_object(content: bytes) -> RequestBody | None:
    """Return the object that JSON stands for; None for anything else, such as numbers that JSON does not have."""
    try:
        value = _DECODER.decode(content.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
