"""`ralm serve` answers OpenAI's API with a model that reads passages; `ralm mcp` searches indexes for an agent."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ralm.cli import flags, options, process
from ralm.errors import UsageError, extra
from ralm.grammar import keys_text
from ralm.lm.api.endpoint import ApiOptions, endpoint_of, is_api
from ralm.lm.registry import API_PACKAGES, ModelOptions, load_language_model
from ralm.options import Option
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving.options import Limits, ServeOptions
from ralm.settings import LM_ARGS

_UNUSED = ("stride", "query_tokens", "document_tokens", "bos", "max_length")
"""Options without effect on a server that passes requests on."""
_OF_MODELS = (*_UNUSED, "reader", "documents", "mixer", "rerank", "prompt", "model_name", "lm_args")
"""Options without effect on a server that only searches."""


def serve_command(
    *,
    user_flags: flags.UserFlags,
    lm: Annotated[
        str | None,
        Option(
            "Causal language model: a hub name, local folder, GGUF file, ralm-tiny, smollm2, or URL#MODEL of an API.",
            default_text="none: only searches are answered",
        ),
    ] = None,
    index: Annotated[
        tuple[str, ...],
        Option(
            "Search this index, DIR or NAME=DIR, and read with its passages; repeatable: requests choose by name, by "
            "default the first."
        ),
    ] = (),
    serving: Annotated[ServeOptions, Option("How the server works.")],
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.", without=("forbidden_titles",))],
    reading: Annotated[ReadingOptions, Option("How passages are read.")],
    plan: Annotated[
        PlanOptions, Option("What is read for a stride.", without=("max_length", "semantics", "windows", "block"))
    ],
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads at once, passage included.", default_text="the model's"),
    ] = None,
    audit_log: Annotated[
        Path | None,
        Option("File to which a line of JSON is appended for each request: who asked when, and which passages it got."),
    ] = None,
    model_options: Annotated[ModelOptions, LM_ARGS],
) -> None:
    """Answer OpenAI's API with a model that reads retrieved passages: completions, log-probabilities, sources.

    Clients need no change: they send requests to http://HOST:PORT/v1. Listens on this computer alone, unless told.
    Without a model, only searches are answered, and no torch is needed.

    Example: `ralm serve -m smollm2 -i my-index`
    """
    if lm is None and not index:
        raise UsageError("there is nothing to serve: give `lm` or `index`.")
    if not index and (retrieval != RetrieverOptions() or reading != ReadingOptions()):
        raise UsageError("`retriever`, `reader` and the like need passages: give `index`.")
    if lm is None:
        _check_limits(serving.limits, ("cached_tokens", "new_tokens"), " without `lm`")
        flags.check_unused(user_flags, _OF_MODELS, " without `lm`")
    reading.check_mixer()
    plan = options.with_query_tokens(plan, retrieval, user_flags)

    with extra("serve", "serving needs", ("fastapi", "uvicorn", "prometheus_client", "starlette")):
        from ralm.serving.local import LocalService
        from ralm.serving.middleware import AuditLog, open_key
        from ralm.serving.options import Settings
        from ralm.serving.server import bound_socket, run_server
        from ralm.serving.state import ModelService, SearchService, Served

    with bound_socket(serving.host, serving.port) as listening:
        if lm is not None and is_api(lm) and not reading.reader:
            reading = replace(reading, reader="concatenation")
        served = Served(
            options=serving,
            settings=Settings(retrieval=retrieval, reading=reading, plan=plan),
            folders=index_folders(index),
            key=open_key(serving.host),
            audit=None if audit_log is None else AuditLog(audit_log),
        )
        if lm is None:
            names = ", ".join(served.folders)
            run_server(SearchService(served), listening, lambda url: process.print_note(f"serving {names} at {url}"))
            return
        service: ModelService
        if is_api(lm):
            with extra("api", "models behind an API need", API_PACKAGES):
                from ralm.serving.proxy import ProxyService
            _check_passed_on(lm, model_options, serving.limits, user_flags)
            service = ProxyService(endpoint_of(lm), model_options.api.timeout, served)
        else:
            ranker = reading.ranker
            model_options.check_effect(lm, *filter(None, [ranker]))
            model = process.closed_at_end(lm, model_options, load_language_model(lm, model_options))
            judge = process.open_model(ranker, model_options.of(ranker, lm)) if ranker else None
            service = LocalService(model, served, ranker=judge, max_length=max_length)
        run_server(service, listening, lambda url: process.print_note(f"serving {service.name} at {url}/v1"))


def _check_passed_on(name: str, model_options: ModelOptions, limits: Limits, user_flags: flags.UserFlags) -> None:
    """Report that requests are passed on; UsageError if an option has no effect on them."""
    passed = f"requests to {name} are passed on as they are"
    if keys := keys_text(model_options, ModelOptions(api=ApiOptions(timeout=model_options.api.timeout))):
        raise UsageError(f"`lm_args` {keys} has no effect: {passed}.")
    _check_limits(limits, ("cached_tokens",), f": {passed}")
    flags.check_unused(user_flags, _UNUSED, f": {passed}")
    process.print_note(f"{passed}, with passages")


def _check_limits(limits: Limits, unused: tuple[str, ...], why: str) -> None:
    """Raise UsageError if an unused limit is set."""
    if keys := keys_text(Limits(**{name: getattr(limits, name) for name in unused}), Limits()):
        raise UsageError(f"`limits` {keys} has no effect{why}.")


def index_folders(arguments: tuple[str, ...]) -> dict[str, Path]:
    """Return the folders of indexes by name, by default the folder's; UsageError if two are equal or one has a `/`."""
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, _, folder = argument.rpartition("=")
        name = name or Path(folder).resolve().name
        if "/" in name:
            raise UsageError(f"no index can be called {name!r}, which has a /: give NAME=DIR with another name.")
        if name in folders:
            raise UsageError(f"two indexes are called {name!r}: give NAME=DIR to tell them apart.")
        folders[name] = Path(folder)
    return folders


def mcp_command(
    *,
    index: Annotated[tuple[str, ...], Option("Search this index, DIR or NAME=DIR; repeatable: by default the first.")],
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.")],
) -> None:
    """Search indexes for an agent, by the Model Context Protocol over standard input and output.

    The tools are `search` and `fetch`. `ralm serve` has the same at /mcp.

    Example: `ralm mcp -i my-index`
    """
    packages = ("mcp", "fastapi", "uvicorn", "prometheus_client", "starlette")
    with extra("mcp", "the Model Context Protocol needs", packages):
        from ralm.serving.mcp import run_stdio
        from ralm.serving.options import Settings
        from ralm.serving.state import SearchService, Served
    settings, folders = Settings(retrieval=retrieval), index_folders(index)
    service = SearchService(Served(options=ServeOptions(), settings=settings, folders=folders, key=None, audit=None))
    service.warm_up()
    asyncio.run(run_stdio(service))
