"""The linear layers of a model on a CPU, with weights packed once into a layout that it reads fast.

The library's products pack the weights again each time. For the few rows of a step of generation this takes two to
three times as long as reading them; for a text of 1,000 tokens it is still a quarter of the time. Here oneDNN keeps the
packed layout. The cost is a second copy of the weights in memory.

Knows modules and tensors; knows nothing of texts. Shapes: R rows, I inputs, O outputs.
"""

from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ralm.environment import warn_of_mismatch
from ralm.lm.local.files import first_line

_BYTES: Final = 1 << 31
"""The most bytes of weights that are packed; a larger model is left unchanged."""
_ROWS: Final = 10
"""The number of rows that the layout is made for; other numbers give correct results too."""

_TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""How much a product may differ, as a fraction of its size."""


def pack_weights(model: PreTrainedModel) -> None:
    """Have the linear layers of a model use packed weights from now on, where that is faster.

    LibraryWarning if torch's private functions for them fail or give other products; the layers stay as they are.
    """
    layers = packable(model)
    if layers and _products_agree(layers[0]):
        for module in layers:
            module.forward = _PackedLinear(module)


@torch.no_grad()
def _products_agree(module: Any) -> bool:
    """Whether a layer gives the same with packed weights as without; LibraryWarning if not."""
    what = "ralm could not use packed weights, so the layers of a model on a CPU are slower"
    inputs = module.weight.shape[0 if isinstance(module, Conv1D) else 1]
    states_RI = torch.randn(2, inputs, generator=torch.Generator().manual_seed(0)).to(module.weight.dtype)
    plain_RO = module(states_RI).float()
    try:
        apart_RO = _PackedLinear(module)(states_RI).float() - plain_RO
    except Exception as error:  # noqa: BLE001  # private functions may fail in any way
        warn_of_mismatch("torch", f"{what}: {first_line(error)}", error)
        return False
    if apart_RO.norm() > _TOLERANCE[module.weight.dtype] * plain_RO.norm():
        warn_of_mismatch("torch", f"{what}: its products differ")
        return False
    return True


class _PackedLinear:
    """The forward method of a linear layer. Weights are packed when they are first used, and again if they changed."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module: Any = module
        self._weight: Any = None
        self._version = 0
        self._packed: Any = None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        weight = self._module.weight
        version = 0 if weight.is_inference() else weight._version
        if weight is not self._weight or version != self._version:
            self._pack(weight, version)
        states_RI = states.reshape(-1, states.shape[-1])
        found_RO = torch.ops.mkldnn._linear_pointwise(states_RI, self._packed, self._module.bias, "none", [], "")
        return found_RO.view(*states.shape[:-1], found_RO.shape[-1])

    def _pack(self, weight: torch.Tensor, version: int) -> None:
        weight_OI = weight.detach().T.contiguous() if isinstance(self._module, Conv1D) else weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _ROWS)
        self._weight, self._version = weight, version


def processor_packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN and this processor can multiply packed weights of a number format; bfloat16 needs AVX-512."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packable(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The layers whose weights can be packed; empty if that would not be faster or would take too much memory."""
    on_cpu = {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    if not on_cpu or not processor_packs(model.dtype):
        return []
    layers = [module for module in model.modules() if type(module) in (torch.nn.Linear, Conv1D)]
    weights: list[Any] = [module.weight for module in layers]
    return layers if sum(weight.nbytes for weight in weights) <= _BYTES else []
