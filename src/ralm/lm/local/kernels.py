"""Faster functions for models on a CPU: attention, GELU, and linear layers with packed weights.

Shapes: R rows, I inputs, O outputs.
"""

import inspect
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, GELUTanh, NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# Private: attention and mask functions by name, and Conv1D; test_kernels.py lists who is faster.
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from ralm.errors import ModelError, installed_version, short_message, warn_of_mismatch
from ralm.lm.local.engine import agree, trial_text

CAUSAL_BLOCKS: Final = "ralm_causal_blocks"
WINDOW_BLOCKS: Final = "ralm_window_blocks"
_SDPA: Final = "sdpa"
_QUERIES_PER_BLOCK: Final = 128
_FUSED_OPTIONS: Final = {*inspect.signature(sdpa_attention_forward).parameters, "softcap"}
"""The options that the fused kernel reads. It ignores others; the mask that it gets already covers them."""
_OWN_OPTIONS: Final = {"scaling", "is_causal"}
_IGNORED_TENSORS: Final = {"position_ids", "cache_position"}
_MAX_PACKED_BYTES: Final = 1 << 31
"""The maximum size of weights that are packed; a larger model is left unchanged."""
_PACKED_ROWS: Final = 10
"""The number of rows that the layout is made for; other numbers give correct results too."""
_NO_ACTIVATION: Final = ("none", "")
_GELU: Final = ("gelu", "tanh")
_BEFORE_GELU: Final = (
    ("c_fc", "act"),
    ("fc_in", "act"),
    ("dense_h_to_4h", "act"),
    ("gate_proj", "act_fn"),
    ("fc1", "activation_fn"),
)
"""Layers of the families, and the activation functions that read their products."""


def speed_up(model: PreTrainedModel, *, attention: bool = True) -> None:
    """Let a model use what is faster on its device; it stays as it was, with a warning, if a trial differs."""
    changes, faster = [*_changes(model)], _faster_attention(model) if attention else None
    if not changes and faster is None:
        return
    expected = _trial_logits(model)
    before = [(place, {**place}) for place, _, _ in changes]
    for place, name, value in changes:
        place[name] = value
    if faster is not None:
        model.set_attn_implementation(faster)
    fault = _fault(model, expected)
    if faster is not None and fault is not None:
        model.set_attn_implementation(_SDPA)
        if isinstance(fault, ModelError):  # a fact of the family: its attention reads more than ours
            fault = _fault(model, expected)
    if fault is None:
        return
    for place, entries in before:
        place.clear()
        place.update(entries)
    what = f"a model on a CPU is slower, since the faster functions of ralm failed with {installed_version('torch')}"
    warn_of_mismatch("transformers", f"{what}: {short_message(fault)}", fault)


def _changes(model: PreTrainedModel) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the faster parts of a model: the dictionary that each is an entry of, its name there, and its value."""
    packed = {layer: _PackedLinear(layer) for layer in packable(model)}
    for module in model.modules():
        for name, child in module.named_children():
            if not isinstance(child, (NewGELUActivation, FastGELUActivation, GELUTanh)):
                continue
            layers = [module._modules.get(layer) for layer, activation in _BEFORE_GELU if activation == name]
            if product := next((packed[layer] for layer in layers if layer in packed), None):
                product.activation = _GELU
                yield module._modules, name, torch.nn.Identity()
            elif not isinstance(child, GELUTanh):
                yield module._modules, name, GELUTanh()
    for layer, forward in packed.items():
        yield vars(layer), "forward", forward


def _faster_attention(model: PreTrainedModel) -> str | None:
    """Return the name of our attention, registered with transformers, if it is faster for a model."""
    has_window = getattr(model.config.get_text_config(), "sliding_window", None) is not None
    is_faster = model.device.type == "cpu" and (model.dtype == torch.bfloat16 or has_window)
    if not is_faster or model.config._attn_implementation != _SDPA or not model._can_set_attn_implementation():
        return None
    name, attend = (CAUSAL_BLOCKS, causal_blocks) if model.dtype == torch.bfloat16 else (WINDOW_BLOCKS, window_blocks)
    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, window_mask)
    return name


def _fault(model: PreTrainedModel, expected: torch.Tensor) -> Exception | None:
    """Return the error of a changed model, one of other logits included."""
    try:
        return None if agree(_trial_logits(model), expected, model.dtype) else ArithmeticError("its logits differ")
    except Exception as error:  # noqa: BLE001  # private functions, and modules of a new kind, may fail in any way
        return error


@torch.inference_mode()
def _trial_logits(model: PreTrainedModel) -> torch.Tensor:
    """Return the logits of a short text, which is longer than the sliding window that the model has meanwhile."""
    config, text_BN = model.config.get_text_config(), trial_text(model)
    window = getattr(config, "sliding_window", None)
    try:
        if window is not None:
            config.sliding_window = text_BN.shape[1] // 2
        logits: torch.Tensor = model(input_ids=text_BN.to(model.device), use_cache=False).logits
    finally:
        if window is not None:
            config.sliding_window = window
    return logits


@dataclass(frozen=True, slots=True, eq=False)
class _WindowMask:
    """The arguments of `sdpa_mask` for a sliding window, whose mask, 0.9 GB for 30,000 tokens, is made in blocks."""

    options: Mapping[str, Any]

    def block(self, begin: int, end: int) -> tuple[slice, torch.Tensor]:
        """Return the keys that the queries from `begin` to `end` may see, and which of them each query sees."""
        options, before = self.options, self.options["q_offset"] - self.options["kv_offset"]
        keys = slice(max(0, before + begin + 1 - options["local_size"]), before + end)
        changed = {
            "q_length": end - begin,
            "q_offset": options["q_offset"] + begin,
            "kv_length": keys.stop - keys.start,
            "kv_offset": options["kv_offset"] + keys.start,
            "allow_is_causal_skip": False,
        }
        return keys, sdpa_mask(**{**options, **changed})


def window_mask(**options: Any) -> _WindowMask | torch.Tensor | None:
    """Return the mask for the fused kernel; in blocks where a text is longer than a causal window."""
    window = options.get("local_size")
    is_plain = options.get("allow_is_causal_skip", False) and options.get("q_length", 1) > 1
    return _WindowMask(options) if is_plain and window and options["kv_length"] > window else sdpa_mask(**options)


def window_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: _WindowMask | torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend (batch, head, position, size) by the fused kernel, in a sliding window to the keys that a block sees."""
    if not isinstance(attention_mask, _WindowMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    _check_tensors(options, set())
    outputs = []
    for begin in range(0, query.shape[2], _QUERIES_PER_BLOCK):
        end = min(begin + _QUERIES_PER_BLOCK, query.shape[2])
        keys, mask = attention_mask.block(begin, end)
        parts = query[:, :, begin:end], key[:, :, keys], value[:, :, keys]
        outputs.append(sdpa_attention_forward(module, *parts, mask, **options)[0])
    return torch.cat(outputs, dim=1), None


def _check_tensors(options: Mapping[str, Any], read: Set[str]) -> None:
    """Raise ModelError if a model passes a tensor that is not `read`: its figures would be wrong."""
    for name in options.keys() - read - _IGNORED_TENSORS:
        if isinstance(options[name], torch.Tensor):
            raise ModelError(f'the attention of this model needs `{name}`, which ralm does not read; use "sdpa".')


def causal_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: _WindowMask | torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend (batch, head, position, size) by matrix products, 2.5 times as fast in bfloat16 as the fused kernel."""
    _check_tensors(options, _FUSED_OPTIONS)
    square = query.shape[2] == key.shape[2] and query.shape[2] > 1
    if attention_mask is not None or not square or _needs_fused_kernel(module, options):
        return window_blocks(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    rows, length = key.shape[0] * key.shape[1], query.shape[2]  # a row has the queries of all heads that share keys
    queries = (query * scale).reshape(rows, -1, *query.shape[2:])
    keys, values = key.flatten(0, 1), value.flatten(0, 1)
    later = torch.ones(_QUERIES_PER_BLOCK, _QUERIES_PER_BLOCK, dtype=torch.bool).triu(1)
    output = torch.empty((*queries.shape[:3], values.shape[-1]), dtype=values.dtype)
    for begin in range(0, length, _QUERIES_PER_BLOCK):
        end = min(begin + _QUERIES_PER_BLOCK, length)
        block = queries[:, :, begin:end]
        scores = torch.bmm(block.flatten(1, 2), keys[:, :end].contiguous().mT)  # else it is a tenth slower
        new = scores.view(*block.shape[:3], end)[..., begin:]
        new.masked_fill_(later[: end - begin, : end - begin], float("-inf"))
        output[:, :, begin:end] = torch.bmm(scores.softmax(-1), values[:, :end]).view(*block.shape[:3], -1)
    return output.view(*query.shape[:3], -1).transpose(1, 2).contiguous(), None


def _needs_fused_kernel(module: torch.nn.Module, options: Mapping[str, Any]) -> bool:
    """Return whether the options ask for more than plain causal attention; a module may have `is_causal` itself."""
    is_causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        return True
    read = (options[name] for name in options.keys() & (_FUSED_OPTIONS - _OWN_OPTIONS))
    return any(isinstance(value, torch.Tensor) or value for value in read)


class _PackedLinear:
    """The forward method of a linear layer with packed weights, whose products oneDNN gives to the `activation`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.activation = _NO_ACTIVATION
        self._module: Any = module
        self._weight: Any = None
        self._version = 0
        self._packed: Any = None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        weight = self._module.weight
        version = 0 if weight.is_inference() else weight._version
        if weight is not self._weight or version != self._version:
            weight_OI = weight.detach().T.contiguous() if isinstance(self._module, Conv1D) else weight.detach()
            # Private: torch's packed layers and versions of tensors; a trial when a model is loaded.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _PACKED_ROWS)
            self._weight, self._version = weight, version
        states_RI = states.reshape(-1, states.shape[-1])
        name, variant = self.activation
        product_RO = torch.ops.mkldnn._linear_pointwise(states_RI, self._packed, self._module.bias, name, [], variant)
        return product_RO.view(*states.shape[:-1], product_RO.shape[-1])


def processor_packs(dtype: torch.dtype) -> bool:
    """Return whether oneDNN and this processor multiply packed weights of a number format; bfloat16 needs AVX-512."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packable(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the layers whose weights can be packed; none if that would not be faster or would take too much memory."""
    on_cpu = {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    if not on_cpu or not processor_packs(model.dtype):
        return []
    layers = [module for module in model.modules() if type(module) in (torch.nn.Linear, Conv1D)]
    weights: list[Any] = [module.weight for module in layers]
    return layers if sum(weight.nbytes for weight in weights) <= _MAX_PACKED_BYTES else []
