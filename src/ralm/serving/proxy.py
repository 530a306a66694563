"""Passes requests on to the server of the model, with passages in one place, and its answers back as they come.

The passages stand in the last message of the user, or before a prompt. All other fields go on and come back as they
are, except for `ralm`, which is for this server, and the name of the model.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pydantic
from fastapi import Request
from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from ralm.answering.prompts import QuestionPrompt
from ralm.errors import ServerError, UsageError
from ralm.reading.concatenation import Concatenation
from ralm.records import Passage
from ralm.serving import answers, errors, jobs, middleware, requests
from ralm.serving.audit import AuditEntry, entry_of
from ralm.serving.indexes import ReadConfig
from ralm.serving.options import PASSED_ON
from ralm.serving.prompts import TOO_LONG
from ralm.serving.service import Service
from ralm.serving.text_sources import TextSources, choice_texts, choices_of
from ralm.terminal import one_line

if TYPE_CHECKING:
    from ralm.lm.api.http import Upstream, UpstreamAnswer

WARNING: Final = "X-Ralm-Warning"
"""The header that says why a request was passed on, or what an answer leaves out."""
_MAX_HEADER: Final = 500
_CHAT: Final = "/chat/completions"
_EMBEDDINGS: Final = "/embeddings"
"""The route that is passed on without passages."""
_QUESTION: Final = "\0"
"""Stands for the message in a prompt, which may have parts that are no text."""
_END_OF_EVENT: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")
_MAX_EVENT: Final = 16 << 20  # bytes of a server-sent event
_REWRITE: Final = (
    "Write one search query that finds texts for answering the last message of the user in this conversation. Replace "
    "its pronouns by what they stand for. Write the query alone, on one line."
)
"""The message that asks the model for a query; the conversation follows."""
_PIECES: Final = ("content", "text", "tool_calls", "reasoning_content", "reasoning", "refusal")
"""Fields of an event that hold a piece of an answer."""
_LIMITED: Final = ("max_tokens", "max_completion_tokens", "n")
_Body = dict[str, Any]


def otherwise(request: Request, body: Any) -> Callable[[Exception], Awaitable[Response]]:
    """What is done about an error before the answer: a request that only this server rejects is passed on."""

    async def respond(error: Exception) -> Response:
        service: Service = request.app.state.service
        if not isinstance(body, dict) or not _may_be_passed_on(error, body.get("ralm"), service):
            return errors.error_response(error)
        return await pass_on(request, body, "" if service.passes_on else str(error))

    return respond


def _may_pass_on(service: Service) -> bool:
    """Whether requests that this server cannot answer are passed on."""
    return service.open_upstream is not None and not service.options.strict


def _may_be_passed_on(error: Exception, choices: Any, service: Service) -> bool:
    """Whether the server of the model may still answer a request that failed here, as its choices say."""
    if not _may_pass_on(service):
        return False
    if isinstance(choices, dict) and not set(choices) <= {*PASSED_ON, "sources"} and not service.passes_on:
        return False
    if isinstance(error, errors.RequestError):
        is_limit = error.code == TOO_LONG and service.options.limits.prompt_tokens is not None
        return error.status == 400 and not is_limit and not (error.param or "").startswith("ralm")
    return isinstance(error, UsageError) or (isinstance(error, ServerError) and error.rejects_request)


async def _endpoint(request: Request) -> Response:
    """The answer to a request where all are passed on, whose body is only read here."""
    body = _json_object(await request.body())
    if body is None:
        return errors.error_response(errors.RequestError(errors.NO_OBJECT))
    return await pass_on(request, body)


class KnownRoute(Route):
    """A route without FastAPI's validation, which the access log knows by its path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As `Route.matches`."""
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def passed_on_routes(service: Service) -> list[BaseRoute]:
    """The routes whose requests are all passed on; they come before those of a server that answers itself."""
    paths = [_EMBEDDINGS] if _may_pass_on(service) else []
    if service.passes_on:
        paths += [_CHAT, "/completions"]
    return [KnownRoute(f"/v1{path}", _endpoint, methods=["POST"]) for path in paths]


async def pass_on(request: Request, body: _Body, warning: str = "") -> Response:
    """The answer of the server of the model to a request, with passages in it; `warning` is for its header."""
    begin = time.monotonic()
    service: Service = request.app.state.service
    upstream: Upstream = request.app.state.upstream
    workers = request.app.state.workers
    path, query = request.url.path.removeprefix("/v1"), request.url.query
    name: JsonValue = upstream.endpoint.model
    entry, asked = entry_of(request), body.get("model")
    entry.model = asked if isinstance(asked, str) else None
    if path == _EMBEDDINGS and body.get("model") not in service.models:
        name = body.get("model")  # another model of the same server

    async def work() -> Response:
        deadline = await workers.take_place()
        async with AsyncExitStack() as at_end:
            at_end.callback(workers.free_place)
            async with jobs.until(deadline):
                reads, texts, found = await asyncio.to_thread(_prepared, path, body, service)
                told = answers.ResponseJson()
                if found is None:
                    answer = await upstream.send(path, _rewriting(body, upstream.endpoint.model))
                    at_end.push_async_callback(answer.close)
                    content = await answer.content()
                    if answer.status >= 400:
                        return Response(content, answer.status, _headers(answer, warning), answer.kind)
                    told = _rewritten(content)
                    query_texts, most = [str(told["query"] or texts[0])], service.options.limits.text_bytes
                    found = await asyncio.to_thread(_found, query_texts, reads, most)
                entry.prompts = [*texts]
                reader = reads.settings.reading.chosen_reader
                is_reversed = isinstance(reader, Concatenation) and reader.order == "best-last"
                for some in found:
                    entry.found(reads.settings.index, some[::-1] if is_reversed else some)
                sent = _with_passages(path, body, found, service.passed_on_prompt)
                answer = await upstream.send(f"{path}?{query}" if query else path, {**sent, "model": name})
                at_end.push_async_callback(answer.close)
                address = partial(jobs.passage_address, request, reads)
                chosen, times = body.get("ralm") or {}, body.get("n")
                sources = (
                    None
                    if reads.source is None
                    else TextSources(
                        [*zip(found, _texts(path, body), strict=True)],
                        partial(_fields, found, reads, told, address),  # called after the first words are sent
                        address,
                        prompt=service.passed_on_prompt if path == _CHAT else None,
                        times=times if isinstance(times, int) else 1,
                        as_text=chosen.get("sources") == "text",
                    )
                )
                if not answer.is_stream:
                    content = await answer.content()
                    if answer.status < 400 and (value := _json_object(content)) is not None:
                        _count(entry, service.metrics, value)
                        entry.answers = dict(choice_texts(value))
                        content = content if sources is None else _json(await sources.whole(value))
                    return Response(content, answer.status, _headers(answer, warning), answer.kind)
            service.metrics.first.observe(time.monotonic() - begin)
            events = _events(answer, sources, deadline, service.metrics, entry)
            return jobs.EventStream(events, at_end.pop_all(), _headers(answer, warning))

    try:
        return await jobs.unless_gone(request, work)
    except Exception as error:  # noqa: BLE001  # every error is a response
        return errors.error_response(error)


def _prepared(
    path: str, body: _Body, service: Service
) -> tuple[ReadConfig, Sequence[str], Sequence[Sequence[Passage]] | None]:
    """How passages are found for a request, its texts, and their passages; None if a query is to be written first."""
    if path == _EMBEDDINGS:
        return ReadConfig(replace(service.settings, index=None)), (), ()
    choice, reads = _checked(body, service)
    texts = _texts(path, body)
    if "query" in choice:
        if not texts:
            message = "`ralm.query` has no effect without a message of the user: leave it out."
            raise errors.RequestError(message, param="ralm.query")
        texts = [choice["query"]] * len(texts)
    elif texts and path == _CHAT and reads.source is not None and service.options.query == "rewrite":
        return reads, texts, None
    return reads, texts, _found(texts, reads, service.options.limits.text_bytes)


def _checked(body: _Body, service: Service) -> tuple[Mapping[str, Any], ReadConfig]:
    """The choices of a request and how passages are found for it; RequestError if they are not possible here."""
    try:
        given = requests.PassedOnRequest.model_validate(body)
    except pydantic.ValidationError as error:
        raise errors.validation_error({**error.errors()[0]}, [*requests.Chosen.model_fields]) from None
    if given.ralm is not None and given.ralm.sources is not None and "messages" not in body:
        message = "`sources` is for chats, and has no effect in a completion: leave it out."
        raise errors.RequestError(message, param="ralm.sources")
    for name in _LIMITED:
        most = service.options.limits.texts if name == "n" else service.options.limits.new_tokens
        if most is not None and isinstance(body.get(name), int) and body[name] > most:
            raise errors.RequestError(f"`{name}` must be at most {most:,} here.", param=name)
    choice = service.chosen(given.model, given.chosen)
    for name in choice:
        if name not in PASSED_ON:
            message = f"`{name}` has no effect here, where requests are passed on: leave it out."
            raise errors.RequestError(message, param=f"ralm.{name}")
    reads = service.reads(choice, in_strides=False)
    if reads.settings.reading.mixes:
        name = reads.settings.reading.reader_name
        message = f"`reader` {name} has no effect here, where requests are passed on: leave it out."
        raise errors.RequestError(message, param="ralm.reader")
    return choice, reads


def _texts(path: str, body: _Body) -> list[str]:
    """The texts that passages are found for: the last message of the user, or prompts; "" for one that is no text."""
    if path == _CHAT:
        place = _place_of_question(body)
        return [] if place is None else [_message_text(body["messages"][place].get("content"))]
    return [one if isinstance(one, str) else "" for one in _prompts(body)]


def _prompts(body: _Body) -> list[Any]:
    """The prompts of a completion; token ids, alone or in a list, are one prompt that is no text."""
    given = body.get("prompt")
    return given if isinstance(given, list) and all(isinstance(one, str) for one in given) else [given]


def _place_of_question(body: _Body) -> int | None:
    """The place of the last message of the user; None if there is none."""
    messages = body.get("messages")
    given = enumerate(messages) if isinstance(messages, list) else ()
    return max((place for place, one in given if isinstance(one, dict) and one.get("role") == "user"), default=None)


def _message_text(content: Any) -> str:
    """The text of a message, without other parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [one.get("text") for one in parts if isinstance(one, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _rewriting(body: _Body, name: str) -> _Body:
    """The request for a query from a conversation."""
    turns = [one for one in body["messages"] if isinstance(one, dict)]
    said = "\n".join(f"{one.get('role')}: {text}" for one in turns if (text := _message_text(one.get("content"))))
    return {"model": name, "messages": [{"role": "user", "content": f"{_REWRITE}\n\n{said}"}]}


def _rewritten(content: bytes) -> answers.ResponseJson:
    """The query that the model wrote, its last line, and what writing it took; a query of None if it wrote none."""
    try:
        answer = json.loads(content)
        lines = _message_text(answer["choices"][0]["message"]["content"]).split("\n")
    except (LookupError, TypeError, ValueError):
        raise ServerError("the server of the model answered the request for a query in an unexpected format.") from None
    query = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return {"query": query, "query_usage": answer.get("usage")}


def _found(texts: Sequence[str], reads: ReadConfig, most: int) -> Sequence[Sequence[Passage]]:
    """Return the passages for the beginning of each text, in the order in which they are read."""
    found: list[Sequence[Passage]] = [()] * len(texts)
    asked = [place for place, text in enumerate(texts) if text[:most].strip()]
    if reads.source is None or not asked:
        return found
    reader, wanted = reads.settings.reading.chosen_reader, [texts[place][:most] for place in asked]
    hits = reads.source.search(wanted, reader.hits)
    for row, place in enumerate(asked):
        numbers = tuple(number for number, _ in hits.of(row))
        if isinstance(reader, Concatenation):
            numbers = reader.in_order(numbers)
        found[place] = [reads.passages[number] for number in numbers]
    return found


def _with_passages(path: str, body: _Body, found: Sequence[Sequence[Passage]], prompt: QuestionPrompt) -> _Body:
    """The request with these passages for its texts, and without the choices."""
    sent = {name: value for name, value in body.items() if name != "ralm"}
    if not any(found):
        return sent
    place = _place_of_question(body)
    if path != _CHAT or place is None:
        pairs = zip(found, _prompts(body), strict=True)
        texts = ["\n\n".join([*(one.contents for one in some), text]) if some else text for some, text in pairs]
        return {**sent, "prompt": texts if isinstance(body["prompt"], list) else texts[0]}
    messages = [*body["messages"]]
    before, _, after = str(prompt.text(_QUESTION, found[0])).partition(_QUESTION)
    content = messages[place].get("content")
    if isinstance(content, list):
        parts = [{"type": "text", "text": text} for text in (before, after)]
        content = [parts[0], *content, *(parts[1:] if after else ())]
    else:
        content = f"{before}{content or ''}{after}"
    messages[place] = {**messages[place], "content": content}
    return {**sent, "messages": messages}


def _fields(
    found: Sequence[Sequence[Passage]],
    reads: ReadConfig,
    told: answers.ResponseJson,
    address: Callable[[Passage], str],
) -> answers.ResponseJson:
    """The fields of a response about its passages."""
    passages = [one for some in found for one in some]
    config: answers.ResponseJson = {"index": reads.settings.index, "retriever": reads.settings.retrieval.retriever}
    return {
        "ralm": {**config, **told, "passages": [answers.passage_json(one) for one in passages]},
        "search_results": [answers.search_result(one, address(one)) for one in passages],
    }


def _headers(answer: "UpstreamAnswer", warning: str) -> dict[str, str]:
    return {**answer.headers, **warning_header(warning and f"passed on to the server of the model: {warning}")}


def warning_header(warning: str) -> dict[str, str]:
    """The header of a warning; none if it is empty."""
    return {WARNING: one_line(warning).encode("ascii", "replace").decode()[:_MAX_HEADER]} if warning else {}


def _count(entry: AuditEntry, metrics: middleware.Metrics, value: Mapping[str, JsonValue]) -> None:
    """Count the tokens that an answer or an event reports."""
    usage = value.get("usage")
    if isinstance(usage, dict):
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        entry.prompt_tokens, entry.completion_tokens = (one if isinstance(one, int) else None for one in counts)
        metrics.count_tokens(entry.prompt_tokens or 0, entry.completion_tokens or 0)


async def _events(
    answer: "UpstreamAnswer",
    sources: TextSources | None,
    deadline: float,
    metrics: middleware.Metrics,
    entry: AuditEntry,
) -> AsyncIterator[bytes]:
    """The events of an answer as they come; those that end a choice have its sources."""
    parts, held = aiter(answer.parts()), b""
    pieces, reported = 0, None
    try:
        while True:
            async with jobs.until(deadline):
                part = await anext(parts, b"")
            if not part:
                break
            *events, held = _END_OF_EVENT.split(held + part)
            for number, event in enumerate(events):
                value = _json_object(event.removeprefix(b"data:")) if event.startswith(b"data:") else None
                if value is not None:
                    pieces += _has_text(value)
                    for choice, text in choice_texts(value):
                        entry.wrote(choice, text)
                    reported = value if value.get("usage") else reported  # the last one counts the whole answer
                    changed = None if sources is None else await sources.event(value)
                    events[number] = event if changed is None else b"data: " + _json(changed) + b"\n\n"
            if len(held) > _MAX_EVENT:
                raise ServerError(f"the server of the model sent an event of more than {_MAX_EVENT:,} bytes.", 200)
            yield b"".join(events)
        yield held
    except Exception as error:  # noqa: BLE001  # the status is sent already
        yield jobs.error_event(error, entry)
    finally:
        if reported is None:
            metrics.pieces.inc(pieces)
        else:
            _count(entry, metrics, reported)


def _has_text(value: Mapping[str, JsonValue]) -> bool:
    """Whether an event has a piece of an answer: text, or parts of calls of tools."""
    deltas = [one["delta"] if isinstance(one.get("delta"), dict) else one for one in choices_of(value)]
    return any(one.get(name) for one in deltas for name in _PIECES)


def _json(value: dict[str, JsonValue]) -> bytes:
    """A value as JSON in ASCII: a server may send half a character, a lone surrogate, which UTF-8 does not have."""
    return json.dumps(value, separators=(",", ":")).encode()


def _json_object(content: bytes) -> dict[str, JsonValue] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
