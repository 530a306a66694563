"""Cross-encoders through sentence-transformers: pairs of (end of a prefix, passage) in, a score for each out.

A language model may be a cross-encoder too. It then reads the passage first and scores where the prefix ends.

Letters of shapes: P pairs.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import batch_to_device, load_file_path
from transformers import AutoConfig

from ralm.errors import ModelError, UsageError, short_message
from ralm.lm import model_path
from ralm.lm.local import loading
from ralm.records import FloatArray
from ralm.reranking.predictive import Pair

_TOKENS: Final = 64
"""The number of tokens of the prefix that are read if the cross-encoder has no number of its own."""
_SETTINGS: Final = "ralm"
"""The key of `CrossEncoderSettings` in a cross-encoder's config.json."""

_BATCH: Final = {"cpu": 32, "cuda": 256}
_CHARACTERS_A_TOKEN: Final = 16
_NEW_HEADS: Final = ("score", "classifier")
"""The names of the new head of a language model."""
_HEADS: Final = ("ForSequenceClassification", "ForCausalLM")
_CAUSAL: Final = ("ForCausalLM", "GPT2LMHeadModel")
"""Ends of the names of architectures: with a score for a pair, and language models."""
_NO_LENGTH: Final = 2**31 - 1
"""Tokenizers without a length have a huge number instead."""
_SET_FOR_A_CALL: Final = ("truncation", "padding")


class CrossEncoderSettings(BaseModel):
    """How a cross-encoder reads, as in the config.json of its folder; the defaults are for other cross-encoders."""

    model_config = ConfigDict(frozen=True)

    tokens: int | None = Field(default=None, ge=1)
    rank_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    passage_first: bool = False


class PairModel:
    """A cross-encoder for the end of a prefix and a passage; too long a pair keeps the beginning of its passage."""

    def __init__(self, name: str, model: CrossEncoder, reading: "CrossEncoderSettings") -> None:
        self.name = name
        self.model = model
        self.tokens = reading.tokens or _TOKENS
        self.rank_weight = reading.rank_weight
        self.passage_first = reading.passage_first
        if model.num_labels != 1:
            raise ModelError(f"{name} gives {model.num_labels} scores for a pair; a reranker gives one.")
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(f"{name} has no fast tokenizer (tokenizer.json), which a reranker needs.")
        if 2 * self.tokens > model.max_seq_length:
            raise UsageError(
                f"{self.tokens} tokens of the prefix leave too little room for a passage: {name} reads "
                f"{model.max_seq_length} tokens of both; give at most {model.max_seq_length // 2}."
            )

    @cached_property
    def config(self) -> Mapping[str, JsonValue]:
        """Return everything that affects the scores."""
        transformer: Any = self.model.model
        tokenizer = json.loads(self.model.tokenizer.backend_tokenizer.to_str())
        decisive = {name: value for name, value in tokenizer.items() if name not in _SET_FOR_A_CALL}
        return {
            "name": str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name,
            "weights": loading.weights_fingerprint(transformer),
            "settings": loading.settings_fingerprint(transformer),
            "tokenizer": hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16],
            "dtype": str(transformer.dtype).removeprefix("torch."),
            "max_length": self.model.max_seq_length,
            **self._settings(),
        }

    def end(self, prefix: str) -> str:
        """Return the end of a prefix that is read: its last `tokens` tokens, as text."""
        characters = self.tokens * _CHARACTERS_A_TOKEN  # more if these are too few
        while True:
            tail = _readable(prefix[-characters:])
            encoded = self.model.tokenizer(tail, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            offsets = encoded["offset_mapping"]
            if len(offsets) > self.tokens:
                return tail[offsets[-self.tokens][0] :]
            if characters >= len(prefix):
                return tail
            characters *= 2

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return the logits (float32, P) for pairs of an end and a passage; ModelError if it cannot read a pair."""
        self.model.eval()
        scores_P = np.empty(len(pairs), dtype=np.float32)
        for batch in self.batches(pairs):
            with torch.inference_mode():
                scores_P[batch] = self.logits([pairs[place] for place in batch]).float().cpu().numpy()
        return scores_P

    def logits(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """Return the scores (P) of pairs from one pass, with a gradient if torch keeps one."""
        features = self._features(pairs)
        with self._reading_errors():
            return self.model(features)["scores"].squeeze(-1)

    def batches(self, pairs: Sequence[Pair], sizes: Mapping[str, int] = _BATCH) -> list[list[int]]:
        """Return the indices of the pairs of each batch, the longest first; `sizes` has that of a batch by device."""
        order = sorted(range(len(pairs)), key=lambda place: -sum(map(len, pairs[place])))
        size = sizes.get(self.model.device.type, sizes["cpu"])
        return [order[begin : begin + size] for begin in range(0, len(order), size)]

    def _features(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        shortened = "only_first" if self.passage_first else "only_second"
        longest = {"max_length": self.model.max_seq_length, "truncation": shortened}
        texts = [(end, _readable(passage)) for end, passage in pairs]
        if self.passage_first:
            texts = [(passage, end) for end, passage in texts]
        with self._reading_errors():
            features = self.model.preprocess(texts, processing_kwargs={"text": longest})
            return dict(batch_to_device(features, self.model.device))

    def save(self, folder: Path) -> None:
        """Write a folder that sentence-transformers loads, too."""
        transformer: Any = self.model.model
        setattr(transformer.config, _SETTINGS, self._settings())
        self.model.activation_fn = torch.nn.Identity()
        with loading.quiet_loading():
            self.model.save_pretrained(str(folder), create_model_card=False)

    def _settings(self) -> dict[str, JsonValue]:
        return {"tokens": self.tokens, "rank_weight": self.rank_weight, "passage_first": self.passage_first}

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            raise ModelError(f"the cross-encoder {self.name} cannot read pairs: {short_message(error)}.") from error


def load_pair_model(
    name: str, tokens: int | None = None, *, device: str = "auto", max_length: int | None = None, new: bool = False
) -> PairModel:
    """Load a cross-encoder by hub name or folder; with `new`, for training, with a head and in float32."""
    source = model_path(name)
    loading.check_folder(source)
    loading.check_tokenizer(source)
    options: dict[str, Any] = {"num_labels": 1, "model_kwargs": {"dtype": torch.float32}} if new else {}

    def may_lack(weight: str) -> bool:
        of_head = "pooler." in weight or not weight.startswith(f"{model.model.base_model_prefix}.")
        return of_head and (new or not _has_head(model))

    with loading.loading_errors("cross-encoder", name), loading.whole_loading(name, may_lack), _without_notes():
        causal = new and _is_language_model(source)
        modules = {"modules": [_with_new_head(source)]} if causal else {"model_name_or_path": source, **options}
        model = CrossEncoder(**modules, device=None if device == "auto" else device)
        saved = CrossEncoderSettings.model_validate(getattr(model.model.config, _SETTINGS, None) or {}, strict=True)
    if not new and not _has_head(model):
        raise ModelError(
            f"{name} is an encoder without a head that scores pairs; train one (`ralm train reranker --init {name}`), "
            "or give a cross-encoder."
        )
    longest = model.max_seq_length
    if max_length is None and (longest is None or longest > _NO_LENGTH):
        raise ModelError(
            f"{name} has no maximum number of tokens: set `model_max_length` in its tokenizer_config.json."
        )
    if max_length is not None:
        if longest is not None and max_length > longest:
            raise UsageError(f"`max_length` {max_length} is beyond the {longest} tokens that {name} can read.")
        model.max_seq_length = max_length
    settings = saved.model_copy(update={"tokens": tokens or saved.tokens})
    if new:
        settings = settings.model_copy(update={"rank_weight": 0.0, "passage_first": saved.passage_first or causal})
    return PairModel(name, model, settings)


def _has_head(model: CrossEncoder) -> bool:
    return (model.model.config.architectures or [""])[0].endswith(_HEADS)


def _is_language_model(source: str) -> bool:
    """Return whether a model is a language model, and not yet a cross-encoder."""
    if load_file_path(source, "modules.json") is not None:
        return False
    architectures = AutoConfig.from_pretrained(source).architectures or [""]
    return bool(architectures[0].endswith(_CAUSAL))


def _with_new_head(source: str) -> Transformer:
    """Load a language model with a new head that gives one score where the text ends."""
    transformer = Transformer(
        source,
        transformer_task="sequence-classification",
        model_kwargs={"dtype": torch.float32},
        config_kwargs={"num_labels": 1},
    )
    tokenizer = transformer.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(
            f"{source} has neither a padding token nor an end token, which a reranker needs: set one in its "
            "tokenizer_config.json."
        )
    transformer.model.config.pad_token_id = tokenizer.pad_token_id
    for head in (getattr(transformer.model, name, None) for name in _NEW_HEADS):
        if isinstance(head, torch.nn.Linear):
            for weights in head.parameters():  # training starts from the rank alone
                torch.nn.init.zeros_(weights)
    return transformer


@contextmanager
def _without_notes() -> Iterator[None]:
    logger = logging.getLogger("sentence_transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _readable(text: str) -> str:
    """Return the text with U+FFFD for unpaired surrogates, which no tokenizer accepts."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
