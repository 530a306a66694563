"""`POST /v1/responses` of OpenAI's API: text in, text out, whole or streamed, with passages found by `file_search`.

Answers come from the engine of chats; the passages that an answer cites are its `file_citation` annotations.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Annotated, Any, Final, Literal

import pydantic
from fastapi import APIRouter, Request
from pydantic import JsonValue
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from ralm.answering.citations import name_of
from ralm.retrieval.filters import OpenAIFilter
from ralm.serving import answers, errors, jobs, requests
from ralm.serving.audit import entry_of
from ralm.serving.chat import ChatAnswer, answer_chat, sources_of
from ralm.serving.indexes import ReadConfig
from ralm.serving.service import Service
from ralm.serving.vector_stores import RankingOptions, result_json

responses_router: Final = APIRouter()
_RESULTS: Final = "file_search_call.results"
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_Json = answers.ResponseJson


class FileSearch(requests.Body):
    """The tool that finds passages in one index."""

    type: Literal["file_search"]
    vector_store_ids: list[str]
    filters: OpenAIFilter | None = None
    max_num_results: int | None = None
    ranking_options: RankingOptions | None = None


def _messages(given: Any) -> Any:
    """The input as messages of a chat: a text is one of the user."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise PydanticCustomError(errors.FIELD, "must be text or a list of messages")
    return [_message(one) for one in given if one.get("type") != "file_search_call"]


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """A message of the input as one of a chat; an answer of this server may be sent back as it is."""
    content = given.get("content")
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part.get("text")}
            if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
            else part
            for part in content
        ]
    own = {name: value for name, value in given.items() if name not in ("id", "status") and value is not None}
    return {**own, "content": content}


class ResponsesRequest(requests.TextRequest):
    """The body of POST /v1/responses."""

    input: Annotated[
        list[requests.MessageBody],
        pydantic.BeforeValidator(_messages),
        pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
    ]
    include: list[Literal["file_search_call.results"]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Annotated[str | None, requests.only()] = None
    ralm: requests.ChatChosen | None = None
    reasoning: Annotated[JsonValue, requests.only()] = None
    store: Annotated[bool | None, requests.only(False)] = None
    text: Annotated[JsonValue, requests.only({"format": {"type": "text"}})] = None
    tool_choice: Annotated[JsonValue, requests.only("auto")] = None
    tools: list[FileSearch] | None = None
    truncation: Annotated[str | None, requests.only("disabled")] = None

    @property
    def tool(self) -> FileSearch | None:
        """The tool of the request; RequestError if it has several, or several vector stores."""
        tools = self.tools or []
        if len(tools) > 1 or any(len(one.vector_store_ids) != 1 for one in tools):
            raise errors.RequestError("give one `file_search` with one of `vector_store_ids`.", param="tools")
        if tools and tools[0].ranking_options and tools[0].ranking_options.score_threshold:
            raise errors.RequestError("`score_threshold` is not supported here: leave it out.", param="tools")
        return tools[0] if tools else None

    def chat(self) -> requests.ChatRequest:
        """The same as a request for a chat."""
        names = ("model", "ralm", "seed", "stop", "temperature", "top_k", "top_p", "frequency_penalty")
        messages = list(self.input)
        if self.instructions is not None:
            system = {"role": "system", "content": self.instructions}
            messages.insert(0, requests.MessageBody.model_validate(system))
        own = {name: getattr(self, name) for name in names}
        return requests.ChatRequest.model_construct(
            **own, messages=messages, max_completion_tokens=self.max_output_tokens
        )


@responses_router.post("/v1/responses")
async def responses(request: Request, body: ResponsesRequest, service: jobs.Served) -> Response:
    """Answer the last message of the user, with the passages that `file_search` finds; by default as chats do."""

    def begin() -> answers.ServedAnswer:
        if service.passes_on:
            raise errors.RequestError("requests are passed on here: use /v1/chat/completions.", status=404)
        tool = body.tool
        chat = requests.chat_of(body.chat(), service.options.limits)
        reads = _reads(service, body, tool)
        service.log_prompts([chat.conversation.question])
        entry_of(request).prompts = [chat.conversation.question]
        events = answer_chat(chat, service.model, reads, service.prompt, service.options.limits)
        query = chat.conversation.search_query if tool else None
        address = partial(jobs.passage_address, request, reads)
        return _ResponseAnswer(body, query, chat, events, reads, service.names, address, model=body.model)

    return await jobs.respond(request, body, begin, jobs.as_response)


def _reads(service: Service, body: ResponsesRequest, tool: FileSearch | None) -> ReadConfig:
    """How the request reads: with the index, the number and the filter of its tool."""
    choice = service.chosen(body.model, body.chosen)
    if tool is None:
        return service.reads(choice, in_strides=False)
    [index] = tool.vector_store_ids
    if index not in service.indexes.names:
        names = ", ".join(service.indexes.names) or "none"
        message = f"there is no vector store {index!r} here; there is: {names}."
        raise errors.RequestError(message, param="tools", status=404)
    if index != service.settings.index:
        choice["index"] = index
    if tool.max_num_results is not None:
        choice |= {"reader": "concatenation", "documents": tool.max_num_results}
    reads = service.reads(choice, in_strides=False)
    if tool.filters is None:
        return reads
    source = service.indexes.filtered(index, reads.settings.retrieval, tool.filters.to_filter())
    return replace(reads, source=source)


class _ResponseAnswer(ChatAnswer):
    """The answer of a chat as a response of this API; `query` is that of its tool, None without one."""

    id_prefix = "resp"

    def __init__(self, body: ResponsesRequest, query: str | None, *chat: Any, model: str) -> None:
        super().__init__(*chat, model=model)
        self._body = body
        self._query = query
        self._call_id, self._message_id = f"fs_{token_hex(12)}", f"msg_{token_hex(12)}"

    def whole(self) -> _Json:
        """The response."""
        for event in self._events:
            self._take(event)
        return self._ended()

    def pieces(self, *, usage: bool) -> Iterator[_Json]:  # noqa: ARG002  # the last event always has it
        """The events of the response, numbered."""
        first = next(self._events)  # errors come before the first event
        self._take(first)
        for number, event in enumerate(self._stream()):
            yield {"type": event.pop("type"), "sequence_number": number, **event}

    def _stream(self) -> Iterator[_Json]:
        """The events without their numbers."""
        begun = self._response("in_progress", [])
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        if self._query is not None:
            yield from self._call_events()
        place: _Json = {"item_id": self._message_id, "output_index": int(self._query is not None), "content_index": 0}
        item: _Json = {"output_index": place["output_index"]}
        message = {**self._message("in_progress"), "content": list[JsonValue]()}
        yield {"type": "response.output_item.added", **item, "item": message}
        yield {"type": "response.content_part.added", **place, "part": self._part("")}
        for event in self._events:
            if text := self._take(event).text:
                yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
        ended = self._message("completed")
        part: Any = self._part(self._choices[0].text)
        for number, one in enumerate(part["annotations"]):
            added = {"annotation_index": number, "annotation": one}
            yield {"type": "response.output_text.annotation.added", **place, **added}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", **item, "item": ended}
        response = self._ended()
        yield {"type": f"response.{response['status']}", "response": response}

    def _call_events(self) -> Iterator[_Json]:
        begun = {**self._call(), "status": "in_progress", "results": None}
        yield {"type": "response.output_item.added", "output_index": 0, "item": begun}
        for state in ("in_progress", "searching", "completed"):
            yield {"type": f"response.file_search_call.{state}", "output_index": 0, "item_id": self._call_id}
        yield {"type": "response.output_item.done", "output_index": 0, "item": self._call()}

    def _call(self) -> _Json:
        """The call of the tool, with its passages if they are asked for."""
        results: JsonValue = None
        if _RESULTS in (self._body.include or ()):
            found = [self._reads.passages[number] for number in self._shared]
            results = [{**result_json(one, None), "text": one.text} for one in found]
        queries: JsonValue = [self._query]
        head: _Json = {"id": self._call_id, "type": "file_search_call", "status": "completed"}
        return {**head, "queries": queries, "results": results}

    def _message(self, status: str) -> _Json:
        content: JsonValue = [self._part(self._choices[0].text)]
        head: _Json = {"id": self._message_id, "type": "message", "role": "assistant", "status": status}
        return {**head, "content": content}

    def _part(self, text: str) -> _Json:
        """A text with the passages that it cites, each at the end of what it is cited for."""
        cited = sorted(
            ((end, source) for source in sources_of(self._choices[0]) for _, end in source.answer_spans),
            key=lambda pair: pair[0],
        )
        annotations: list[JsonValue] = [
            {
                "type": "file_citation",
                "index": end,
                "file_id": one.passage.document_id,
                "filename": name_of(one.passage),
            }
            for end, one in cited
        ]
        return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}

    def _ended(self) -> _Json:
        """The whole response, with its sources as in a chat."""
        is_complete = self._choices[0].reason == "stop"
        calls: list[JsonValue] = [] if self._query is None else [self._call()]
        status = "completed" if is_complete else "incomplete"
        found = self._response(status, [*calls, self._message(status)])
        return {**found, **self._sources_json(with_tokens=False)}

    def _response(self, status: str, output: list[JsonValue]) -> _Json:
        body = self._body
        tools: list[JsonValue] = [one.model_dump(exclude_none=True) for one in body.tools or ()]
        usage: _Json = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.written_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.written_tokens,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {**(body.metadata or {})},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "usage": None if status == "in_progress" else usage,
        }
