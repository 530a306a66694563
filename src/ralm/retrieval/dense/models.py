"""Loads, saves and fingerprints the models that encode texts, all as modules of sentence-transformers.

DPR's encoders (and Spider, which is saved in the same format) are a BERT whose vector is that of its first token, in
some models with a linear map on top. Transformers' automatic classes load every DPR folder as a question encoder, so a
context encoder would get random weights. The class is therefore chosen by the architecture that the folder names.
Karpukhin et al., Dense Passage Retrieval for Open-Domain Question Answering, 2020.
"""

import hashlib
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from pydantic import JsonValue
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from torch import nn
from transformers import AutoConfig, AutoTokenizer, BertConfig, DPRContextEncoder, DPRQuestionEncoder, PreTrainedModel
from transformers.utils import cached_file

from ralm.errors import ModelError
from ralm.lm.local import loading
from ralm.retrieval.dense.options import SEPARATOR, EncoderOptions, recorded_reading, write_reading

_CLASSES: Final = {"DPRContextEncoder": DPRContextEncoder, "DPRQuestionEncoder": DPRQuestionEncoder}
_DPR_SETTINGS: Final = ("model_type", "architectures", "projection_dim")
_NOT_OF_VECTORS: Final = ("_name_or_path", "transformers_version", "architectures")
_SET_FOR_A_CALL: Final = ("truncation", "padding")
_ST_PACKAGE: Final = "sentence_transformers."
_ST_FOLDER: Final = "modules.json"


def load_model(name: str, options: EncoderOptions, device: str | None) -> SentenceTransformer:
    """A model of sentence-transformers, or a bare model with pooling over its tokens, by hub name or folder.

    Raises ModelError if there is no such model, or it cannot be moved to the device.
    """
    folder = Path(name)
    if not (folder / _ST_FOLDER).is_file():
        loading.check_folder(name)
        loading.check_tokenizer(name)
    weights = {"dtype": options.dtype}
    with loading.loading_errors("encoder", name), loading.whole_loading(name, _is_unused):
        if is_dpr(name):
            return SentenceTransformer(modules=load_dpr(name, weights), device=device)
        if options.pooling == "auto" or recorded_reading(name):  # a trained folder names its pooling
            return SentenceTransformer(name, device=device, model_kwargs=weights)
        transformer = Transformer(name, model_kwargs=weights)
        pooling = Pooling(transformer.get_embedding_dimension(), options.pooling)
        return SentenceTransformer(modules=[transformer, pooling], device=device)


def _is_unused(weight: str) -> bool:
    """Whether a weight belongs to BERT's pooler, which no vector depends on and many folders lack."""
    return "pooler." in weight


def check_encoder_device(name: str) -> None:
    """Raise ModelError if encoders cannot be computed on a device with this name."""
    try:
        torch.zeros(1, device=None if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"the device {name!r} cannot be used: {loading.first_line(error)}.") from error


def save_model(model: SentenceTransformer, folder: Path, separator: str) -> None:
    """Write a model into a folder that sentence-transformers loads."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the settings of the last call would be saved too
        backend.no_truncation()
        backend.no_padding()
    with loading.quiet_loading():
        model.save_pretrained(str(folder), create_model_card=False)
    write_reading(folder, {SEPARATOR: separator})


def dimension_of(model: SentenceTransformer) -> int:
    """The length of the vectors that a model gives."""
    dimension = model.get_embedding_dimension()
    assert dimension is not None, "the last module of a model has an output dimension"
    return dimension


def encoder_fingerprint(model: SentenceTransformer) -> str:
    """A short hash of all weights except BERT's pooler."""
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        if _is_unused(name):
            continue
        digest.update(f"{name} {tuple(weights.shape)}\n".encode())
        digest.update(weights.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def model_reading(model: SentenceTransformer) -> dict[str, JsonValue]:
    """How the modules of a model read a text, apart from their weights; only names that are stable across versions."""
    modules = [module for module in model.modules() if type(module).__module__.startswith(_ST_PACKAGE)][1:]
    pooling = [module for module in modules if isinstance(module, Pooling)]
    return {
        "modules": [type(module).__name__ for module in modules],
        "pooling": [str(module.pooling_mode) for module in pooling],
        "pooling_over_the_prompt": [bool(module.include_prompt) for module in pooling],
        "lower_case": [bool(getattr(module, "do_lower_case", False)) for module in modules],
        "prompts": {str(name): str(prompt) for name, prompt in model.prompts.items()},
        "default_prompt": model.default_prompt_name,
        "most_tokens": None if model.max_seq_length == math.inf else model.max_seq_length,
    }


def model_settings(model: SentenceTransformer) -> str:
    """A short hash of the architecture and the tokenizer of a model."""
    digest = hashlib.sha256()
    for module in model.modules():
        described = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        digest.update(json.dumps(described, sort_keys=True, default=str).encode())
        if isinstance(module, PreTrainedModel):
            described = {k: v for k, v in module.config.to_dict().items() if k not in _NOT_OF_VECTORS}
            digest.update(json.dumps(described, sort_keys=True, default=str).encode())
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        described = {k: v for k, v in json.loads(backend.to_str()).items() if k not in _SET_FOR_A_CALL}
        digest.update(json.dumps(described, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def is_dpr(name: str) -> bool:
    """Whether a folder or hub model is an encoder of DPR, by its config.json, which many other models lack.

    Raises OSError if the hub cannot be reached.
    """
    file = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    return file is not None and json.loads(Path(file).read_text(encoding="utf-8")).get("model_type") == "dpr"


def load_dpr(name: str, model_kwargs: dict[str, Any]) -> list[nn.Module]:
    """The modules of a DPR encoder: its BERT, pooling on the first token, and the linear map if it has one.

    Raises ValueError if the folder is DPR's reader, or does not say which encoder it is.
    """
    config = AutoConfig.from_pretrained(name)
    architectures = config.architectures or []
    chosen = next((architecture for architecture in architectures if architecture in _CLASSES), None)
    if chosen is None:
        raise ValueError(f"its architecture is {architectures}, not one of {', '.join(_CLASSES)}")
    encoder = _CLASSES[chosen].from_pretrained(name, **model_kwargs)
    inner = encoder.ctx_encoder if chosen == "DPRContextEncoder" else encoder.question_encoder
    transformer = _as_module(inner.bert_model, AutoTokenizer.from_pretrained(name), model_kwargs)
    width = transformer.get_embedding_dimension()
    modules: list[nn.Module] = [transformer, Pooling(width, "cls")]
    if inner.projection_dim > 0:
        modules.append(_linear(inner.encode_proj))
    return modules


def _as_module(bert: Any, tokenizer: Any, model_kwargs: dict[str, Any]) -> Transformer:
    """A BERT in memory as a module, through a folder, since modules can only be loaded from folders."""
    settings = {name: value for name, value in bert.config.to_dict().items() if name not in _DPR_SETTINGS}
    bert.config = BertConfig(**settings)
    with TemporaryDirectory() as folder:
        bert.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return Transformer(folder, model_kwargs={**model_kwargs, "add_pooling_layer": False})


def _linear(projection: nn.Linear) -> Dense:
    dense = Dense(projection.in_features, projection.out_features, activation_function=nn.Identity())
    dense.linear.load_state_dict(projection.state_dict())
    return dense
