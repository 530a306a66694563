"""Keys and values of many texts side by side: what a model remembers of the texts that it is in the middle of.

All rows end in the same column; shorter ones begin later. So the next token of every row is one column more, written
into room that was kept for it, and two tokens are as far apart as their columns, which is what local attention counts.
Knows tensors; knows nothing of tokens or of what a model does with its keys.

Shapes: B rows, H heads, C columns, S size of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ralm.records import IntArray

_ROOM: Final = 64
"""Columns that are kept free for tokens to come when tensors are made."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The first `columns` columns of row `source` that a row goes on from; none of any where `columns` is 0."""

    source: int = 0
    columns: int = 0


class KeyValueRows:
    """Rows of keys and values, and a `cache` through which a transformers model reads and extends some of them."""

    def __init__(self) -> None:
        self.lengths_B: IntArray = np.zeros(0, dtype=np.int64)
        self.cache = Cache(layer_class_to_replicate=partial(_Layer, self))
        self.rows = slice(0, 0)
        self.begin = self.end = 0
        self.shape = (0, 0)
        """Rows and columns that the tensors have room for."""
        self.last = 0
        """The column in which all rows end, that of their next token."""

    def begins(self, row: int) -> int:
        """The column in which a row begins."""
        return self.last - int(self.lengths_B[row])

    def arrange(self, kept: Sequence[Kept], lengths_B: IntArray) -> None:
        """Make rows of these lengths (int64), each with what it keeps of the rows before at its beginning.

        What follows in a row until its end must be written before it is read.
        """
        before_B, last = self.lengths_B, self.last
        fits = len(kept) <= self.shape[0] and lengths_B.max() <= last < self.shape[1]
        if not fits:
            self.last = int(lengths_B.max())
            self.shape = (max(len(kept), self.shape[0]), self.last + _ROOM)
        self.lengths_B = lengths_B
        moves = []
        for row, (source, columns) in enumerate((one.source, one.columns) for one in kept):
            begin = last - int(before_B[source]) if columns else 0
            if columns and not (fits and (source, begin) == (row, self.begins(row))):
                moves.append(((source, begin), (row, self.begins(row)), columns))
        for layer in self.cache.layers:
            layer.move(moves, None if fits else self.shape)

    def put_all(self, rows: Sequence[int], layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write whole rows: the first columns of each layer's keys and values (B, H, C, S), of which the last are more
        than a shorter row has."""
        while len(self.cache.layers) < len(layers):
            self.cache.layers.append(_Layer(self))
        for layer, tensors in zip(self.cache.layers, layers, strict=True):
            for place, row in enumerate(rows):
                layer.put(row, *(tensor[place, :, : self.lengths_B[row]] for tensor in tensors))

    def extend_from(self, rows: slice, begin: int, end: int) -> None:
        """What the model reads next goes on from columns `begin` to `end` of these rows, and is written after them."""
        self.rows, self.begin, self.end = rows, begin, end

    def grew(self) -> None:
        """Every row has got one token more, in the column that was free."""
        self.lengths_B = self.lengths_B + 1
        self.last += 1


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of one layer, of which a model sees what its owner says."""

    keys: Any
    values: Any

    def __init__(self, owner: KeyValueRows) -> None:
        super().__init__()
        self._owner = owner

    def update(self, keys_BHCS: torch.Tensor, values_BHCS: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write new columns; all that these rows have, with them."""
        if self.keys is None:
            self._make(keys_BHCS, values_BHCS)
        owner = self._owner
        end = owner.end + keys_BHCS.shape[2]
        self.keys[owner.rows, :, owner.end : end] = keys_BHCS
        self.values[owner.rows, :, owner.end : end] = values_BHCS
        return self.keys[owner.rows, :, owner.begin : end], self.values[owner.rows, :, owner.begin : end]

    def get_seq_length(self) -> int:
        """Columns that the rows have already."""
        return self._owner.end - self._owner.begin

    def move(
        self, moves: Sequence[tuple[tuple[int, int], tuple[int, int], int]], shape: tuple[int, int] | None
    ) -> None:
        """Copy stretches of columns from one (row, column) to another; into new tensors where a shape is given."""
        if self.keys is None:
            return
        self.keys = _moved(self.keys, moves, shape)
        self.values = _moved(self.values, moves, shape)

    def put(self, row: int, keys_HCS: torch.Tensor, values_HCS: torch.Tensor) -> None:
        """Write the columns of a row, from where it begins."""
        if self.keys is None:
            self._make(keys_HCS[None], values_HCS[None])
        begin = self._owner.begins(row)
        self.keys[row, :, begin : begin + keys_HCS.shape[1]] = keys_HCS
        self.values[row, :, begin : begin + keys_HCS.shape[1]] = values_HCS

    def _make(self, keys_BHCS: torch.Tensor, values_BHCS: torch.Tensor) -> None:
        self.keys = _zeros_like(keys_BHCS, self._owner.shape)
        self.values = _zeros_like(values_BHCS, self._owner.shape)
        self.is_initialized = True


def _zeros_like(tensor_BHCS: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Zeros, because a column that is masked is multiplied by zero, and zero times whatever stood there may be NaN."""
    rows, columns = shape
    return tensor_BHCS.new_zeros((rows, tensor_BHCS.shape[1], columns, tensor_BHCS.shape[3]))


def _moved(
    tensor_BHCS: torch.Tensor,
    moves: Sequence[tuple[tuple[int, int], tuple[int, int], int]],
    shape: tuple[int, int] | None,
) -> torch.Tensor:
    """The tensor after the moves; all are read before the first is written."""
    stretches = [tensor_BHCS[row, :, begin : begin + columns] for (row, begin), _, columns in moves]
    if shape is None:
        stretches = [stretch.clone() for stretch in stretches]
        target = tensor_BHCS
    else:
        target = _zeros_like(tensor_BHCS, shape)
    for stretch, (_, (row, begin), columns) in zip(stretches, moves, strict=True):
        target[row, :, begin : begin + columns] = stretch
    return target
