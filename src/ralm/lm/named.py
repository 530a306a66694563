"""Loading any language model by name, the built-in one included."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from ralm.lm.local.model import LocalLanguageModel, load_language_model as load_folder_or_hub
from ralm.lm.local.options import ModelOptions

TINY: Final = "ralm-tiny"


def load_language_model(name: str, options: ModelOptions | None = None) -> LocalLanguageModel:
    """A causal language model by hub name or local folder, or `ralm-tiny`, which comes with the package.

    Raises ModelError if the folder or hub has no such model, its weights or tokenizer are missing, or the device does
    not exist; MissingExtraError if spreading a model over devices needs the extra `device-map`.
    """
    model = load_folder_or_hub(model_folder(name), options)
    model.name = name
    return model


def model_folder(name: str) -> str:
    """The folder of the built-in model if `name` is ralm-tiny; any other name unchanged."""
    return str(Path(str(files("ralm.lm"))) / TINY) if name == TINY else name
