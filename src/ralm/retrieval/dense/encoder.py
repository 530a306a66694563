"""Loads models that encode texts as vectors, all as modules of sentence-transformers, and encodes passages and queries.

DPR's encoders (and Spider, which is saved in the same format) are a BERT whose vector is that of its first token, in
some models with a linear map on top. Transformers' automatic classes load every DPR folder as a question encoder, so a
context encoder would get random weights. The class is therefore chosen by the architecture that the folder names.
Karpukhin et al., Dense Passage Retrieval for Open-Domain Question Answering, 2020.

Letters of shapes: Q queries, P passages, T texts, D dimensions.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import JsonValue
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from sentence_transformers.util import batch_to_device
from torch import nn
from transformers import AutoConfig, AutoTokenizer, BertConfig, DPRContextEncoder, DPRQuestionEncoder, PreTrainedModel
from transformers.utils import cached_file

from ralm.errors import ModelError, UsageError, short_message
from ralm.lm.local import loading
from ralm.records import FloatArray, Passage
from ralm.retrieval.dense import options as dense_options
from ralm.retrieval.dense.options import SEPARATOR, EncoderOptions, QueryEnd
from ralm.storage.work import scratch_folder
from ralm.terminal import Advance
from ralm.validation import check_strings

_CLASSES: Final = {"DPRContextEncoder": DPRContextEncoder, "DPRQuestionEncoder": DPRQuestionEncoder}
_DPR_SETTINGS: Final = ("model_type", "architectures", "projection_dim")
_NOT_OF_VECTORS: Final = ("_name_or_path", "transformers_version", "architectures", "truncation", "padding")
"""Settings that change with a folder, a version or a call."""
_BATCH: Final = 32
"""Texts encoded at once."""
_BATCHES_A_CALL: Final = 16
_CHARACTERS: Final = 3200
"""Characters of a batch on a CPU, about 800 tokens: larger batches leave its caches."""
_MIN_BATCH: Final = 4
_PASSAGE_OPTIONS: Final = ("encoder", "query_encoder", "titles", "passage_length")
_PROMPTS: Final = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""The names of the prompts that sentence-transformers puts before texts of a kind; the first that exists is used."""


class SentenceEncoder:
    """An encoder or a pair of encoders, each loaded on first use; see `EncoderOptions`."""

    def __init__(self, options: EncoderOptions, *, device: str = "auto", batch: int = _BATCH) -> None:
        self._options = options
        self._device = None if device == "auto" else device
        self._batch = batch

    @cached_property
    def passage_model(self) -> SentenceTransformer:
        """Return the model that encodes passages."""
        model = load_model(self._options.encoder, self._options, self._device)
        _check_length("passage_length", self._options.passage_length, model)
        return model

    @cached_property
    def query_model(self) -> SentenceTransformer:
        """Return the model that encodes queries: the same one, unless the options name another."""
        name = self._options.query_encoder
        _ = self.trained_for  # fails with a clear message if a trained encoder was altered
        model = self.passage_model if name is None else load_model(name, self._options, self._device)
        _check_length("query_length", self._options.query_length, model)
        return model

    @cached_property
    def dimension(self) -> int:
        """Return the length of a query's vector."""
        return dimension_of(self.query_model)

    @cached_property
    def query_fingerprint(self) -> str:
        """Return a short hash of the weights that encode queries."""
        return encoder_fingerprint(self.query_model)

    @cached_property
    def trained_for(self) -> str | None:
        """Return the fingerprint of the passage encoder that the query encoder was trained for, if it names one."""
        name = self._options.query_encoder
        return None if name is None else dense_options.trained_for(name)

    @property
    def query_config(self) -> dict[str, JsonValue]:
        """Return what identifies the query encoder, without names of folders."""
        model = self.query_model
        options = {name: value for name, value in asdict(self._options).items() if name not in _PASSAGE_OPTIONS}
        return {
            "fingerprint": self.query_fingerprint,
            "reading": model_reading(model),
            "model": model_settings(model),
            **options,
        }

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the options with full paths, and the fingerprints; ModelError if the lengths of vectors differ."""
        passages = dimension_of(self.passage_model)
        if passages != self.dimension:
            raise ModelError(
                f"the encoder of passages {self._options.encoder} gives vectors of {passages} dimensions, that of "
                f"queries {self._options.query_encoder} of {self.dimension}; choose two encoders that belong together."
            )
        is_single = self.passage_model is self.query_model
        names = {"encoder": _full_name(self._options.encoder), "query_encoder": _full_name(self._options.query_encoder)}
        return {
            **asdict(self._options),
            **names,
            "passage_fingerprint": self.query_fingerprint if is_single else encoder_fingerprint(self.passage_model),
            "query_fingerprint": self.query_fingerprint,
        }

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Return the vectors (float32, Q x D) of queries; too long a query keeps the end of `query_keeps`."""
        check_strings("queries", queries)
        model = _cutting(self.query_model, self._options.query_keeps)
        return self._encode(model, model.encode_query, queries, self._options.query_length, None)

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        """Return the vectors (float32, P x D) of passages; one that is too long keeps its beginning."""
        model = _cutting(self.passage_model, "first")
        texts = [self.passage_text(passage) for passage in passages]
        return self._encode(model, model.encode_document, texts, self._options.passage_length, advance)

    def query_tensor(self, queries: Sequence[str]) -> torch.Tensor:
        """Return the vectors of queries as `encode_queries` makes them, in one batch and with gradients."""
        model = _cutting(self.query_model, self._options.query_keeps)
        return self._forward(model, "query", queries, self._options.query_length)

    def passage_tensor(self, passages: Sequence[Passage]) -> torch.Tensor:
        """Return the vectors of passages as `encode_passages` makes them, in one batch and with gradients."""
        texts = [self.passage_text(passage) for passage in passages]
        return self._forward(_cutting(self.passage_model, "first"), "document", texts, self._options.passage_length)

    def passage_text(self, passage: Passage) -> str:
        """Return the title, a separator ([SEP] for DPR, as it was trained, or a line break) and the text."""
        if not self._options.titles or not passage.title:
            return passage.text
        return f"{passage.title}{self._separator}{passage.text}"

    def save(self, folder: Path) -> None:
        """Write the weights as they are now; `trained_options` gives the options that load them."""
        self.save_query_encoder(folder)
        if self.passage_model is not self.query_model:
            save_model(self.passage_model, folder / dense_options.PASSAGE_ENCODER, self._separator)

    def save_query_encoder(self, folder: Path) -> None:
        """Write the weights of the encoder of queries as they are now."""
        save_model(self.query_model, folder, self._separator)

    @cached_property
    def _separator(self) -> str:
        recorded = dense_options.recorded_reading(self._options.encoder).get(SEPARATOR)
        if recorded is not None:
            return recorded
        return f" {self.passage_model.tokenizer.sep_token} " if is_dpr(self._options.encoder) else "\n"

    def _forward(self, model: SentenceTransformer, task: str, texts: Sequence[str], length: int | None) -> torch.Tensor:
        """Encode a batch as `encode_query` and `encode_document` of sentence-transformers do, but with gradients."""
        prompt_name = next((name for name in _PROMPTS[task] if name in model.prompts), model.default_prompt_name)
        reading = {"task": task, **_limits(length)}
        prompt = None if prompt_name is None else model.prompts.get(prompt_name)
        # Private: sentence-transformers' preprocessing and choice of prompts; tensors against `encode`.
        features = model.preprocess(_encodable(texts), prompt=prompt, **reading)
        with _readable():
            vectors_TD = model(batch_to_device(features, model.device), **reading)["sentence_embedding"].float()
        if model.truncate_dim is not None:
            vectors_TD = vectors_TD[..., : model.truncate_dim]
        return torch.nn.functional.normalize(vectors_TD, dim=1) if self._options.normalize else vectors_TD

    def _encode(
        self,
        model: SentenceTransformer,
        encode: Callable[..., Any],
        texts: Sequence[str],
        length: int | None,
        advance: Advance | None,
    ) -> FloatArray:
        """Encode texts, the longest first, so texts of a batch have similar lengths and memory runs out at once."""
        texts = _encodable(texts)
        vectors_TD = np.empty((len(texts), dimension_of(model)), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        size = self._batch * _BATCHES_A_CALL
        for rows in (order[begin : begin + size] for begin in range(0, len(order), size)):
            batch = self._batch
            if model.device.type == "cpu":
                batch = min(batch, max(_MIN_BATCH, _CHARACTERS // max(1, len(texts[rows[0]]))))
            with _readable():
                vectors_TD[rows] = encode(
                    [texts[i] for i in rows],
                    batch_size=batch,
                    normalize_embeddings=self._options.normalize,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                    **_limits(length),
                )
            if advance is not None:
                advance(len(rows))
        return vectors_TD


def _limits(length: int | None) -> dict[str, Any]:
    """Return the arguments of sentence-transformers that limit the tokens that are read."""
    return {} if length is None else {"processing_kwargs": {"text": {"max_length": length, "truncation": True}}}


def _encodable(texts: Sequence[str]) -> list[str]:
    """Return the texts with U+FFFD for unpaired surrogates, which no tokenizer accepts."""
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def _check_length(name: str, length: int | None, model: SentenceTransformer) -> None:
    """Raise UsageError if only special tokens would fit into this length, or if the encoder never cuts texts."""
    if length is not None and model.max_seq_length == math.inf:
        raise UsageError(f"`{name}` has no effect: this encoder reads texts of any length whole.")
    special = getattr(model.tokenizer, "num_special_tokens_to_add", None)
    minimum = 1 + (special(False) if special else 0)
    if length is not None and length < minimum:
        raise UsageError(
            f"`{name}` must be at least {minimum} for this encoder, not {length}: it counts special tokens."
        )


@contextmanager
def _readable() -> Iterator[None]:
    """Turn failures on long texts or unknown tokens into ModelError; encoders do not say how many they accept."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        raise ModelError(
            f"the encoder cannot read a text ({short_message(error)}): lower or omit `passage_length` and "
            "`query_length`, and use the tokenizer that belongs to the weights."
        ) from error


def _cutting(model: SentenceTransformer, kept: QueryEnd) -> SentenceTransformer:
    """Return a model, which now keeps this end of texts that are too long."""
    if hasattr(model.tokenizer, "truncation_side"):
        model.tokenizer.truncation_side = "left" if kept == "last" else "right"
    return model


def _full_name(name: str | None) -> str | None:
    return str(Path(name).resolve()) if name is not None and Path(name).is_dir() else name


def load_model(name: str, options: EncoderOptions, device: str | None) -> SentenceTransformer:
    """Load a model of sentence-transformers, or a bare model with pooling; ModelError if there is none."""
    loading.check_device(device or "auto")
    folder = Path(name)
    if not (folder / "modules.json").is_file():
        loading.check_folder(name)
        loading.check_tokenizer(name)
    weights = {"dtype": options.dtype}
    with loading.loading_errors("encoder", name), loading.whole_loading(name, _is_unused):
        if is_dpr(name):
            return SentenceTransformer(modules=load_dpr(name, weights), device=device)
        if options.pooling == "auto" or dense_options.recorded_reading(name):  # a trained folder names its pooling
            return SentenceTransformer(name, device=device, model_kwargs=weights)
        transformer = Transformer(name, model_kwargs=weights)
        pooling = Pooling(transformer.get_embedding_dimension(), options.pooling)
        return SentenceTransformer(modules=[transformer, pooling], device=device)


def _is_unused(weight: str) -> bool:
    """Return whether a weight belongs to BERT's pooler, which no vector depends on and many folders lack."""
    return "pooler." in weight


def save_model(model: SentenceTransformer, folder: Path, separator: str) -> None:
    """Write a model into a folder that sentence-transformers loads."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the settings of the last call would be saved too
        backend.no_truncation()
        backend.no_padding()
    _cutting(model, "first")
    with loading.quiet_loading():
        model.save_pretrained(str(folder), create_model_card=False)
    dense_options.write_reading(folder, {SEPARATOR: separator})


def dimension_of(model: SentenceTransformer) -> int:
    """Return the length of the vectors that a model gives."""
    dimension = model.get_embedding_dimension()
    assert dimension is not None, "the last module of a model has an output dimension"
    return dimension


def encoder_fingerprint(model: SentenceTransformer) -> str:
    """Return a short hash of all weights except BERT's pooler."""
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        if _is_unused(name):
            continue
        digest.update(f"{name} {tuple(weights.shape)}\n".encode())
        digest.update(weights.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def model_reading(model: SentenceTransformer) -> dict[str, JsonValue]:
    """Return how modules read a text, apart from their weights; only names that are stable across versions."""
    modules = [module for module in model.modules() if type(module).__module__.startswith("sentence_transformers.")][1:]
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
    """Return a short hash of the architecture and the tokenizer of a model."""
    described = [module.get_config_dict() for module in model.modules() if hasattr(module, "get_config_dict")]
    described += [module.config.to_dict() for module in model.modules() if isinstance(module, PreTrainedModel)]
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        described.append(json.loads(backend.to_str()))
    shared = [{name: value for name, value in part.items() if name not in _NOT_OF_VECTORS} for part in described]
    return hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_dpr(name: str) -> bool:
    """Return whether a folder or hub model is DPR, by its config.json, if any; OSError if the hub cannot be reached."""
    file = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    return file is not None and json.loads(Path(file).read_text(encoding="utf-8")).get("model_type") == "dpr"


def load_dpr(name: str, model_kwargs: dict[str, Any]) -> list[nn.Module]:
    """Load the modules of a DPR encoder; ValueError if the folder is DPR's reader, or does not say which encoder."""
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
        projection = inner.encode_proj
        linear = Dense(projection.in_features, projection.out_features, activation_function=nn.Identity())
        linear.linear.load_state_dict(projection.state_dict())
        modules.append(linear)
    return modules


def _as_module(bert: Any, tokenizer: Any, model_kwargs: dict[str, Any]) -> Transformer:
    """Return a BERT in memory as a module, through a folder, since modules can only be loaded from folders."""
    settings = {name: value for name, value in bert.config.to_dict().items() if name not in _DPR_SETTINGS}
    bert.config = BertConfig(**settings)
    with scratch_folder() as folder:
        bert.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return Transformer(str(folder), model_kwargs={**model_kwargs, "add_pooling_layer": False})
