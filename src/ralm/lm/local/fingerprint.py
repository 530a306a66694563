"""Short hashes of a model's weights and settings: equal for equal models, whatever files they came from.

Knows modules and tensors; knows nothing of files, hubs or texts.
"""

import hashlib
import json
from typing import Final

import torch
from transformers import PreTrainedModel

_BLOCKS: Final = 64
"""How many blocks of a large tensor are read, evenly spread from its beginning to its end."""
_BLOCK: Final = 1024
"""Numbers per block."""
_NOT_DECISIVE: Final = {"architectures", "dtype", "id2label", "label2id", "torch_dtype", "transformers_version"}
"""Settings that do not affect figures: they say where a model comes from, or are recorded elsewhere."""


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A short hash of the names, shapes, number formats and values of all weights in memory.

    Of a tensor of more than 65,536 numbers it reads 64 blocks of 1,024, evenly spread from the first number to the
    last. They change with training, merging or quantising; a change of a few rows between two blocks goes unnoticed. Of
    weights that stay on disk while the model runs, only names and shapes are hashed. The same weights in another number
    format have another hash.
    """
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        if isinstance(weights, torch.Tensor):
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}\n".encode())
            digest.update(_sample(weights.detach()))
    return digest.hexdigest()[:16]


def settings_fingerprint(model: PreTrainedModel) -> str:
    """A short hash of the model's configuration, which holds what the weights do not, such as how positions are
    counted."""
    settings = {
        name: value
        for name, value in model.config.to_dict().items()
        if not name.startswith("_") and name not in _NOT_DECISIVE
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _sample(weights: torch.Tensor) -> bytes:
    """The bytes of a tensor, or of its blocks if it is large; only these leave its device."""
    if weights.is_meta:
        return b""
    if weights.numel() > _BLOCKS * _BLOCK:
        begins = torch.linspace(0, weights.numel() - _BLOCK, _BLOCKS, dtype=torch.float64).long()
        chosen = (begins[:, None] + torch.arange(_BLOCK)).flatten().to(weights.device)
        weights = weights[torch.unravel_index(chosen, weights.shape)]
    return weights.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
