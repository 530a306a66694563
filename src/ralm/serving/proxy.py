"""Passes requests on to another server: chats, completions and responses get passages, all else stays as it is.

The passages stand in the last message of the user, or before a prompt. All other fields go on and come back as they
are, except for `ralm`, which is for this server, and the name of the model.
"""

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from math import isfinite
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from ralm.errors import ServerError, UsageError
from ralm.lm.api.answers import tokens_in_answer
from ralm.lm.api.endpoint import Endpoint
from ralm.lm.api.http import Upstream, UpstreamAnswer
from ralm.records import Passage
from ralm.serving import errors, jobs, local, middleware, options, requests, state
from ralm.serving.dialects import DIALECTS, CompletionDialect, RequestBody, TextSources

_ROUTER: Final = APIRouter(include_in_schema=False)
_COUNTS_OF_TEXTS: Final = ("n", "best_of")
_COUNTS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", *_COUNTS_OF_TEXTS)
"""Fields of requests that the operator limits."""
_END_OF_EVENT: Final = re.compile(rb"\n\n|\r\n\r\n")
_MAX_EVENT: Final = 16 << 20  # bytes of a server-sent event


class ProxyService(state.ModelService):
    """The model of another server, to which requests go with passages in one context; UsageError for an ensemble."""

    routers = (_ROUTER,)
    can = MappingProxyType({"chat": True, "turns": True})

    def __init__(self, endpoint: Endpoint, seconds: float, served: state.Served) -> None:
        super().__init__(endpoint.model, served)
        if self.settings.reading.mixes or self.settings.reading.reranks:
            raise UsageError(
                f"requests to {endpoint.url} are passed on, with passages as they are found in one context: leave out "
                "`reader` ensemble and `rerank`."
            )
        self.open_upstream = partial(Upstream, endpoint, seconds)
        self.prompt = local.open_chat_prompt(self.options.prompt or "numbered")
        self.reads({})  # fail at startup if a retriever cannot be opened

    def reads(self, choice: Mapping[str, Any]) -> state.ReadConfig:
        """Return how passages are found for a request with these choices; RequestError if one is not possible."""
        for name in choice:
            if name not in options.PASSED_ON:
                raise _without_effect(name)
        settings = self._chosen(choice)
        if settings.reading.mixes:
            raise _without_effect("reader", settings.reading.reader_name)
        try:
            return state.ReadConfig(settings, None if settings.index is None else self._source(settings))
        except UsageError as error:
            raise state.choice_error(error, choice) from None

    def checked(self, body: RequestBody) -> Mapping[str, Any]:
        """Return the choices of a request; RequestError if its fields for this server are wrong, or beyond a limit."""
        request = requests.read_body(requests.PassedOnRequest, body)
        if request.ralm is not None and request.ralm.sources is not None and "messages" not in body:
            message = "`sources` is for chats, and has no effect in other requests: leave it out."
            raise errors.RequestError(message, param="ralm.sources")
        limits = self.options.limits
        for name in _COUNTS:
            most, count = options.MAX_TEXTS if name in _COUNTS_OF_TEXTS else limits.new_tokens, body.get(name)
            if most is not None and count is not None and (type(count) is not int or count > most):
                raise errors.RequestError(f"`{name}` must be a whole number of at most {most:,} here.", param=name)
        prompts = body.get("prompt")
        count = len(prompts) if isinstance(prompts, list) and not isinstance(next(iter(prompts), 0), int) else 1
        times = max(body.get(name) or 1 for name in _COUNTS_OF_TEXTS)
        if count * times > options.MAX_TEXTS:
            message = f"{count:,} prompts times `n` {times} exceed {options.MAX_TEXTS} texts: send several requests."
            raise errors.RequestError(message, param="n")
        return self.chosen(request)

    def search(
        self, texts: Sequence[str], choice: Mapping[str, Any], entry: middleware.AuditEntry
    ) -> tuple[state.ReadConfig, Sequence[Sequence[Passage]]]:
        """Return how passages are found, and those for the beginning of each text in the order of reading."""
        reads, most = self.reads(choice), options.MAX_TEXT_BYTES
        passages: list[Sequence[Passage]] = [()] * len(texts)
        asked = [place for place, text in enumerate(texts) if text[:most].strip()]
        if reads.source is None or not asked:
            return reads, passages
        reader = reads.settings.reading.chosen_reader
        hits = reads.source.search([texts[place][:most] for place in asked], reader.hits)
        for row, place in enumerate(asked):
            numbers = tuple(number for number, _ in hits.of(row))
            entry.add_passages(reads.settings.index, enumerate((reads.passages[number] for number in numbers), 1))
            passages[place] = [reads.passages[number] for number in numbers]
        return reads, passages


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
        self._entry = middleware.entry_of(request)
        self._sources: TextSources | None = None
        self._answers = defaultdict[int, list[str]](list)
        """The texts of the choices so far."""
        slot.at_end.callback(self._count_tokens)

    async def answer(self) -> Response:
        """Return the answer of the server; a stream once it begins."""
        body = _json_object(self._content)
        changed = None if body is None else self._renamed(body)
        if self._dialect is not None:
            if body is None or changed is None:
                raise errors.RequestError(errors.NO_OBJECT)
            changed = await self._with_passages(self._dialect, body, changed)
        query = self._request.url.query
        path = f"{self._path}?{query}" if query else self._path
        content = self._content if changed is None or changed == body else _json(changed)
        answer = await self._upstream.send(self._request.method, path, content)
        self._slot.at_end.push_async_callback(answer.close)
        if answer.is_stream:
            return jobs.EventStream(self._request, self._slot, b"", self._events(answer), answer.headers)
        whole = await answer.content()
        if answer.status < 400 and (value := _json_object(whole)) is not None and self._dialect is not None:
            self._note(self._dialect, value)
            if self._sources is not None:
                whole = _json(await self._slot.in_thread(self._sources.added, value))
        return Response(whole, answer.status, answer.headers, answer.kind)

    async def _with_passages(self, dialect: CompletionDialect, body: RequestBody, changed: RequestBody) -> RequestBody:
        """Return the changed body with passages, and keep how the answer gets its sources."""
        choice, prompt = self._service.checked(body), self._service.prompt
        texts, query = dialect.texts(body), choice.get("query")
        if query is not None and not texts:
            message = "`ralm.query` has no effect without a message of the user: leave it out."
            raise errors.RequestError(message, param="ralm.query")
        queries = texts if query is None else [query] * len(texts)
        reads, passages = await self._slot.in_thread(self._service.search, queries, choice, self._entry)
        if reads.source is not None:
            self._sources = dialect.sources(
                [*zip(passages, texts, strict=True)],
                reads.settings,
                partial(jobs.passage_address, self._request, reads),
                prompt=prompt if dialect.has_messages else None,
                answers=self._answers,
                times=body.get("n") or 1,
                as_text=(body.get("ralm") or {}).get("sources") == "text",
            )
        return dialect.with_passages(changed, passages, prompt) if any(passages) else changed

    def _renamed(self, body: RequestBody) -> RequestBody:
        """Return a body with the server's own name of the model, and without the choices."""
        name = body.get("model")
        self._entry.model = name if isinstance(name, str) else None
        changed = {field: value for field, value in body.items() if field != "ralm"}
        if self._entry.model in self._service.models:
            changed["model"] = self._upstream.endpoint.model
        return changed

    def _note(self, dialect: CompletionDialect, value: Mapping[str, Any]) -> None:
        """Note the texts in an answer or an event, and the tokens that it reports; the last report counts all."""
        for choice, text in dialect.answer_texts(value):
            self._answers[choice].append(text)
        response = value.get("response")  # of the API of responses
        counts = tokens_in_answer(response if isinstance(response, dict) else value)
        if counts is not None:
            self._entry.prompt_tokens, self._entry.completion_tokens = counts

    def _count_tokens(self) -> None:
        self._service.metrics.count_tokens(self._entry.prompt_tokens or 0, self._entry.completion_tokens or 0)

    async def _events(self, answer: UpstreamAnswer) -> AsyncIterator[bytes]:
        """Yield the server-sent events of an answer as they come; those that end a choice have its sources."""
        buffer = EventBuffer()
        async for part in answer.parts():
            yield b"".join([await self._event(answer.without_key(event)) for event in buffer.add(part)])
        yield answer.without_key(buffer.rest)

    async def _event(self, event: bytes) -> bytes:
        """Return an event as the client gets it."""
        head, _, content = event.partition(b"data:")
        value = _json_object(content)
        if self._dialect is None or value is None:
            return event
        self._note(self._dialect, value)
        if self._sources is None or not self._sources.ends(value):
            return event
        return head + b"data: " + _json(await self._slot.in_thread(self._sources.added_to_event, value)) + b"\n\n"


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
