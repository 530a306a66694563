"""Loads transformers models from folders, GGUF files and the hub: checks, errors as one sentence, and hashes."""

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

from ralm.errors import MissingExtraError, ModelError, RalmError, UsageError, extra, installed_version, short_message
from ralm.lm import is_gguf

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_MAX_NAMED: Final = 3
"""The maximum number of weights that a message names."""
_MAX_RECORDS: Final = 1 << 16
_MISSING: Final = re.compile(r"^(.+?) *\| MISSING\b", re.MULTILINE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CALL_ERRORS: Final = (TypeError, AttributeError, KeyError, NameError)
"""Errors that a call of ours causes if it does not fit the installed version."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@contextmanager
def loading_errors(what: str, name: str) -> Iterator[None]:
    """Turn any error of transformers into a ModelError of one sentence: damaged folders fail in many ways."""
    try:
        yield
    except RalmError:
        raise
    except ImportError as error:
        if "accelerate" in str(error):
            raise MissingExtraError(
                "spreading a model over devices needs the package accelerate: pip install 'ralm[device-map]'."
            ) from error
        raise ModelError(f"cannot load the {what} of {name}: {short_message(error)}.") from error
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{name} comes with Python code of its own, which is not run unless you trust it: read it, and give "
                "`trust_remote_code=True`."
            ) from error
        where = "" if Path(name).exists() else " (no such folder here, so it was looked for on the model hub)"
        reason = short_message(error)
        if isinstance(error, _CALL_ERRORS):
            reason += (
                f" ({type(error).__name__} with {installed_version('transformers')}: if the files are whole, this "
                "version does not fit ralm)"
            )
        raise ModelError(f"cannot load the {what} of {name}{where}: {reason}.") from error


def check_device(name: str) -> None:
    """Raise ModelError if nothing can be computed on a device with this name."""
    import torch  # here, so that tokenizers load without it

    try:
        torch.zeros(1, device=None if name == "auto" else name).item()
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"the `device` {name!r} cannot be used: {short_message(error)}. Give auto, cpu, cuda or cuda:N."
        ) from error


@contextmanager
def no_bars() -> Iterator[None]:
    """Keep transformers and the hub from drawing progress bars; their settings are restored afterwards."""
    in_transformers, in_hub = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the hub warns if an environment variable has the last word
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if in_transformers:
                transformers_logging.enable_progress_bar()  # this enables the hub's too
            (enable_progress_bars if in_hub else disable_progress_bars)()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing bars and logging warnings."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with no_bars():
            yield
    finally:
        transformers_logging.set_verbosity(level)


@contextmanager
def whole_loading(name: str, may_lack: Callable[[str], bool]) -> Iterator[None]:
    """Load quietly; ModelError if weights are missing that may not be (`may_lack`), which only the log names."""
    reports = BufferingHandler(_MAX_RECORDS)
    logger = transformers_logging.get_logger("transformers.modeling_utils")
    with quiet_loading():
        level, propagate = logger.level, logger.propagate
        logger.addHandler(reports)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(reports)
            logger.setLevel(level)
            logger.propagate = propagate
    keys = [key for record in reports.buffer for key in _MISSING.findall(_COLOUR.sub("", record.getMessage()))]
    missing = [key for key in keys if not may_lack(key)]
    if missing:
        raise ModelError(f"{name} lacks weights that its config.json asks for: {_first_of(missing)}.")


def _first_of(keys: Collection[str]) -> str:
    more = f" and {len(keys) - _MAX_NAMED} more" if len(keys) > _MAX_NAMED else ""
    return ", ".join(sorted(keys)[:_MAX_NAMED]) + more


def check_folder(name: str) -> None:
    """Raise ModelError if `name` is a GGUF file or a local folder that cannot be a model, before anything is read."""
    if is_gguf(name):
        raise ModelError(f"{name} is a GGUF file, from which only language models are read: give a folder or hub name.")
    folder = Path(name)
    if folder.is_file():
        raise ModelError(f"{name} is a file; give the folder that holds config.json and the weights.")
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise ModelError(f"there is no folder {name}.")
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model folder: it has no config.json.")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise ModelError(f"{name} has no weights: neither *.safetensors nor pytorch_model*.bin.")


def check_tokenizer(name: str, own_files: Iterable[str] = ()) -> None:
    """Raise ModelError if a local folder has no tokenizer file: transformers would make an empty tokenizer."""
    folder, files = Path(name), dict.fromkeys((*_TOKENIZER_FILES, *own_files))
    if folder.is_dir() and not any((folder / file).is_file() for file in files):
        raise ModelError(f"{name} has no tokenizer: none of {', '.join(files)}.")


def load_checkpoint(name: str, source: Mapping[str, Any], device: str, **options: Any) -> "PreTrainedModel":
    """Return the causal language model of a name; ModelError if it is none, or weights are missing or do not fit."""
    if is_gguf(name):
        from ralm.lm.local.gguf_model import load_gguf

        with no_bars():
            return load_gguf(name, device=device, **options)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

    # Private: transformers' mappings and loading info; tests that drop a weight.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    loader: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(name, **source)
    except (OSError, ValueError):
        pass  # transformers finds the model in another way, such as through an adapter
    else:
        parts = (config, config.get_text_config(decoder=True))
        if any(getattr(part, "is_encoder_decoder", False) for part in parts):
            raise ModelError(
                f"{name} is an encoder-decoder ({config.model_type}), whose decoder needs the output of its encoder: "
                "give a causal language model."
            )
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING:
            loader = AutoModelForMultimodalLM  # there is no class for the text part alone
    model: PreTrainedModel
    with no_bars():
        model, loaded = loader.from_pretrained(name, output_loading_info=True, **source, **options)
    if missing := loaded["missing_keys"]:
        raise ModelError(
            f"{name} lacks weights of a language model: {_first_of(missing)}. Give a checkpoint that was saved with "
            "its output layer."
        )
    if mismatched := loaded["mismatched_keys"]:
        keys = [key if isinstance(key, str) else key[0] for key in mismatched]
        raise ModelError(f"{name} has weights whose shapes do not match its config.json: {_first_of(keys)}.")
    return model


def check_source(name: str, source: Mapping[str, Any]) -> None:
    """Raise UsageError if `source`, arguments of `from_pretrained`, has those of the hub and `name` is local."""
    if source.get("revision", "main") != "main" and Path(name).exists():
        kind = "folder" if Path(name).is_dir() else "file"
        raise UsageError(f"`revision` names a version on the model hub, and {name} is a {kind}: leave it out.")
    if source.get("trust_remote_code") and is_gguf(name):
        raise UsageError(f"{name} holds no Python code: leave out `trust_remote_code`.")


def quantised(name: str, bits: Literal["8bit", "4bit"]) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for quantised weights; UsageError for a GGUF file."""
    if is_gguf(name):
        raise UsageError(f"the weights of {name} are dequantised to `dtype`: leave out `quantised`.")
    with extra("quantised", "quantised weights need", ("bitsandbytes",)):
        import bitsandbytes  # noqa: F401  (transformers reports a missing one in several ways)
    from transformers import BitsAndBytesConfig

    how: dict[str, Any] = {f"load_in_{bits}": True, "bnb_4bit_quant_type": "nf4"}
    return {"quantization_config": BitsAndBytesConfig(**how)}


_BLOCKS: Final = 64
"""The number of blocks of a large tensor that are read, evenly spread from its beginning to its end."""
_BLOCK: Final = 1024
"""Numbers per block."""
_IRRELEVANT_SETTINGS: Final = {"architectures", "dtype", "id2label", "label2id", "torch_dtype", "transformers_version"}
"""Settings that do not affect figures: they say where a model comes from, or are recorded elsewhere."""


def weights_fingerprint(model: "PreTrainedModel") -> str:
    """Return a short hash of names, shapes, formats and values of all weights; of a large tensor, of spread blocks."""
    import torch

    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        if isinstance(weights, torch.Tensor):
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}\n".encode())
            digest.update(_sample(weights.detach()))
    return digest.hexdigest()[:16]


def settings_fingerprint(model: "PreTrainedModel") -> str:
    """Return a short hash of the configuration, which holds what weights do not, such as how positions are counted."""
    settings = {
        name: value
        for name, value in model.config.to_dict().items()
        if not name.startswith("_") and name not in _IRRELEVANT_SETTINGS
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _sample(weights: "torch.Tensor") -> bytes:
    """Return the bytes of a tensor, or of its blocks if it is large; only these leave its device."""
    import torch

    if weights.is_meta:
        return b""
    if weights.numel() > _BLOCKS * _BLOCK:
        begins = torch.linspace(0, weights.numel() - _BLOCK, _BLOCKS, dtype=torch.float64).long()
        chosen = (begins[:, None] + torch.arange(_BLOCK)).flatten().to(weights.device)
        weights = weights[torch.unravel_index(chosen, weights.shape)]
    return weights.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
