"""Indexes as a server of the Model Context Protocol, with the tools `search` and `fetch`.

`ralm mcp` serves them over standard input and output, `ralm serve` at /mcp. Passages are named INDEX/NUMBER. A call has
the place in the queue and the limits of any other request.
"""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypeAlias

from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import Field, JsonValue
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from ralm import __version__
from ralm.errors import RalmError
from ralm.records import Passage
from ralm.retrieval.retriever import ExpandedPassages
from ralm.serving import answers, errors, jobs, middleware, requests, state
from ralm.serving.search import chosen, read_filter

MCP_PATH: Final = "/mcp"
_MOST_DIGITS: Final = 10
_Context: TypeAlias = ServerRequestContext[Any, Any]


class SearchArguments(requests.Body):
    """Search an index, and return its best passages with their ids, titles and texts."""

    query: Annotated[str, Field(description="Words to search for.")]
    k: Annotated[int, Field(description="Passages to find.")] = 10
    index: Annotated[str | None, Field(description="The name of an index; the first by default.")] = None
    filters: Annotated[
        str | None, Field(description="Find only passages that pass this, such as `year >= 2020 and lang == 'en'`.")
    ] = None


class FetchArguments(requests.Body):
    """Return a passage by its id, with its neighbours in the document if wanted."""

    id: Annotated[str, Field(description="The id of a passage that `search` returned.")]
    neighbours: Annotated[
        int, Field(description="Also return so many passages before and after it in its document.", ge=0)
    ] = 0


_TOOLS: Final[dict[str, type[requests.Body]]] = {"search": SearchArguments, "fetch": FetchArguments}


class McpServer:
    """The tools of a service; `workers` bound the calls at once and their time."""

    def __init__(self, service: state.SearchService, workers: jobs.Workers) -> None:
        self._service = service
        self._workers = workers
        names = ", ".join(service.indexes.names)
        self.server: Server[Any] = Server(
            "ralm",
            version=__version__,
            instructions=f"Searches the indexes {names}, and returns their passages.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def _list_tools(self, *_: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=body.__doc__,
                    input_schema=body.model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
                for name, body in _TOOLS.items()
            ]
        )

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        call = {"search": self._search, "fetch": self._fetch}.get(params.name)
        if call is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; there is: {', '.join(_TOOLS)}.")
        scope = getattr(context.request, "scope", {})  # there is none over standard input
        entry = scope.get(middleware.ENTRY) or middleware.AuditEntry()

        async def work(slot: jobs.Slot) -> Any:
            return await slot.in_thread(call, params.arguments or {}, entry)

        try:
            result = await self._workers.in_slot(work, getattr(context.request, "receive", None))
        except RalmError as error:
            fault: Any = errors.status_and_body(error)[1]["error"]  # what the client cannot change goes to the log
            return types.CallToolResult(content=[types.TextContent(text=fault["message"])], is_error=True)
        if result is None:  # the client is gone
            entry.status = errors.GONE
        text = types.TextContent(text=json.dumps(result, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=result)

    def _search(self, call: dict[str, Any], entry: middleware.AuditEntry) -> dict[str, JsonValue]:
        arguments = requests.read_body(SearchArguments, call)
        if not arguments.query.strip():
            raise errors.RequestError("`query` is empty: give at least one word.", param="query")
        choice, where = chosen(arguments.index, None), read_filter(arguments.filters, "filters")
        hits = self._service.find([arguments.query], arguments.k, choice, entry, where=where)
        return {"results": [{**_passage_json(hits.index, passage), "score": score} for passage, score in hits.of(0)]}

    def _fetch(self, call: dict[str, Any], entry: middleware.AuditEntry) -> dict[str, JsonValue]:
        arguments = requests.read_body(FetchArguments, call)
        name, _, number = arguments.id.rpartition("/")
        index = self._service.indexes.index(name) if name in self._service.indexes.names else None
        is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
        if index is None or not is_number or int(number) >= len(index.passages):
            raise errors.RequestError(
                f"there is no passage {arguments.id} here; the ids of passages are in the results of `search`."
            )
        passage = index.passages[int(number)]
        if arguments.neighbours:
            splitting = index.manifest.settings.get("splitting")
            passage = ExpandedPassages(index.passages, str(arguments.neighbours), splitting)[passage.number]
        entry.add_passages(name, [(1, passage)])
        return _passage_json(name, passage)


class _KnownRoute(Route):
    """A route that the access log knows by its path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as `Route.matches`."""
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


@asynccontextmanager
async def mcp_route(service: state.SearchService, workers: jobs.Workers) -> AsyncIterator[BaseRoute]:
    """Open the route of the protocol over HTTP, which answers inside the block; sessions hold nothing."""
    manager = StreamableHTTPSessionManager(
        McpServer(service, workers).server,
        json_response=True,
        stateless=True,
        max_request_body_size=service.options.limits.body_bytes,
    )
    async with manager.run():
        yield _KnownRoute(MCP_PATH, manager.asgi_app, methods=["POST"])


async def run_stdio(service: state.SearchService) -> None:
    """Serve one client over standard input and output, until it closes them, or a signal ends the process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))  # a thread that reads cannot be ended
    server = McpServer(service, jobs.Workers(service.options.limits, service.metrics)).server
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _passage_json(index: str, passage: Passage) -> dict[str, JsonValue]:
    return {
        "id": f"{index}/{passage.number}",
        "title": answers.name_of(passage),
        "text": passage.text,
        "url": answers.web_address(passage),
        "document_id": passage.document_id,
        "metadata": {name: value for name, value in passage.metadata.items() if isinstance(value, str | int | float)},
    }
