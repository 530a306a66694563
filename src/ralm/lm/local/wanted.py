"""The positions of a batch whose logits are wanted.

Shapes: B sequences of a batch, N tokens, P positions that are wanted, X any size.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(eq=False)
class Wanted:
    """P positions of a batch of B x N tokens: the row and the position of each."""

    shape: tuple[int, int]
    row_P: torch.Tensor
    position_P: torch.Tensor

    def of(self, states_BNX: torch.Tensor) -> torch.Tensor:
        """The states (P, X) at the wanted positions."""
        row_P, position_P = self._on(states_BNX.device)
        return states_BNX[row_P, position_P]

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows and positions on a device; they stay on the last one."""
        self.row_P, self.position_P = sent(self.row_P, device), sent(self.position_P, device)
        return self.row_P, self.position_P


class _OfThread(threading.local):
    wanted: Wanted | None = None


_OF_THREAD = _OfThread()


@contextmanager
def wanting(wanted: Wanted) -> Iterator[None]:
    """Within, models that this thread calls know which positions are wanted."""
    _OF_THREAD.wanted = wanted
    try:
        yield
    finally:
        _OF_THREAD.wanted = None


def wanted_now() -> Wanted | None:
    """The positions that are wanted of the model that this thread calls; None if all may be."""
    return _OF_THREAD.wanted


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor, sent to a device; a GPU copies it from main memory while it still works on the previous batch."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
