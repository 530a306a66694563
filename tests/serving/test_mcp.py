"""The Model Context Protocol over standard input and output and over HTTP, asked by the client of the package `mcp`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ralm import Document
from ralm.serving.middleware import AuditLog
from ralm.serving.state import SearchService
from tests.serving.served import DOCUMENTS, save_index, served, serving

mcp = pytest.importorskip("mcp")
pytestmark = pytest.mark.filterwarnings("ignore")
LONG = Document("long", "A long one", " ".join(f"word{place}" for place in range(250)))


@pytest.fixture(scope="module")
def folders(index: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"few": index, "more": save_index(tmp_path_factory.mktemp("more") / "index", [*DOCUMENTS[:2], LONG])}


@asynccontextmanager
async def over_stdio(folders: dict[str, Path]) -> AsyncIterator[Any]:
    arguments = [part for name, folder in folders.items() for part in ("--index", f"{name}={folder}")]
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "ralm", "mcp", *arguments], env={"PYTHONPATH": ":".join(sys.path)}
    )
    async with mcp.Client(mcp.client.stdio.stdio_client(command)) as client:
        yield client


@asynccontextmanager
async def over_http(folders: dict[str, Path]) -> AsyncIterator[Any]:
    with serving(SearchService(served(folders=folders))) as url:
        async with mcp.Client(f"{url}/mcp") as client:
            yield client


def run(opened: Any, use: Callable[[Any], Awaitable[None]]) -> None:
    """Do what a client does in a session."""

    async def session() -> None:
        async with opened as client:
            await use(client)

    asyncio.run(session())


@pytest.mark.parametrize("transport", [over_stdio, over_http])
def test_tools(transport: Any, folders: dict[str, Path]) -> None:
    async def use(client: Any) -> None:
        assert [one.name for one in (await client.list_tools()).tools] == ["search", "fetch"]
        found = (await client.call_tool("search", {"query": "Which dog keeps sheep?", "k": 1})).structured_content
        [first] = found["results"]
        assert (first["id"], first["title"], first["url"]) == ("few/0", "The Hill", "http://h")
        filtered = await client.call_tool("search", {"query": "dog", "filters": "url is None"})
        assert [one["document_id"] for one in filtered.structured_content["results"]] == ["night"]
        passage = await client.call_tool("fetch", {"id": first["id"]})
        assert json.loads(passage.content[0].text)["text"] == first["text"] == DOCUMENTS[0].text
        [found] = (await client.call_tool("search", {"query": "word120", "index": "more"})).structured_content[
            "results"
        ]
        assert len(found["text"].split()) == 100
        for neighbours, words in ((0, 100), (1, 250), (9, 250)):
            call = {"id": found["id"], "neighbours": neighbours}
            read = (await client.call_tool("fetch", call)).structured_content["text"].split()
            assert (len(read), read) == (words, LONG.text.split()[100:200] if words == 100 else LONG.text.split())

    run(transport(folders), use)


def test_wrong_calls_are_sentences_that_a_model_can_read(folders: dict[str, Path]) -> None:
    async def use(client: Any) -> None:
        for tool, arguments, said in (
            ("search", {"query": " "}, "`query` is empty: give at least one word."),
            ("search", {"query": "a", "k": 0}, "`k` must be from 1 to 100."),
            ("search", {"q": "a"}, "`query` is missing."),
            ("search", {"query": "a", "top": 2}, "`top` is not supported"),
            ("search", {"query": "a", "index": "none"}, "`index` 'none' is not served; the indexes are: few, more."),
            ("search", {"query": "a" * 300_000}, "`query` has 300,000 bytes, and the limit is 262,144"),
            ("search", {"query": "a", "filters": "1 + " * 9_000 + "1"}, "`filters` has 36,001 bytes"),
            *(
                ("fetch", {"id": f"few/{number}"}, f"there is no passage few/{number} here")
                for number in ("99", "000000000000000000999999", "9" * 500, "-1", "\u0663", "")
            ),
            ("fetch", {"id": "few/0", "neighbours": -1}, "`neighbours` must be greater than or equal to 0"),
        ):
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            assert said in answer.content[0].text
        with pytest.raises(mcp.MCPError, match="there is no tool 'other'; there is: search, fetch"):
            await client.call_tool("other", {})

    run(over_http(folders), use)


def test_the_key_and_the_audit_log(index: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with serving(SearchService(served(folders={"few": index}, key="sk-key", audit=AuditLog(log)))) as url:
        call = {"name": "search", "arguments": {"query": "whales"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        headers = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer sk-key"}
        assert httpx.post(f"{url}/mcp", json=body).status_code == 401
        answer = httpx.post(f"{url}/mcp", json=body, headers=headers, timeout=60)
        assert "The whales sing" in answer.text
        assert httpx.get(f"{url}/mcp", headers=headers).status_code == 405
        metrics = httpx.get(f"{url}/metrics", headers=headers).text
        assert 'ralm_requests_total{route="/mcp",status="200"} 1.0' in metrics
    assert '"path":"/mcp","status":200' in log.read_text()
    assert '"document_id":"sea"' in log.read_text()
