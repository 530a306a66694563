"""Tensors of a GPU that is not there: they have shapes and a device, and no values.

Inside `fake_cuda`, torch raises FakeTensorDeviceMismatchError where a tensor of the GPU meets one of the processor, as
with a GPU. Results that a program looks at are 0: `numpy`, `item` and `bool`. A build of torch without CUDA has no
guards of devices, so indexing is written with operators here, and memory is not pinned.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from ralm.lm.local import decoder

CUDA = torch.device("cuda", 0)
_Module = TypeVar("_Module", bound=torch.nn.Module)
_ATEN = torch.ops.aten


def _on_gpu(module: _Module, mode: FakeTensorMode) -> _Module:
    """A copy of a module whose weights are on the GPU."""
    copied = deepcopy(module)
    for part in copied.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                fake = FakeTensor(mode, weight.data.to("meta"), CUDA)
                part._parameters[name] = torch.nn.Parameter(fake, requires_grad=weight.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = FakeTensor(mode, buffer.to("meta"), CUDA)
    return copied


class _Indexing(TorchFunctionMode):
    """Indexing by operators, and the values of tensors that have none."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if function is torch.tensor:  # a constant, which torch would copy to a real GPU
            device = named.pop("device", None)
            made = function(*given, **named)
            return torch.empty(made.shape, dtype=made.dtype, device=device)
        if function is torch.Tensor.__getitem__ and isinstance(given[0], FakeTensor):
            return _indexed(*given)
        if function is torch.Tensor.__setitem__ and isinstance(given[0], FakeTensor):
            _set(*given)
            return None
        if function is torch.Tensor.nonzero and isinstance(given[0], FakeTensor):  # which places has no value: all
            places = given[0].new_empty((given[0].numel(),), dtype=torch.long)
            return (places,) * given[0].ndim
        if function is torch.Tensor.pin_memory:
            return given[0]
        if function is torch.Tensor.contiguous and isinstance(given[0], FakeTensor):
            return _ATEN.clone(given[0], memory_format=torch.contiguous_format)
        if function in _VALUES and isinstance(given[0], FakeTensor):
            return _VALUES[function](given[0])  # type: ignore[no-untyped-call]
        return function(*given, **named)


def _list(tensor: torch.Tensor) -> Any:
    return np.zeros(tuple(tensor.shape)).astype(int).tolist()


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    assert tensor.device.type == "cpu", "numpy() of a tensor on a GPU"
    return np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


_VALUES = {
    torch.Tensor.numpy: _numpy,
    torch.Tensor.tolist: _list,
    torch.Tensor.item: lambda tensor: 0,
    torch.Tensor.__bool__: lambda tensor: False,
    torch.Tensor.__int__: lambda tensor: 0,
    torch.Tensor.__float__: lambda tensor: 0.0,
    torch.Tensor.__index__: lambda tensor: 0,
}


def _set(tensor: torch.Tensor, index: Any, value: Any) -> None:
    target = _indexed(tensor, index)
    if isinstance(value, torch.Tensor):  # a GPU copies from the processor too
        assert np.broadcast_shapes(tuple(value.shape), tuple(target.shape)) == tuple(target.shape)


def _indexed(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """The elements of a basic or advanced index, which the operators of views and `index` give."""
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(one is not None and one is not Ellipsis for one in parts)
    if Ellipsis in [one for one in parts if not isinstance(one, torch.Tensor)]:
        place = next(i for i, one in enumerate(parts) if one is Ellipsis)
        parts[place : place + 1] = [slice(None)] * (tensor.ndim - taken)
    found, dimension, advanced = tensor, 0, list[torch.Tensor | None]()
    for one in parts:
        if one is None:
            found = _ATEN.unsqueeze(found, dimension)
            advanced.append(None)
            dimension += 1
        elif isinstance(one, slice):
            found = _ATEN.slice(found, dimension, one.start, one.stop, one.step or 1)
            advanced.append(None)
            dimension += 1
        elif isinstance(one, int | np.integer):
            found = _ATEN.select(found, dimension, int(one))
        else:
            if isinstance(one, torch.Tensor) and one.dtype == torch.bool:
                one = torch.arange(one.shape[0], device=one.device)  # which places are true has no value: all
            places: torch.Tensor = one if isinstance(one, torch.Tensor) else torch.as_tensor(np.asarray(one))
            advanced.append(places.to(found.device))  # a GPU takes indices of the processor too
            dimension += 1
    return _ATEN.index(found, advanced) if any(one is not None for one in advanced) else found


@contextmanager
def fake_cuda(module: _Module) -> Iterator[_Module]:
    """A copy of a module on a GPU without values, for what happens inside."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    copied = _on_gpu(module, mode)
    with pytest.MonkeyPatch.context() as patch, mode, _Indexing():
        made = torch.from_numpy
        patch.setattr(torch, "from_numpy", lambda array: torch.empty(array.shape, dtype=made(array[:0]).dtype))
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(torch.cuda, "current_stream", Mock())
        patch.setattr(decoder, "_NO_TARGETS", torch.zeros(0, dtype=torch.long))  # made before, so it is a real one
        yield copied
