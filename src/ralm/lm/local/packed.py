"""Matrix products of few rows, with weights laid out once so that a CPU reads them fast.

Writing token by token multiplies every weight with one row a text, so that the time goes to bringing weights from
memory. The library's products lay them out anew each time where there is more than one row: for ten rows, two to three
times the time of reading them. oneDNN keeps its layout; the price is a second copy of the weights in memory.

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
"""Weights that are kept twice at most: those of a larger model are left as they are."""
_ROWS: Final = 10
"""The number of rows that the layout is made for; others are as right."""


class PackedWeights:
    """The linear layers of a model on a CPU, which use packed weights while `used` says so, in its thread alone."""

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
        """What a linear layer does from now on."""
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
    """Whether oneDNN and this processor can multiply packed weights of a number format; bfloat16 wants AVX-512."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packable(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The layers whose weights can be packed: none where that would not be faster, or take too much memory."""
    on_cpu = {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    if not on_cpu or not processor_packs(model.dtype):
        return []
    layers = [module for module in model.modules() if type(module) in (torch.nn.Linear, Conv1D)]
    weights: list[Any] = [module.weight for module in layers]
    return layers if sum(weight.nbytes for weight in weights) <= _BYTES else []
