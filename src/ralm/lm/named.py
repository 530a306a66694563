"""Loading any language model by name, the built-in one included.

Importing this module does not import torch; loading does. Both need the extra `lm`.
"""

from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ralm.errors import UsageError, extra
from ralm.lm.api.endpoint import is_api
from ralm.lm.api.options import ApiOptions
from ralm.lm.options import ModelOptions
from ralm.protocols import WritingModel

if TYPE_CHECKING:
    from ralm.lm.api.model import ApiModel
    from ralm.lm.local.model import LocalLanguageModel
    from ralm.lm.local.tokenization import ModelTokenizer

TINY: Final = "ralm-tiny"
_API_PACKAGES: Final = ("openai", "tiktoken", "transformers", "huggingface_hub")
_PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")


def load_language_model(name: str, options: ModelOptions | None = None) -> WritingModel:
    """A causal language model by name: `ralm-tiny`, which comes with the package; a hub name or local folder; or one
    behind an API, as `URL#MODEL` or `PROVIDER:MODEL` (docs/api-models.md).

    Raises MissingExtraError if an extra is not installed (`lm`, `api`; `device-map` if the model is spread over
    devices); ModelError if the folder or hub has no such model, its weights or tokenizer are missing, or the device
    does not exist; ServerError if a server does not answer.
    """
    if is_api(name):
        with extra("api", "models behind an API need", _API_PACKAGES):
            from ralm.lm.api.probe import load_api_model
        return load_api_model(name, (options or ModelOptions()).api)
    return load_local_model(name, options)


def probe_language_model(name: str, options: ApiOptions | None = None) -> "ApiModel":
    """A model behind an API of which everything is found out anew; see `ralm.lm.api.probe`."""
    with extra("api", "models behind an API need", _API_PACKAGES):
        from ralm.lm.api.probe import probe_server
    return probe_server(name, options)


def load_local_model(name: str, options: ModelOptions | None = None) -> "LocalLanguageModel":
    """The same of a model that runs in this process."""
    with _lm_extra():
        from ralm.lm.local.model import load_language_model as load_folder_or_hub
    model = load_folder_or_hub(model_folder(name), options)
    model.name = name
    return model


def load_tokenizer(name: str) -> "ModelTokenizer":
    """The tokenizer of a language model, without its weights.

    Raises MissingExtraError if the extra `lm` is not installed, ModelError if there is no tokenizer or it cannot be
    loaded, UsageError if the model is behind an API.
    """
    if is_api(name):
        raise UsageError(f"{name} is asked for its tokenizer alone: name the tokenizer, by hub name or folder.")
    with _lm_extra():
        from ralm.lm.local.tokenization import load_model_tokenizer
    return load_model_tokenizer(model_folder(name))


def model_folder(name: str) -> str:
    """The folder of the built-in model if `name` is ralm-tiny; any other name unchanged."""
    return str(Path(str(files("ralm.lm"))) / TINY) if name == TINY else name


def _lm_extra() -> AbstractContextManager[None]:
    return extra("lm", "language models need", _PACKAGES)
