"""Loading any language model by name, the built-in one included.

Importing this module does not import torch; loading does. Both need the extra `lm`.
"""

from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ralm.extras import extra
from ralm.lm.local.options import ModelOptions

if TYPE_CHECKING:
    from ralm.lm.local.model import LocalLanguageModel
    from ralm.lm.local.tokenization import ModelTokenizer

TINY: Final = "ralm-tiny"
_PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")


def load_language_model(name: str, options: ModelOptions | None = None) -> "LocalLanguageModel":
    """A causal language model by hub name or local folder, or `ralm-tiny`, which comes with the package.

    Raises MissingExtraError if the extra `lm` is not installed, or `device-map` if the model is spread over devices;
    ModelError if the folder or hub has no such model, its weights or tokenizer are missing, or the device does not
    exist.
    """
    with _lm_extra():
        from ralm.lm.local.model import load_language_model as load_folder_or_hub
    model = load_folder_or_hub(model_folder(name), options)
    model.name = name
    return model


def load_tokenizer(name: str) -> "ModelTokenizer":
    """The tokenizer of a language model, without its weights.

    Raises MissingExtraError if the extra `lm` is not installed, ModelError if there is no tokenizer or it cannot be
    loaded.
    """
    with _lm_extra():
        from ralm.lm.local.tokenization import load_model_tokenizer
    return load_model_tokenizer(model_folder(name))


def model_folder(name: str) -> str:
    """The folder of the built-in model if `name` is ralm-tiny; any other name unchanged."""
    return str(Path(str(files("ralm.lm"))) / TINY) if name == TINY else name


def _lm_extra() -> AbstractContextManager[None]:
    return extra("lm", "language models need", _PACKAGES)
