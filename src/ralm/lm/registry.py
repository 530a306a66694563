"""Loads a language model or tokenizer by name, and the options of running it.

Importing this module does not import torch; loading a model does.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal

from ralm.errors import UsageError, extra
from ralm.lm import model_folder
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.options import Option, check_options
from ralm.protocols import WritingModel

if TYPE_CHECKING:
    from ralm.lm.api.model import ApiModel
    from ralm.lm.local.model import LocalLanguageModel
    from ralm.lm.local.tokenization import ModelTokenizer

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

_API_PACKAGES: Final = ("httpx2", "openai", "tiktoken", "transformers", "huggingface_hub")
_LM_PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run a model.

    `dtype` auto keeps the number format that the model was saved in. `device` is cpu, cuda, cuda:N, auto (a GPU if
    there is one), several separated by commas (a copy on each; the copies share the scoring), all (a copy on every
    GPU), or map (one copy spread over all devices, for models too large for one). `compile` lets torch compile the
    layers, which takes minutes and pays off on long runs. `api` is for models behind an API; the other options have
    no effect on them.

    Raises UsageError if `dtype` is not one of the choices.
    """

    dtype: Annotated[Dtype, Option("Number format of the weights; auto: as the model was saved.")] = "auto"
    device: Annotated[
        str,
        Option(
            "cpu, cuda, cuda:N; auto: a GPU if there is one; several with commas, or all GPUs, share the scoring; "
            "map: one copy spread over all."
        ),
    ] = "auto"
    compile: Annotated[bool, Option("Let torch compile the model's layers: slower to start, faster on long runs.")] = (
        False
    )

    api: Annotated[ApiOptions, Option("How a model behind an API is asked.")] = field(default_factory=ApiOptions)

    def __post_init__(self) -> None:
        check_options(self)


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
    """A model behind an API, probed again from the start; see `ralm.lm.api.probe`."""
    with extra("api", "models behind an API need", _API_PACKAGES):
        from ralm.lm.api.probe import probe_server
    return probe_server(name, options)


def load_local_model(name: str, options: ModelOptions | None = None) -> "LocalLanguageModel":
    """A model that runs in this process, by name; raises what `load_language_model` raises."""
    with _lm_extra():
        from ralm.lm.local.model import load_transformers_model
    model = load_transformers_model(model_folder(name), options)
    model.name = name
    return model


def load_tokenizer(name: str) -> "ModelTokenizer":
    """The tokenizer of a language model, without its weights; raises what `load_language_model` raises, and UsageError
    if the model is behind an API."""
    if is_api(name):
        raise UsageError(f"{name} is a model behind an API: name its tokenizer, by hub name or folder.")
    with _lm_extra():
        from ralm.lm.local.tokenization import load_model_tokenizer
    return load_model_tokenizer(model_folder(name))


def _lm_extra() -> AbstractContextManager[None]:
    return extra("lm", "language models need", _LM_PACKAGES)
