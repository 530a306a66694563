"""What a model's weights and settings are, as short hashes: equal for equal models, whatever files they came from.

Knows modules and tensors; knows nothing of files, hubs or texts.
"""

import hashlib
import json
from typing import Final

import torch
from transformers import PreTrainedModel

_BLOCKS: Final = 64
"""Stretches that are read of a large tensor, evenly spread: the first at its beginning, the last at its end."""
_BLOCK: Final = 1024
"""Numbers in a stretch."""
_NOT_DECISIVE: Final = {"architectures", "dtype", "id2label", "label2id", "torch_dtype", "transformers_version"}
"""Settings that say where a model comes from, or are recorded beside it, and decide no figure."""


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A short hash of the names, shapes, number formats and values of all weights, as they stand in memory.

    Of tensors of more than 65,536 numbers it reads 64 stretches of 1,024, evenly spread from the first number to the
    last. What training, merging or quantising does to a tensor shows in them; a change of a few rows between two
    stretches does not. Of weights that are kept on disk while the model runs only names and shapes are read. The same
    weights in another number format are other weights.
    """
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        if isinstance(weights, torch.Tensor):
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}\n".encode())
            digest.update(_sample(weights.detach()))
    return digest.hexdigest()[:16]


def settings_fingerprint(model: PreTrainedModel) -> str:
    """A short hash of the model's configuration: what its weights do not say, as how positions are counted."""
    settings = {
        name: value
        for name, value in model.config.to_dict().items()
        if not name.startswith("_") and name not in _NOT_DECISIVE
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _sample(weights: torch.Tensor) -> bytes:
    """The bytes of a tensor, or of its stretches; only these leave its device."""
    if weights.is_meta:
        return b""
    if weights.numel() > _BLOCKS * _BLOCK:
        begins = torch.linspace(0, weights.numel() - _BLOCK, _BLOCKS, dtype=torch.float64).long()
        chosen = (begins[:, None] + torch.arange(_BLOCK)).flatten().to(weights.device)
        weights = weights[torch.unravel_index(chosen, weights.shape)]
    return weights.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
