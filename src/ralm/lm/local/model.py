"""Causal language models that run in this process, through transformers, on CPUs or GPUs.

Before a model is used it is tested: whether it looks ahead, and whether a cache of keys and values, or the state that
it returns, is its whole state. A few tokens are read in two ways that must agree: a list of model families soon goes
out of date, and a configuration does not tell what a forward pass does.

Shapes: B texts, N tokens, V vocabulary.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from pydantic import JsonValue
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ralm.errors import ModelError, short_message, warn_of_mismatch
from ralm.lm import is_gguf
from ralm.lm.local import decoder, engine, kernels, loading, tokenization
from ralm.lm.local.blocks import BlockFile, Blocks, free_bytes, shared_tokens
from ralm.lm.registry import ModelOptions
from ralm.lm.scoring import groups_that_fit
from ralm.protocols import TOKENS_TOGETHER, UNLIMITED, Continuations
from ralm.records import FloatArray, IntArray, ScoringSequence

_MOST_ON_CPU: Final = 1 << 30
"""Bytes of blocks in the main memory, which other programs use, too."""
_SHARE: Final = 5
"""Sequences that share a fifth of their tokens are read as texts that grow, a fifth of those that fit at once."""
_LENGTH_SETTINGS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_LENGTH: Final = 8
"""Tokens of a probe; fewer if the model cannot read as many."""
_TRIES: Final = 3
_FLOAT32_TOLERANCE: Final = 1e-3
"""How much two readings of one text may differ in float32, as a fraction of the difference between two texts."""
_TOLERANCE: Final = 0.1
"""The same in other number formats, in which rounding sometimes changes the choice of experts."""
_ROW_LAYERS: Final = {DynamicLayer, DynamicSlidingWindowLayer}
"""Kinds of layers of a cache that hold keys and values alone."""


class LocalLanguageModel:
    """A frozen transformers model with its tokenizer; ModelError if it is not causal.

    `copies` on other devices share the scoring. `loaded_with` are options of loading that may change figures. Texts
    that are continued share up to `passage_cache` bytes of keys and values; None: as the free memory allows.
    """

    tier: Final = "all"

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: tokenization.ModelTokenizer,
        copies: Sequence[PreTrainedModel] = (),
        loaded_with: Mapping[str, JsonValue] = MappingProxyType({}),
        passage_cache: int | None = None,
        passage_cache_file: Path | None = None,
    ) -> None:
        self.name = name
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self._loaded_with = loaded_with
        check_causal(self.model, name, self.max_length)
        self.logits = engine.TargetLogits(self.model, name)
        file = BlockFile(passage_cache_file, lambda: self.config) if passage_cache_file else None
        free = free_bytes(self.model.device)
        most = free // 8 if self.model.device.type == "cuda" else min(free // 8, _MOST_ON_CPU)
        self.blocks = Blocks(most if passage_cache is None else passage_cache, file)
        self.copies = [self.logits, *(engine.TargetLogits(copy.eval().requires_grad_(False), name) for copy in copies)]
        self._engine = engine.Engine([engine.Replica(logits) for logits in self.copies])

    @cached_property
    def config(self) -> dict[str, JsonValue]:
        """Name, size, format, device and options of loading, and fingerprints of weights, settings and tokenizer."""
        return {
            "name": self.name,
            "parameters": self.model.num_parameters(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "weights": loading.weights_fingerprint(self.model),
            "settings": loading.settings_fingerprint(self.model),
            "tokenizer": self.tokenizer.fingerprint,
            **self._loaded_with,
        }

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that the model can read at once."""
        config = self.model.config.get_text_config()
        lengths = (getattr(config, setting, None) for setting in _LENGTH_SETTINGS)
        return next((length for length in lengths if isinstance(length, int) and length > 0), UNLIMITED)  # XLNet: -1

    @property
    def end_tokens(self) -> frozenset[int]:
        """The ids that end a text, by the tokenizer, its chat template and the generation settings."""
        settings = self.model.generation_config
        ends = settings.eos_token_id if settings is not None else None
        tokens = [*(ends if isinstance(ends, list) else [ends]), self.tokenizer.end_token, self.tokenizer.turn_end]
        return frozenset(int(token) for token in tokens if token is not None)

    @property
    def vocabulary(self) -> int:
        """The number of token ids of the model."""
        return self.logits.vocabulary

    @property
    def merges_prefixes(self) -> bool:
        """Whether a token has the same result in a longer sequence with the same prefix; False with LongRoPE."""
        return not engine.length_thresholds(self.model.config)

    @cached_property
    def tokens_at_once(self) -> int:
        """How many tokens of texts are continued together: those that take a quarter of the free memory."""
        if self._decoder is not decoder.CachedDecoder:
            return TOKENS_TOGETHER
        tokens = free_bytes(self.model.device) // (4 * self.blocks.token_bytes)
        return tokens if self.model.device.type == "cuda" else min(tokens, TOKENS_TOGETHER)

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the log-probability (float32) of each sequence's targets; those that begin alike share what is read."""
        shared = shared_tokens([sequence.tokens_N[: sequence.targets_P[0] - 1] for sequence in sequences])
        grows = [_SHARE * tokens >= len(sequence) for tokens, sequence in zip(shared, sequences, strict=True)]
        if len(self.copies) > 1 or not any(grows) or self._decoder is not decoder.CachedDecoder:
            yield from self._engine.score(sequences)
            return
        growing = self._score_growing([*compress(sequences, grows)])
        rest = self._engine.score([*compress(sequences, [not grow for grow in grows])])
        for grow in grows:
            yield next(growing if grow else rest)

    def _score_growing(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        growing = decoder.CachedDecoder(self.logits, self.max_length, self.blocks)
        for numbers in groups_that_fit([[len(sequence)] for sequence in sequences], self.tokens_at_once // _SHARE):
            yield from growing.score(sequences[numbers.start : numbers.stop])

    def distributions(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the natural log-probabilities (float32, P x V) of all tokens at the P targets of each sequence."""
        return self._engine.score(sequences, engine.distributions)

    def continuations(self) -> Continuations:
        """Return a new decoder of the kind that `choose_decoder` finds by probing the model."""
        if self._decoder is decoder.CachedDecoder:
            return decoder.CachedDecoder(self.logits, self.max_length, self.blocks)
        return self._decoder(self.logits, self.max_length)

    @cached_property
    def _decoder(self) -> type[decoder.LocalDecoder]:
        return choose_decoder(self.logits, self.max_length, self.blocks)


def load_transformers_model(name: str, options: ModelOptions | None = None) -> LocalLanguageModel:
    """Load a causal language model by hub name, folder or GGUF file; raises what `load_language_model` raises."""
    options = options or ModelOptions()
    if not is_gguf(name):
        loading.check_folder(name)
    if options.device == "all":
        gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
        devices = gpus or [torch.device("cpu")]
    else:
        devices = [_device(device.strip()) for device in options.device.split(",")]
    how: dict[str, Any] = {"dtype": options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)}
    tokenizer = tokenization.load_model_tokenizer(name, options.source, options.template_values)
    if options.quantised != "none":
        how |= loading.quantised(name, options.quantised)
    is_placed = options.device == "map" or options.quantised != "none"
    if is_placed:
        how["device_map"] = "auto" if options.device == "map" else {"": devices[0]}
    if options.attention != "auto":
        how["attn_implementation"] = options.attention
    with loading.loading_errors("model", name):
        model = loading.load_checkpoint(name, options.source, devices[0].type, **how)
        if not is_placed:
            model = model.to(devices[0])
    copies = [deepcopy(model).to(device) for device in devices[1:]]
    cache = None if options.passage_cache is None else int(options.passage_cache * 1e6)
    loaded = LocalLanguageModel(name, model, tokenizer, copies, options.identity, cache, options.passage_cache_file)
    for logits in loaded.copies:
        kernels.speed_up(logits.model, attention=options.attention == "auto")
    return loaded


def _device(name: str) -> torch.device:
    if name in ("auto", "map"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loading.check_device(name)
    return torch.device(name)


@torch.inference_mode()
def check_causal(model: PreTrainedModel, name: str, max_length: int) -> None:
    """Raise ModelError if a model cannot read plain text, or if in several texts a result depends on later tokens."""
    length = min(_LENGTH, max_length)
    for seed in range(_TRIES):
        text_N, other_N = _probe_texts(model, [length, length], seed)
        other_N[:-1] = text_N[:-1]
        one_NV, other_NV = _read(model, name, np.stack([text_N, other_N]))
        apart_N = (one_NV - other_NV).abs().mean(-1)
        if length < 2 or not bool(apart_N[:-1].max() > _tolerance(model) * apart_N[-1]):
            return
    raise ModelError(
        f"{name} looks at later tokens ({model.config.model_type}): it is not a causal language model, and its "
        "figures would not be probabilities of a text."
    )


def choose_decoder(logits: engine.TargetLogits, max_length: int, blocks: Blocks) -> type[decoder.LocalDecoder]:
    """Return the fastest decoder with the same probabilities as reading texts whole; warn if it has no cache."""
    kind = logits.model.config.model_type
    try:
        if can_cache_rows(logits, max_length, blocks):
            return decoder.CachedDecoder
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # a model family may fail in any way with a cache of another kind
        if _caches_rows_alone(logits.model):
            warn_of_mismatch(
                "transformers",
                f"ralm could not hand over cached keys and values to {logits.name} ({kind}): "
                f"{short_message(error)}. Figures stay right, but the whole text is read again for every new "
                "token",
                error,
            )
            return decoder.UncachedDecoder
    if can_continue_state(logits, max_length):
        return decoder.StateDecoder
    logging.getLogger(__name__).warning(
        "%s: models of the family %s cannot continue from rows of cached keys and values, or from a state that they "
        "return. Generation reads the whole text again for every new token.",
        logits.name,
        kind,
    )
    return decoder.UncachedDecoder


def can_cache_rows(logits: engine.TargetLogits, max_length: int, blocks: Blocks) -> bool:
    """Return whether growing and scored texts have the same probabilities from cached keys and values."""
    if max_length < _LENGTH or engine.length_thresholds(logits.model.config):
        return False
    first = _probe_texts(logits.model, [4, 6, 2], seed=0)
    grown = [np.append(text, text[0]) for text in first]
    changed = [grown[2], np.concatenate([grown[0][:3], grown[1][:4]]), np.append(grown[1], grown[0][1])]
    tokens = _LENGTH * 3 * len(first)
    cached = decoder.CachedDecoder(logits, max_length, blocks, tokens)
    found_BV = np.concatenate([cached.next_tokens(texts).log_probs_BC for texts in (first, grown, changed)])
    uncached = decoder.UncachedDecoder(logits, max_length, tokens)
    difference = _difference(found_BV, uncached.next_tokens([*first, *grown, *changed]).log_probs_BC)
    sequences = [ScoringSequence(text, np.arange(len(text) // 2, len(text))) for text in grown]
    scores_P = np.concatenate(decoder.CachedDecoder(logits, max_length, blocks, _LENGTH).score(sequences))
    before = [sequence.tokens_N[:at] for sequence in sequences for at in sequence.targets_P]
    target_P = np.concatenate([sequence.tokens_N[sequence.targets_P] for sequence in sequences])
    uncached_PV = uncached.next_tokens(before).log_probs_BC
    difference = max(difference, _difference(scores_P, uncached_PV[np.arange(len(target_P)), target_P]))
    return difference <= _tolerance(logits.model)


def can_continue_state(logits: engine.TargetLogits, max_length: int) -> bool:
    """Return the same for the model's own state, of texts that grow, change places, are left out or continued twice."""
    if max_length < _LENGTH:
        return False
    first = _probe_texts(logits.model, [3, 5, 2, 3], seed=0)
    second = _grown(first, 1)
    third = _grown([*second[::-1], *second[1:3]], 2)
    steps = [first, second, third, _grown(third[1:], 3)]
    tokens = _LENGTH * sum(map(len, steps))
    states = decoder.StateDecoder(logits, max_length, tokens)
    try:
        found_BV = np.concatenate([states.next_tokens(texts).log_probs_BC for texts in steps])
    except Exception as error:  # a model family may fail in any way with its own state
        if isinstance(error.__context__, torch.OutOfMemoryError):  # says nothing about the family
            raise
        return False
    uncached = decoder.UncachedDecoder(logits, max_length, tokens)
    expected_BV = uncached.next_tokens([text for texts in steps for text in texts]).log_probs_BC
    return _difference(found_BV, expected_BV) <= _tolerance(logits.model)


def _grown(texts: Sequence[IntArray], number: int) -> list[IntArray]:
    """Return the texts with a token more each, of the text `number` places on."""
    return [np.append(text, texts[(place + number) % len(texts)][0]) for place, text in enumerate(texts)]


def _caches_rows_alone(model: PreTrainedModel) -> bool:
    """Return whether the cache that a model makes by itself holds keys and values of earlier tokens alone."""
    text_1N = torch.from_numpy(_probe_texts(model, [4], seed=0)[0])[None]
    try:
        output = model(input_ids=text_1N.to(model.device), use_cache=True)
    except Exception:  # noqa: BLE001  # some families cannot make their cache if all layers are of one kind
        return False
    caches = [value for value in output.values() if isinstance(value, Cache)]
    layers = [layer for cache in caches for layer in cache.layers]
    return bool(layers) and all(type(cache) is DynamicCache for cache in caches) and {*map(type, layers)} <= _ROW_LAYERS


def _difference(actual: FloatArray, expected: FloatArray) -> float:
    scale = np.abs(expected - np.roll(expected, 1, axis=0)).mean()
    return float(np.abs(actual - expected).mean(-1).max() / max(scale, 1e-6))


def _probe_texts(model: PreTrainedModel, lengths: Sequence[int], seed: int) -> list[IntArray]:
    """Return random ordinary tokens; special tokens are at both ends of a vocabulary."""
    draw = np.random.default_rng(seed)
    size = int(model.get_input_embeddings().weight.shape[0])
    return [draw.choice(np.arange(size // 8, max(size // 2, size // 8 + 1)), size=length) for length in lengths]


def _read(model: PreTrainedModel, name: str, tokens_BN: IntArray) -> torch.Tensor:
    try:
        logits = model(input_ids=torch.from_numpy(tokens_BN).to(model.device), use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} cannot read a text by itself ({model.config.model_type}): {short_message(error)}."
        ) from error
    if logits.shape[:2] != tokens_BN.shape:
        raise ModelError(f"{name} ({model.config.model_type}) does not predict a token after each token that it reads.")
    return logits.float().log_softmax(-1)


def _tolerance(model: PreTrainedModel) -> float:
    return _FLOAT32_TOLERANCE if model.dtype == torch.float32 else _TOLERANCE
