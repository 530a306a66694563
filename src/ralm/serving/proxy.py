"""Passes requests on to another server: chats, completions and responses get passages, all else stays as it is.

The passages stand in the last message of the user, or before a prompt. All other fields go on and come back as they
are, except for `ralm`, which is for this server, and the name of the model.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
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
from ralm.reading.concatenation import Concatenation
from ralm.records import Passage
from ralm.serving import answers, errors, jobs, requests
from ralm.serving.audit import AuditEntry, AuditLog, entry_of
from ralm.serving.chat import open_chat_prompt
from ralm.serving.dialects import DIALECTS, Dialect, RequestBody, message_text
from ralm.serving.indexes import ReadConfig
from ralm.serving.options import PASSED_ON, ServeOptions, Settings
from ralm.serving.state import ModelService, choice_error
from ralm.serving.text_sources import TextSources

_ROUTER: Final = APIRouter()
_CHATS: Final = "/chat/completions"
_REWRITE: Final = (
    "Write one search query that finds texts for answering the last message of the user in this conversation. Replace "
    "its pronouns by what they stand for. Write the query alone, on one line."
)
"""The message that asks the model for a query; the conversation follows."""
_COUNTS_OF_TEXTS: Final = ("n", "best_of")
_COUNTS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", *_COUNTS_OF_TEXTS)
"""Fields of requests that the operator limits."""


class ProxyService(ModelService):
    """The model of another server, to which requests are passed on with passages of indexes in one context. UsageError
    if the settings ask for an ensemble or a reranker."""

    routers = (_ROUTER,)
    may_choose = PASSED_ON

    def __init__(
        self,
        endpoint: Endpoint,
        seconds: float,
        options: ServeOptions | None = None,
        settings: Settings | None = None,
        folders: Mapping[str, Path] | None = None,
        *,
        key: str | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        super().__init__(endpoint.model, options, settings, folders, key=key, audit=audit)
        if self.settings.reading.mixes or self.settings.reading.reranks:
            raise UsageError(
                f"requests to {endpoint.url} are passed on, with passages as they are found in one context: leave out "
                "`reader` ensemble and `rerank`."
            )
        self.open_upstream = partial(Upstream, endpoint, seconds)
        self.prompt = open_chat_prompt(self.options.prompt or "numbered")
        self.reads({})  # fail at startup if a retriever cannot be opened

    @property
    def description(self) -> dict[str, Any]:
        """Return what requests may ask for; the length of the model is not known."""
        can = {"chat": True, "turns": True, "completions": False}
        limit = self.options.limits.new_tokens
        return {"max_model_len": None, "most_new_tokens": limit, "passes_on": True, "can": can}

    def reads(self, choice: Mapping[str, Any]) -> ReadConfig:
        """Return how passages are found for a request with these choices; RequestError if one is not possible."""
        for name in choice:
            if name not in PASSED_ON:
                raise _without_effect(name)
        settings = self._chosen(choice)
        if settings.reading.mixes:
            raise _without_effect("reader", settings.reading.reader_name)
        try:
            return ReadConfig(settings, None if settings.index is None else self._source(settings))
        except UsageError as error:
            raise choice_error(error, choice) from None

    def checked(self, body: RequestBody) -> Mapping[str, Any]:
        """Return the choices of a request; RequestError if its fields for this server are wrong, or beyond a limit."""
        try:
            request = requests.PassedOnRequest.model_validate(body)
        except pydantic.ValidationError as error:
            raise errors.validation_error({**error.errors()[0]}, [*requests.Chosen.model_fields]) from None
        if request.ralm is not None and request.ralm.sources is not None and "messages" not in body:
            message = "`sources` is for chats, and has no effect in other requests: leave it out."
            raise errors.RequestError(message, param="ralm.sources")
        limits = self.options.limits
        for name in _COUNTS:
            most, count = limits.texts if name in _COUNTS_OF_TEXTS else limits.new_tokens, body.get(name)
            if most is not None and count is not None and (type(count) is not int or count > most):
                raise errors.RequestError(f"`{name}` must be a whole number of at most {most:,} here.", param=name)
        choice = self.chosen(request.model, request.chosen)
        if "query" in choice:
            errors.check_bytes([choice["query"]], limits.text_bytes, "ralm.query")
            if not choice["query"].strip():
                message = "`ralm.query` is empty: leave it out, or give at least one word."
                raise errors.RequestError(message, param="ralm.query")
        return choice


def _without_effect(name: str, value: str = "") -> errors.RequestError:
    what = f"`{name}` {value}".strip()
    message = f"{what} has no effect here, where requests are passed on: leave it out."
    return errors.RequestError(message, param=f"ralm.{name}")


@_ROUTER.api_route("/v1/{path:path}", methods=["GET", "POST", "DELETE", "PUT", "PATCH"], include_in_schema=False)
async def pass_on(request: Request, path: str) -> Response:
    """Answer with what the server of the model answers; the bodies of some routes get passages."""
    if {"", ".", ".."} & {*path.removesuffix("/").split("/")}:  # a server may read them as another path
        return errors.error_response(errors.RequestError(f"there is no {request.url.path} here.", status=404))
    begin = time.monotonic()
    workers = request.app.state.workers

    async def work() -> Response:
        content = await request.body()
        slot = await workers.take_slot()
        async with AsyncExitStack() as at_end:
            at_end.callback(slot.leave)
            async with jobs.until(slot.deadline):
                answer = await _Exchange(request, f"/{quote(path)}", content, slot, at_end).answer()
            if isinstance(answer, Response):
                return answer
            request.app.state.service.metrics.first.observe(time.monotonic() - begin)
            return jobs.EventStream(answer.events(), at_end.pop_all(), answer.answer.headers, slot.deadline)

    try:
        return await jobs.unless_gone(request.receive, work) or Response(status_code=errors.GONE)
    except Exception as error:  # noqa: BLE001  # every error is a response
        return errors.error_response(error)


@dataclass(frozen=True, slots=True)
class _Found:
    """The passages that a request gets: for each of its texts, with the query that the model wrote, if it did."""

    reads: ReadConfig
    passages: Sequence[Sequence[Passage]] = ()
    written: Mapping[str, JsonValue] = field(default_factory=dict)


class _Exchange:
    """One request and its answer; what it opens is closed by `at_end`. Raises RequestError and ServerError."""

    def __init__(self, request: Request, path: str, content: bytes, slot: jobs.Slot, at_end: AsyncExitStack) -> None:
        self._request = request
        self._path = path
        self._content = content
        self._slot = slot
        self._at_end = at_end
        self._dialect = DIALECTS.get(path.removesuffix("/")) if request.method == "POST" else None
        self._service: ProxyService = request.app.state.service
        self._upstream: Upstream = request.app.state.upstream
        self._entry = entry_of(request)

    async def answer(self) -> "Response | _Stream":
        """Return the whole answer of the server, or its stream once it begins."""
        body = _json_object(self._content)
        if self._dialect is None:
            renamed = body and self._renamed(body)
            return await self._sent(self._content if renamed is None or renamed == body else renamed, None, None)
        if body is None:
            raise errors.RequestError(errors.NO_OBJECT)
        choice = self._service.checked(body)
        found = await self._found(self._dialect, body, choice)
        if isinstance(found, Response):
            return found
        reader = found.reads.settings.reading.chosen_reader
        is_reversed = isinstance(reader, Concatenation) and reader.order == "best-last"
        for passages in found.passages:
            self._entry.found(found.reads.settings.index, passages[::-1] if is_reversed else passages)
        changed = self._renamed(body)
        if any(found.passages):
            changed = self._dialect.with_passages(changed, found.passages, self._service.prompt)
        sources = None if found.reads.source is None else self._sources(self._dialect, body, found)
        return await self._sent(self._content if changed == body else changed, self._dialect, sources)

    def _renamed(self, body: RequestBody) -> RequestBody:
        """Return a body with the server's own name of the model, and without the choices."""
        name = body.get("model")
        self._entry.model = name if isinstance(name, str) else None
        changed = {field: value for field, value in body.items() if field != "ralm"}
        if name in self._service.models:
            changed["model"] = self._upstream.endpoint.model
        return changed

    async def _found(self, dialect: Dialect, body: RequestBody, choice: Mapping[str, Any]) -> "_Found | Response":
        """Return the passages for the texts of a request; the error of the server if it was to write the query."""
        texts, most_texts = dialect.texts(body), self._service.options.limits.texts
        prompts = body.get("prompt")
        count = len(prompts) if isinstance(prompts, list) and not isinstance(next(iter(prompts), 0), int) else 1
        times = max(body.get(name) or 1 for name in _COUNTS_OF_TEXTS)
        if count * times > most_texts:
            message = f"{count:,} prompts times `n` {times} exceed {most_texts} texts: send several requests."
            raise errors.RequestError(message, param="n")
        self._entry.prompts = [*texts]
        queries, written = texts, dict[str, JsonValue]()
        if "query" in choice:
            if not texts:
                message = "`ralm.query` has no effect without a message of the user: leave it out."
                raise errors.RequestError(message, param="ralm.query")
            queries = [choice["query"]] * len(texts)
        elif (
            texts
            and self._path == _CHATS
            and self._service.options.query == "rewrite"
            and choice.get("index", self._service.settings.index)
        ):
            asked = _rewriting(body, self._upstream.endpoint, self._service.options.limits.new_tokens)
            answer = await self._opened(_json(asked), "POST", self._path)
            content = await answer.content()
            if answer.status >= 400:
                return Response(content, answer.status, answer.headers, answer.kind)
            written = _rewritten(content)
            queries = [str(written["query"] or texts[0])]
        reads, passages = await self._slot.in_thread(_search, queries, self._service, choice)
        return _Found(reads, passages, written)

    def _sources(self, dialect: Dialect, body: RequestBody, found: _Found) -> TextSources:
        """Return what adds the sources to the answer."""
        address = partial(jobs.passage_address, self._request, found.reads)
        choices = body.get("ralm") or {}
        return dialect.sources(
            [*zip(found.passages, dialect.texts(body), strict=True)],
            partial(_fields, found, address),  # called after the first words are sent
            address,
            prompt=self._service.prompt if dialect.has_messages else None,
            times=body.get("n") or 1,
            as_text=choices.get("sources") == "text",
        )

    async def _opened(self, content: bytes, method: str, path: str) -> UpstreamAnswer:
        answer = await self._upstream.send(method, path, content)
        self._at_end.push_async_callback(answer.close)
        return answer

    async def _sent(
        self, body: RequestBody | bytes, dialect: Dialect | None, sources: TextSources | None
    ) -> "Response | _Stream":
        """Return the answer to a body; that of a dialect is counted, and gets its sources."""
        query = self._request.url.query
        path = f"{self._path}?{query}" if query else self._path
        content = body if isinstance(body, bytes) else _json(body)
        answer = await self._opened(content, self._request.method, path)
        if answer.is_stream:
            return _Stream(answer, dialect, sources, self._service, self._entry, self._slot)
        whole = await answer.content()
        value = _json_object(whole) if dialect is not None and answer.status < 400 else None
        if dialect is not None and value is not None:
            _count(self._entry, self._service, value)
            for choice, text in dialect.answer_texts(value):
                self._entry.wrote(choice, text)
            whole = whole if sources is None else _json(await self._slot.in_thread(sources.whole, value))
        return Response(whole, answer.status, answer.headers, answer.kind)


def _rewriting(body: RequestBody, endpoint: Endpoint, new_tokens: int | None) -> RequestBody:
    """Return the request for a query from a conversation."""
    turns = [turn for turn in body["messages"] if isinstance(turn, dict)]
    said = "\n".join(f"{turn.get('role')}: {text}" for turn in turns if (text := message_text(turn.get("content"))))
    limit = {} if new_tokens is None else {endpoint.limit_field: new_tokens}
    return {"model": endpoint.model, "messages": [{"role": "user", "content": f"{_REWRITE}\n\n{said}"}], **limit}


def _rewritten(content: bytes) -> dict[str, JsonValue]:
    """Return the query that the model wrote, its last line, and what writing it took; a query of None if it wrote
    none."""
    try:
        answer = json.loads(content)
        lines = message_text(answer["choices"][0]["message"]["content"]).split("\n")
    except (LookupError, RecursionError, TypeError, ValueError):
        raise ServerError("the server of the model answered the request for a query in an unexpected format.") from None
    query = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return {"query": query, "query_usage": answer.get("usage")}


def _search(
    texts: Sequence[str], service: ProxyService, choice: Mapping[str, Any]
) -> tuple[ReadConfig, Sequence[Sequence[Passage]]]:
    """Return how passages are found, and those for the beginning of each text in the order in which they are read."""
    reads, most = service.reads(choice), service.options.limits.text_bytes
    found: list[Sequence[Passage]] = [()] * len(texts)
    asked = [place for place, text in enumerate(texts) if text[:most].strip()]
    if reads.source is None or not asked:
        return reads, found
    reader = reads.settings.reading.chosen_reader
    hits = reads.source.search([texts[place][:most] for place in asked], reader.hits)
    for row, place in enumerate(asked):
        numbers = tuple(number for number, _ in hits.of(row))
        if isinstance(reader, Concatenation):
            numbers = reader.in_order(numbers)
        found[place] = [reads.passages[number] for number in numbers]
    return reads, found


def _fields(found: _Found, address: Callable[[Passage], str]) -> answers.ResponseJson:
    """Return the fields of a response about its passages."""
    passages = [passage for text in found.passages for passage in text]
    settings = found.reads.settings
    config: answers.ResponseJson = {"index": settings.index, "retriever": settings.retrieval.retriever}
    return {
        "ralm": {**config, **found.written, "passages": [answers.passage_json(passage) for passage in passages]},
        "search_results": [answers.search_result(passage, address(passage)) for passage in passages],
    }


def _count(entry: AuditEntry, service: ProxyService, value: Mapping[str, JsonValue]) -> None:
    """Count the tokens that an answer or an event reports."""
    if (counts := tokens_in_answer(value)) is not None:
        entry.prompt_tokens, entry.completion_tokens = counts
        service.metrics.count_tokens(*counts)


@dataclass(slots=True, eq=False)
class _Stream:
    """The server-sent events of an answer as they come; those that end a choice have its sources."""

    answer: UpstreamAnswer
    dialect: Dialect | None
    sources: TextSources | None
    service: ProxyService
    entry: AuditEntry
    slot: jobs.Slot
    usage: Mapping[str, JsonValue] | None = None
    """The last event that counts tokens, those of the whole answer."""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events; after an error one that says so."""
        parts, buffer = aiter(self.answer.parts()), jobs.EventBuffer()
        try:
            while True:
                async with jobs.until(self.slot.deadline):
                    part = await anext(parts, b"")
                if not part:
                    break
                yield b"".join([await self._event(event) for event in buffer.add(part)])
            yield self.answer.without_key(buffer.rest)
        except Exception as error:  # noqa: BLE001  # the status is sent already
            yield jobs.error_event(error, self.entry)
        finally:
            if self.usage is not None:
                _count(self.entry, self.service, self.usage)

    async def _event(self, event: bytes) -> bytes:
        """Return an event as the client gets it."""
        event = self.answer.without_key(event)
        head, _, content = event.partition(b"data:")
        value = _json_object(content)
        if self.dialect is None or value is None:
            return event
        for choice, text in self.dialect.answer_texts(value):
            self.entry.wrote(choice, text)
        response = value.get("response")  # of the API of responses
        counted = response if isinstance(response, dict) else value
        self.usage = counted if counted.get("usage") else self.usage
        if self.sources is None or not self.sources.note(value):
            return event
        changed = await self.slot.in_thread(self.sources.event, value)
        return head + b"data: " + _json(changed) + b"\n\n"


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
