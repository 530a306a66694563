"""Tests a model before it is used: whether it looks ahead, and whether a cache of keys and values is its whole state.

A few tokens are read in two ways that must agree. A list of model families soon goes out of date, and a configuration
does not tell what a forward pass does.

Shapes: B texts, N tokens, V vocabulary.
"""

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ralm.errors import ModelError, short_message, warn_of_mismatch
from ralm.lm.local import decoder, engine
from ralm.lm.local.blocks import Blocks
from ralm.records import FloatArray, IntArray, ScoringSequence

_LENGTH: Final = 8
"""Tokens of a probe; fewer if the model cannot read as many."""
_TRIES: Final = 3
_FLOAT32_TOLERANCE: Final = 1e-3
"""How much two readings of one text may differ in float32, as a fraction of the difference between two texts."""
_TOLERANCE: Final = 0.1
"""The same in other number formats, in which rounding sometimes changes the choice of experts."""
_ROW_LAYERS: Final = {DynamicLayer, DynamicSlidingWindowLayer}
"""Kinds of layers of a cache that hold keys and values alone."""


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
