"""Indexes as a server of the Model Context Protocol: the tools `search` and `fetch`, and documents as resources.

`ralm mcp` serves them over standard input and output, `ralm serve` at /mcp. Passages are named INDEX/NUMBER.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import pydantic
from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import Field, JsonValue
from starlette.routing import BaseRoute

from ralm.errors import RalmError
from ralm.records import Passage
from ralm.retrieval.expansion import WHOLE, ExpandedPassages
from ralm.serving import errors, proxy, requests
from ralm.serving.audit import ENTRY, AuditEntry
from ralm.serving.jobs import Workers
from ralm.serving.retrieval_routes import chosen, read_filter
from ralm.serving.search_service import SearchService
from ralm.serving.text_sources import name_of, web_address
from ralm.version import __version__

MCP_PATH: Final = "/mcp"
_SCHEME: Final = "ralm://"
_PAGE: Final = 100
"""Documents in a page of the list of resources."""
_Context: TypeAlias = ServerRequestContext[Any, Any]
_Result = TypeVar("_Result")
_Arguments = TypeVar("_Arguments", bound=requests.Body)


class SearchArguments(requests.Body):
    """The arguments of `search`."""

    query: Annotated[str, Field(description="Words to search for.")]
    k: Annotated[int, Field(description="Passages to find.")] = 10
    index: Annotated[str | None, Field(description="The name of an index; the first by default.")] = None
    filters: Annotated[
        str | None, Field(description="Find only passages that pass this, such as `year >= 2020 and lang == 'en'`.")
    ] = None


class FetchArguments(requests.Body):
    """The arguments of `fetch`."""

    id: Annotated[str, Field(description="The id of a passage that `search` returned.")]
    document: Annotated[bool, Field(description="Return the whole document of the passage.")] = False


_TOOLS: Final[dict[str, tuple[type[requests.Body], str]]] = {
    "search": (SearchArguments, "Search an index, and return its best passages with their ids, titles and texts."),
    "fetch": (FetchArguments, "Return a passage, or its whole document, by the id of the passage."),
}


class McpServer:
    """The tools and the resources of a service; `workers` bound the requests at once, if there are any."""

    def __init__(self, service: SearchService, workers: Workers | None = None) -> None:
        self._service = service
        self._workers = workers
        names = ", ".join(service.indexes.names)
        self.server: Server[Any] = Server(
            "ralm",
            version=__version__,
            instructions=f"Searches the indexes {names}, and returns their passages and documents.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    async def _list_tools(self, *_: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=description,
                    input_schema=body.model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
                for name, (body, description) in _TOOLS.items()
            ]
        )

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        call = {"search": self._search, "fetch": self._fetch}.get(params.name)
        if call is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; there is: {', '.join(_TOOLS)}.")
        try:
            found = await self._run(partial(call, params.arguments or {}, _entry(context)))
        except RalmError as error:
            return types.CallToolResult(content=[_text(_message(error))], is_error=True)
        return types.CallToolResult(content=[_text(json.dumps(found, ensure_ascii=False))], structured_content=found)

    def _search(self, given: dict[str, Any], entry: AuditEntry) -> dict[str, JsonValue]:
        arguments = _read_call(SearchArguments, given)
        if not arguments.query.strip():
            raise errors.RequestError("`query` is empty: give at least one word.", param="query")
        entry.prompts = [arguments.query]
        choice, wanted = chosen(arguments.index, None), read_filter(arguments.filters, "filters")
        found = self._service.found([arguments.query], arguments.k, choice, wanted=wanted)
        entry.found(found.index, [passage for passage, _ in found.of(0)])
        return {"results": [{**_passage_json(found.index, one), "score": score} for one, score in found.of(0)]}

    def _fetch(self, given: dict[str, Any], entry: AuditEntry) -> dict[str, JsonValue]:
        arguments = _read_call(FetchArguments, given)
        index, _, number = arguments.id.rpartition("/")
        found = self._document(index, number) if arguments.document else self._passage(index, number)
        entry.found(index, [found])
        return _passage_json(index, found)

    def _passage(self, index: str, number: str) -> Passage:
        """A passage; RequestError if there is none."""
        passages = self._service.indexes.index(index).passages if index in self._service.indexes.names else ()
        if not number.isdecimal() or int(number[:18]) >= len(passages):
            raise errors.RequestError(
                f"there is no passage {index}/{number} here; the ids of passages are in the results of `search`."
            )
        return passages[int(number)]

    def _document(self, index: str, number: str) -> Passage:
        """A passage with the text of its whole document."""
        passage, opened = self._passage(index, number), self._service.indexes.index(index)
        whole = ExpandedPassages(opened.passages, WHOLE, opened.manifest.settings.get("splitting"))
        return whole[passage.number]

    async def _list_resources(
        self, _: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        names = self._service.indexes.names
        index, _, number = (params.cursor if params and params.cursor else f"{names[0]}/0").rpartition("/")
        if index not in names or not number.isdecimal():
            raise MCPError(types.INVALID_PARAMS, "the cursor is not one that this server gave.")
        found, cursor = await self._run(partial(self._listed, index, int(number[:18])))
        return types.ListResourcesResult(resources=found, next_cursor=cursor)

    def _listed(self, index: str, place: int) -> tuple[list[types.Resource], str | None]:
        """The documents from a passage on, and where the next page begins."""
        found = list[types.Resource]()
        names = self._service.indexes.names
        passages, last = self._service.indexes.index(index).passages, None
        while place < len(passages) and len(found) < _PAGE:
            passage = passages[place]
            if passage.document_id != last:
                uri = f"{_SCHEME}{quote(index, safe='')}/{place}"
                found.append(types.Resource(uri=uri, name=name_of(passage), mime_type="text/plain"))
            last = passage.document_id
            place += 1
        while place < len(passages) and passages[place].document_id == last:
            place += 1
        if place < len(passages):
            return found, f"{index}/{place}"
        later = names[names.index(index) + 1 :]
        return found, f"{later[0]}/0" if later else None

    async def _list_templates(self, *_: object) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=f"{_SCHEME}{{index}}/{{passage}}",
            name="document",
            description="The whole document of a passage.",
            mime_type="text/plain",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        index, _, number = params.uri.removeprefix(_SCHEME).rpartition("/")
        try:
            found = await self._run(partial(self._document, unquote(index), number))
        except RalmError as error:
            raise MCPError(types.INVALID_PARAMS, _message(error)) from None
        _entry(context).found(unquote(index), [found])
        contents = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=found.text)
        return types.ReadResourceResult(contents=[contents])

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        """What a function returns in a thread, as one of the requests at once; errors of the server become messages."""
        if self._workers is None:
            return await asyncio.to_thread(call)
        try:
            await self._workers.take_place()
        except errors.RequestError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        try:
            return await asyncio.to_thread(call)
        finally:
            self._workers.free_place()


@asynccontextmanager
async def mcp_route(service: SearchService, workers: Workers) -> AsyncIterator[BaseRoute]:
    """The route of the protocol over HTTP, which answers inside the block; sessions hold nothing."""
    manager = StreamableHTTPSessionManager(
        McpServer(service, workers).server,
        json_response=True,
        stateless=True,
        max_request_body_size=service.options.limits.body_bytes,
    )
    async with manager.run():
        yield proxy.KnownRoute(MCP_PATH, manager.asgi_app, methods=["POST"])


async def run_stdio(service: SearchService) -> None:
    """Serve one client over standard input and output, until it closes them, or a signal ends the process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))  # a thread that reads cannot be ended
    server = McpServer(service).server
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _read_call(kind: type[_Arguments], given: dict[str, Any]) -> _Arguments:
    """The arguments of a tool; RequestError if one is wrong."""
    try:
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise errors.validation_error({**first, "loc": ("body", *first["loc"])}, [*kind.model_fields]) from None


def _message(error: RalmError) -> str:
    """The sentence for the client; what it cannot change goes to the log."""
    _, body = errors.status_and_body(error)
    fault: Any = body["error"]
    return str(fault["message"])


def _entry(context: _Context) -> AuditEntry:
    """The entry of a request over HTTP in the audit log; one that is not written for others."""
    scope = getattr(context.request, "scope", {})
    entry: AuditEntry = scope.get(ENTRY) or AuditEntry()
    return entry


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _passage_json(index: str, passage: Passage) -> dict[str, JsonValue]:
    return {
        "id": f"{index}/{passage.number}",
        "title": name_of(passage),
        "text": passage.text,
        "url": web_address(passage),
        "document_id": passage.document_id,
        "metadata": {name: value for name, value in passage.metadata.items() if isinstance(value, str | int | float)},
    }
