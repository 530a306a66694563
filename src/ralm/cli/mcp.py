"""`ralm mcp`: searches indexes for a client of the Model Context Protocol."""

import asyncio
from typing import Annotated

from ralm.cli.serve import index_folders
from ralm.errors import extra
from ralm.options import Option
from ralm.retrieval.retriever import RetrieverOptions


def mcp_command(
    *,
    index: Annotated[
        tuple[str, ...],
        Option("Search this index, DIR or NAME=DIR; repeatable: by default the first."),
    ],
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.")],
) -> None:
    """Search indexes for an agent, by the Model Context Protocol over standard input and output.

    The tools are `search` and `fetch`; documents are resources. `ralm serve` has the same at /mcp.

    Example: `ralm mcp -i my-index`
    """
    packages = ("mcp", "fastapi", "uvicorn", "prometheus_client", "starlette")
    with extra("mcp", "the Model Context Protocol needs", packages):
        from ralm.serving.mcp import run_stdio
        from ralm.serving.options import Settings
        from ralm.serving.search_service import SearchService
    service = SearchService(settings=Settings(retrieval=retrieval), folders=index_folders(index))
    service.warm_up()
    asyncio.run(run_stdio(service))
