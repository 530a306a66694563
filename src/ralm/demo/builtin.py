"""The built-in language model, ralm-tiny, by its name."""

from importlib.resources import files
from pathlib import Path
from typing import Final

TINY: Final = "ralm-tiny"


def model_folder(name: str) -> str:
    """The folder of the built-in model where `name` is ralm-tiny; any other name as it is."""
    return str(Path(str(files("ralm.demo"))) / TINY) if name == TINY else name
