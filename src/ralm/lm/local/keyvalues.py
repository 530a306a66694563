"""Holds the cache of keys and values of many texts, a row per text.

All rows end in the same column; shorter ones begin later. So the next token of every row goes into one new column, for
which room was reserved. The distance of two tokens is the distance of their columns, as local attention needs it.

Shapes: B rows, H heads, C columns, S size of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ralm.records import IntArray

_ROOM: Final = 64
"""Columns that new tensors reserve for tokens to come."""
_ALIGNMENT: Final = 64
"""Bytes of a cache line of a processor."""
_Move: TypeAlias = tuple[tuple[int, int], tuple[int, int], int]
"""From one (row, column) to another, so many columns."""


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The first `columns` columns of row `source`, which a row continues; nothing if `columns` is 0."""

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
        """The column in which all rows end, which takes their next token."""

    def begins(self, row: int) -> int:
        """The column in which a row begins."""
        return self.last - int(self.lengths_B[row])

    def arrange(self, kept: Sequence[KeptPrefix], lengths_B: IntArray, room: int = 1) -> None:
        """Make rows of these lengths (int64), with room for `room` more columns. Each begins with what it keeps of a
        previous row; the rest must be written before it is read."""
        before_B, last, longest = self.lengths_B, self.last, int(lengths_B.max())
        stay = longest <= last <= self.shape[1] - room
        shape = self._new_shape(len(kept), longest, room, stay)
        self.lengths_B, self.shape = lengths_B, shape or self.shape
        if shape or not stay:
            self.last = longest
        moves = []
        for row, (source, columns) in enumerate((one.source, one.columns) for one in kept):
            begin = last - int(before_B[source]) if columns else 0
            if columns and (shape or (source, begin) != (row, self.begins(row))):
                moves.append(((source, begin), (row, self.begins(row)), columns))
        for layer in self.cache.layers:
            layer.move(moves, shape)

    def _new_shape(self, count: int, longest: int, room: int, stay: bool) -> tuple[int, int] | None:
        """The shape of new tensors for `count` rows; None if the present ones have room and are not far too large.
        Allocating takes long: there is room for twice as many rows, and rows go back to the first columns in time."""
        rows, columns = self.shape
        enough = stay or longest + max(room, _ROOM // 2) <= columns
        if count <= rows <= 4 * count and enough and columns <= 2 * (longest + _ROOM):
            return None
        more = min(rows, count) if count > rows else 0
        return count + more, longest + max(room, _ROOM)

    def put_block(self, row: int, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write each layer's keys and values (H, C, S) to the beginning of a row."""
        while len(self.cache.layers) < len(layers):
            self.cache.layers.append(_Layer(self))
        for layer, tensors in zip(self.cache.layers, layers, strict=True):
            layer.put(row, *tensors)

    def block(self, row: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A copy of each layer's keys and values (H, C, S) of the first `count` columns of a row."""
        columns = slice(self.begins(row), self.begins(row) + count)
        return [
            (layer.keys[row, :, columns].clone(), layer.values[row, :, columns].clone()) for layer in self.cache.layers
        ]

    def copy(self, kept: KeptPrefix, row: int) -> None:
        """Begin a row with what is kept of another."""
        move = ((kept.source, self.begins(kept.source)), (row, self.begins(row)), kept.columns)
        for layer in self.cache.layers:
            layer.move([move], None)

    def extend_from(self, rows: slice, begin: int, end: int) -> None:
        """The model's next pass continues columns `begin` to `end` of these rows, and is written after them."""
        self.rows, self.begin, self.end = rows, begin, end

    def grew(self) -> None:
        """Count one more token in every row, written to the free column."""
        self.lengths_B = self.lengths_B + 1
        self.last += 1


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of one layer; its owner decides which of them the model sees."""

    keys: Any
    values: Any

    def __init__(self, owner: KeyValueRows) -> None:
        super().__init__()
        self._owner = owner

    def update(self, keys_BHCS: torch.Tensor, values_BHCS: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write new columns; returns all columns of these rows."""
        if self.keys is None:
            self._make(keys_BHCS, values_BHCS)
        owner = self._owner
        end = owner.end + keys_BHCS.shape[2]
        self.keys[owner.rows, :, owner.end : end] = keys_BHCS
        self.values[owner.rows, :, owner.end : end] = values_BHCS
        return self.keys[owner.rows, :, owner.begin : end], self.values[owner.rows, :, owner.begin : end]

    def get_seq_length(self) -> int:
        return self._owner.end - self._owner.begin

    def move(self, moves: Sequence[_Move], shape: tuple[int, int] | None) -> None:
        if self.keys is None:
            return
        self.keys = _moved(self.keys, moves, shape)
        self.values = _moved(self.values, moves, shape)

    def put(self, row: int, keys_HCS: torch.Tensor, values_HCS: torch.Tensor) -> None:
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
    """Zeros, which a masked column needs; on a CPU those of the system, which take no time before they are used."""
    rows, columns = shape
    sizes = (rows, tensor_BHCS.shape[1], columns, tensor_BHCS.shape[3])
    if tensor_BHCS.device.type != "cpu":
        return tensor_BHCS.new_zeros(sizes)
    count = math.prod(sizes) * tensor_BHCS.itemsize
    bytes_ = np.zeros(count + _ALIGNMENT, dtype=np.uint8)
    begin = -bytes_.ctypes.data % _ALIGNMENT
    return torch.from_numpy(bytes_[begin : begin + count]).view(tensor_BHCS.dtype).view(sizes)


def _moved(tensor_BHCS: torch.Tensor, moves: Sequence[_Move], shape: tuple[int, int] | None) -> torch.Tensor:
    """The tensor after the moves, a new one if a shape is given; all ranges are read before the first is written."""
    stretches = [tensor_BHCS[row, :, begin : begin + columns] for (row, begin), _, columns in moves]
    if shape is None:
        stretches = [stretch.clone() for stretch in stretches]
        target = tensor_BHCS
    else:
        target = _zeros_like(tensor_BHCS, shape)
    for stretch, (_, (row, begin), columns) in zip(stretches, moves, strict=True):
        target[row, :, begin : begin + columns] = stretch
    return target
