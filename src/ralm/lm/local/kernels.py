"""Functions that replace those of the libraries with faster ones on a CPU, chosen by profiling.

GPT-2 124M, 1,024 tokens in bfloat16 on one core: 330 of 880 ms went to attention and 130 ms to GELU.
"""

from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CAUSAL_BLOCKS: Final = "ralm_causal_blocks"
_QUERIES_A_BLOCK: Final = 128


def speed_up(model: PreTrainedModel) -> None:
    """Give a model these functions if they are faster than its own; the model must be on its device already."""
    _fuse_gelu(model)
    bfloat16_on_cpu = model.device.type == "cpu" and model.dtype == torch.bfloat16
    if bfloat16_on_cpu and model.config._attn_implementation == "sdpa":
        ALL_ATTENTION_FUNCTIONS.register(CAUSAL_BLOCKS, causal_blocks)
        ALL_MASK_ATTENTION_FUNCTIONS.register(CAUSAL_BLOCKS, sdpa_mask)
        model.set_attn_implementation(CAUSAL_BLOCKS)


def _fuse_gelu(model: PreTrainedModel) -> None:
    """Compute GELU's tanh approximation in one pass over memory instead of eight."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, (NewGELUActivation, FastGELUActivation)):
                setattr(module, name, GELUTanh())


def causal_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of (batch, head, position, size) as matrix products, a block of queries at a time.

    In bfloat16 on a CPU this is 2.5 times as fast as the fused kernel, which multiplies in float32. The fused kernel
    still does everything but plain causal attention over a whole text (masks, caches, biases).
    """
    plain = attention_mask is None and query.shape[2] == key.shape[2] and query.shape[2] > 1
    known = {"scaling", "dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions"}
    if not plain or options.get("is_causal") is False or set(options) - known:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    groups = query.shape[1] // key.shape[1]
    queries = (query * scale).flatten(0, 1)
    keys, values = (part.repeat_interleave(groups, 1).flatten(0, 1) for part in (key, value))
    length = queries.shape[1]
    later = torch.ones(_QUERIES_A_BLOCK, _QUERIES_A_BLOCK, dtype=torch.bool).triu(1)
    found = torch.empty((*queries.shape[:2], values.shape[-1]), dtype=values.dtype)
    for begin in range(0, length, _QUERIES_A_BLOCK):
        end = min(begin + _QUERIES_A_BLOCK, length)
        scores = torch.bmm(queries[:, begin:end], keys[:, :end].mT)
        scores[:, :, begin:].masked_fill_(later[: end - begin, : end - begin], float("-inf"))
        found[:, begin:end] = torch.bmm(scores.softmax(-1), values[:, :end])
    return found.view(*query.shape[:3], -1).transpose(1, 2).contiguous(), None
