"""Token ids in, log-probabilities out: frozen causal language models and their tokenizers."""

from importlib.resources import files
from pathlib import Path
from typing import Final

TINY: Final = "ralm-tiny"


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file, which need not exist."""
    return name.lower().endswith(".gguf")


def is_local(name: str) -> bool:
    """Whether a model's name is that of a folder or GGUF file."""
    return Path(name).is_dir() or is_gguf(name)


def model_folder(name: str) -> str:
    """The folder of the built-in model if `name` is ralm-tiny; any other name unchanged."""
    return str(Path(str(files("ralm.lm"))) / TINY) if name == TINY else name
