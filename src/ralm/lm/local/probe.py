"""What a model is asked before it is trusted: a few tokens, read in two ways that must come to the same.

No list of families is right for long, and a configuration does not say what a forward pass does. So the model itself
shows whether it looks ahead, and whether keys and values are all that it remembers.

Works on token ids. Shapes: B texts, N tokens, V vocabulary.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from transformers import PreTrainedModel

from ralm.errors import ModelError
from ralm.lm.local.anew import ReadAnew
from ralm.lm.local.continuation import CachedContinuations
from ralm.lm.local.files import first_line
from ralm.lm.local.head import ChosenLogits
from ralm.records import IntArray

_LENGTH: Final = 8
"""Tokens of a probe, or as many as the model can read."""
_TRIES: Final = 3
_EXACT: Final = 1e-3
"""How far two readings of one text may be apart in float32, as a share of how far two texts are."""
_ROUNDED: Final = 0.1
"""The same in other number formats, where experts are chosen otherwise now and then."""


@torch.inference_mode()
def check_causal(model: PreTrainedModel, name: str, max_length: int) -> None:
    """Raise ModelError where a model cannot read plain text, or what it makes of a token depends on later ones.

    Two texts that differ in their last token are read in one pass. A model that looks ahead does so in every text,
    while rounding may show in one; so a few texts are tried before a model is refused.
    """
    length = min(_LENGTH, max_length)
    for seed in range(_TRIES):
        text_N, other_N = _texts(model, [length, length], seed)
        other_N[:-1] = text_N[:-1]
        one_NV, other_NV = _read(model, name, np.stack([text_N, other_N]))
        apart_N = (one_NV - other_NV).abs().mean(-1)
        if length < 2 or not bool(apart_N[:-1].max() > _tolerance(model) * apart_N[-1]):
            return
    raise ModelError(
        f"{name} reads tokens with those that come after them ({model.config.model_type}): it is no causal language "
        "model, and its figures would be no probabilities of a text."
    )


def keeps_rows(logits: ChosenLogits, max_length: int) -> bool:
    """Whether a model can go on from rows of keys and values: next tokens are as likely as when all is read anew.

    Texts that grow, change and have different lengths are tried. A model that keeps something else in its place, as
    state-space models do, or counts positions by columns, is told from the others by what comes out.
    """
    kept = _takes_rows(logits, max_length) and _agrees(logits, max_length)
    if not kept:
        logging.getLogger(__name__).warning(
            "%s (%s) cannot go on from kept keys and values: every token is written after reading the whole text anew.",
            logits.name,
            logits.model.config.model_type,
        )
    return kept


def _takes_rows(logits: ChosenLogits, max_length: int) -> bool:
    return "past_key_values" in inspect.signature(logits.model.forward).parameters and max_length >= _LENGTH


def _agrees(logits: ChosenLogits, max_length: int) -> bool:
    first = _texts(logits.model, [4, 6, 2], seed=0)
    grown = [np.append(text, text[0]) for text in first]
    changed = [grown[2], np.concatenate([grown[0][:3], grown[1][:4]]), np.append(grown[1], grown[0][1])]
    try:
        return _apart(logits, max_length, [first, grown, changed]) <= _tolerance(logits.model)
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception:  # noqa: BLE001  # whatever a family does with a cache that is not its own
        return False


def _apart(logits: ChosenLogits, max_length: int, calls: Sequence[Sequence[IntArray]]) -> float:
    """How far going on and reading anew are apart at most, as a share of how far texts are apart."""
    tokens = _LENGTH * sum(map(len, calls))
    kept = CachedContinuations(logits, max_length, tokens)
    found_BV = np.concatenate([kept.next_tokens(texts).log_probs_BC for texts in calls])
    anew = ReadAnew(logits, max_length, tokens)
    expected_BV = anew.next_tokens([text for texts in calls for text in texts]).log_probs_BC
    scale = np.abs(expected_BV - np.roll(expected_BV, 1, axis=0)).mean()
    return float(np.abs(found_BV - expected_BV).mean(-1).max() / max(scale, 1e-6))


def _texts(model: PreTrainedModel, lengths: Sequence[int], seed: int) -> list[IntArray]:
    """Random tokens of ordinary words: those with a meaning of their own stand at both ends of a vocabulary."""
    draw = np.random.default_rng(seed)
    size = int(model.get_input_embeddings().weight.shape[0])
    return [draw.choice(np.arange(size // 8, max(size // 2, size // 8 + 1)), size=length) for length in lengths]


def _read(model: PreTrainedModel, name: str, tokens_BN: IntArray) -> torch.Tensor:
    """Log-probabilities (float32, B x N x V) after every token."""
    try:
        logits = model(input_ids=torch.from_numpy(tokens_BN).to(model.device), use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} cannot read a text by itself ({model.config.model_type}): {first_line(error)}"
        ) from error
    if logits.shape[:2] != tokens_BN.shape:
        raise ModelError(f"{name} ({model.config.model_type}) does not predict a token after each token that it reads.")
    return logits.float().log_softmax(-1)


def _tolerance(model: PreTrainedModel) -> float:
    return _EXACT if model.dtype == torch.float32 else _ROUNDED
