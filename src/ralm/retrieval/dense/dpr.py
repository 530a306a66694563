"""Loads DPR's encoders (and Spider, which is saved in the same format) as modules of sentence-transformers.

A DPR encoder is a BERT whose vector is that of its first token, in some models with a linear map on top. Transformers'
automatic classes load every DPR folder as a question encoder, so a context encoder would get random weights. The class
is therefore chosen here by the architecture that the folder names. Karpukhin et al., Dense Passage Retrieval for
Open-Domain Question Answering, 2020.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from torch import nn
from transformers import AutoConfig, AutoTokenizer, BertConfig, DPRContextEncoder, DPRQuestionEncoder
from transformers.utils import cached_file

_CLASSES: Final = {"DPRContextEncoder": DPRContextEncoder, "DPRQuestionEncoder": DPRQuestionEncoder}
_DPR_SETTINGS: Final = ("model_type", "architectures", "projection_dim")


def is_dpr(name: str) -> bool:
    """Whether a folder or hub model is an encoder of DPR, by its config.json (many sentence-transformers models have
    none).

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
    """A BERT in memory as a module; it goes through a folder, since modules can only be loaded from folders."""
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
