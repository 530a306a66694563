"""Parses the name of a model behind an API into an address, a model and a key, and declares its options.

Importing this module does not import httpx2, so that the command line starts fast.

    http://localhost:8000#MODEL        a server; its key, if it wants one, is in RALM_API_KEY
    https://host/some/path#MODEL       the same, with the path of its API if that is not /v1
    openai:MODEL, together:MODEL ...   a provider; its key is in its own variable
    http://localhost:8000              a search service; its key is in RALM_RETRIEVER_KEY

A key goes to the host that it belongs to and nowhere else: it is never part of a name, and a provider's key is never
sent to a URL.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

from ralm.errors import UsageError
from ralm.options import Checked, Option

URL_KEY: Final = "RALM_API_KEY"
"""The environment variable with the key for a server with a URL as its name."""
SERVICE_KEY: Final = "RALM_RETRIEVER_KEY"
"""The environment variable with the key for a search service."""
_URL: Final = re.compile("https?://", re.IGNORECASE)
_KEY: Final = re.compile("[!-~]+")
"""The characters that a header may hold."""
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?|[0-9a-f:]+(%\w+)?")
"""A name, an IPv4 or an IPv6 address."""


@dataclass(frozen=True, slots=True)
class Provider:
    """The base URL of a provider's API and the environment variable with its key."""

    url: str
    variable: str


PROVIDERS: Final[Mapping[str, Provider]] = {
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.ai/v1", "TOGETHER_API_KEY"),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model: the base URL, the server's name for it ("" for a search service), and its key."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    variable: str = URL_KEY

    @property
    def is_url(self) -> bool:
        """Whether the name was a URL, not a provider."""
        return self.variable == URL_KEY

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own API."""
        return self.url == PROVIDERS["openai"].url

    @property
    def limit_field(self) -> str:
        """Return the field of chats that limits new tokens: OpenAI's newer models reject the usual one."""
        return "max_completion_tokens" if self.is_openai else "max_tokens"

    def address(self, path: str) -> str:
        """Return the full URL of a path: below the base URL, or from the server's root if it begins with `//`."""
        if path.startswith("//"):
            parts = urlsplit(self.url)
            return f"{parts.scheme}://{parts.netloc}{path[1:]}"
        return self.url + path


def is_api(name: str) -> bool:
    """Return whether this is the name of a language model behind an API."""
    return _URL.match(name) is not None or name.partition(":")[0] in PROVIDERS.keys() - {name}


def endpoint_of(name: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Return the endpoint with this name, and its key from the environment; UsageError if either is wrong."""
    provider, _, model = name.partition(":")
    if provider not in PROVIDERS:
        return _url_endpoint(name, environment)
    if not model.strip():
        raise UsageError(f"{name} names no model; write {provider}:MODEL.")
    variable = PROVIDERS[provider].variable
    key = key_in(variable, environment)
    if key is None:
        raise UsageError(f"{name} needs a key; put it into the environment variable {variable}.")
    return Endpoint(PROVIDERS[provider].url, model.strip(), key, variable)


def service_endpoint(url: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Return the endpoint of a search service at a URL, with or without its path /retrieve; raises as `endpoint_of`."""
    parts = _split_url(url, "http://HOST:PORT", SERVICE_KEY)
    if parts.fragment:
        raise UsageError(f"{url} names a model, and a search service has none; write {url.partition('#')[0]}.")
    path = parts.path.rstrip("/").removesuffix("/retrieve")
    base = f"{parts.scheme.lower()}://{parts.netloc}{path}"
    return Endpoint(base, "", key_in(SERVICE_KEY, environment), SERVICE_KEY)


def _split_url(url: str, form: str, variable: str) -> SplitResult:
    if "@" in url:
        raise UsageError(f"the URL of a server may have no user or password in it; put the key into {variable}.")
    try:
        parts = urlsplit(url)
        host = _HOST.fullmatch(parts.hostname or "") and parts.port != 0
        valid = bool(host and _URL.match(url) and url.isprintable() and " " not in url)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{url} is not a URL; write {form}.")
    return parts


def _url_endpoint(name: str, environment: Mapping[str, str]) -> Endpoint:
    url, _, model = name.partition("#")
    parts = _split_url(url, "http://HOST:PORT#MODEL", URL_KEY)
    host = f"{parts.scheme.lower()}://{parts.netloc}"
    if parts.query:
        raise UsageError(f"the URL of a model may have no query; write {host}{parts.path}#MODEL.")
    if not model.strip():
        raise UsageError(f"{url} names no model; write {url}#MODEL.")
    return Endpoint(f"{host}{parts.path.rstrip('/') or '/v1'}", model.strip(), key_in(URL_KEY, environment), URL_KEY)


def key_in(variable: str, environment: Mapping[str, str]) -> str | None:
    """Return the key in a variable of the environment, if there is one; UsageError if no header can hold it."""
    key = environment.get(variable) or None
    if key is not None and not _KEY.fullmatch(key):
        raise UsageError(
            f"the key in {variable} has a space, a line break or another character that no key has; set it again."
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions(Checked):
    """How often a server is asked at most, without retries, and where its answers are stored."""

    requests_at_once: Annotated[int, Option("API: maximum number of concurrent requests.", maximum=1000)] = 16
    timeout: Annotated[
        float,
        Option("API: seconds without an answer before a request is retried.", above=True, maximum=86_400),
    ] = 120.0
    retries: Annotated[int, Option("API: maximum number of retries of a request.", minimum=0, maximum=100)] = 5
    max_requests: Annotated[
        int | None, Option("API: stop before sending more requests than this.", default_text="no limit")
    ] = None
    answers: Annotated[
        Path | None,
        Option("API: file that stores the answers, so that none is paid for twice.", default_text="in the cache"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions(RequestOptions):
    """How a server of a language model is asked.

    `context_length` is for servers that do not report it, some of which truncate a longer text silently; it can only
    lower a reported length.
    """

    tokenizer: Annotated[
        str | None,
        Option(
            "API: tokenizer of the model: hub name, folder, GGUF file, or tiktoken:NAME.",
            default_text="the one that the server names",
        ),
    ] = None
    top_logprobs: Annotated[
        int | None,
        Option(
            "API: number of most likely next tokens to request.",
            maximum=1_000_000,
            default_text="as many as it lists",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        Option("API: context length of the model, new tokens included.", minimum=3, default_text="the server's value"),
    ] = None
