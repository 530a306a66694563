"""Matrix products with few rows, with weights packed once into a layout that a CPU reads fast.

Generation multiplies every weight with one row per text, so most of the time goes to reading weights from memory. With
more than one row, the library's products pack the weights again each time; for ten rows this takes two to three times
as long as reading them. Here oneDNN keeps the packed layout. The cost is a second copy of the weights in memory.

Knows modules and tensors; knows nothing of texts. Shapes: R rows, I inputs, O outputs.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_BYTES: Final = 1 << 31
"""The most bytes of weights that are packed; a larger model is left unchanged."""
_ROWS: Final = 10
"""The number of rows that the layout is made for; other numbers give correct results too."""


class PackedWeights:
    """The linear layers of a model on a CPU, which use packed weights within `used`, in the calling thread only."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._here = threading.local()
        for module in packable(model):
            module.forward = self._linear(module)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within, the layers use their packed weights."""
        self._here.used = True
        try:
            yield
        finally:
            self._here.used = False

    def _linear(self, module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """The new forward method of a linear layer."""
        plain: Any = module.forward
        weight: Any = module.weight
        weight_OI = weight.T.contiguous() if isinstance(module, Conv1D) else weight
        packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), _ROWS)
        outputs = weight_OI.shape[0]

        def forward(states: torch.Tensor) -> torch.Tensor:
            if not getattr(self._here, "used", False):
                return plain(states)
            states_RI = states.reshape(-1, states.shape[-1])
            found_RO = torch.ops.mkldnn._linear_pointwise(states_RI, packed, module.bias, "none", [], "")
            return found_RO.view(*states.shape[:-1], outputs)

        return forward


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
