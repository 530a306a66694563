"""Holds the keys and values of many texts, a row for each.

All rows end in the same column; shorter ones begin later. So the next token of every row goes into one new column, for
which room was reserved. The distance of two tokens is the distance of their columns, as local attention needs it.

Shapes: R rows, H heads, C columns, S size of a head; I stretches of columns, N all their columns.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ralm.records import IntArray

_ROOM: Final = 64
"""Columns that new tensors reserve for tokens to come."""
_ALIGNMENT: Final = 64
"""Bytes of a cache line of a processor."""
Tensors: TypeAlias = Sequence[torch.Tensor | None]
"""The keys (R, H, C, S) and the values of each layer in turn; None for a layer that the model does not use."""


class CopiedColumns(NamedTuple):
    """Some `columns` of row `source` from column `begin` on, to be copied to row `row` from column `place` on."""

    source: int
    begin: int
    row: int
    place: int
    columns: int


class KeptPrefix(NamedTuple):
    """The first `columns` columns of row `source`, which a row continues; nothing if `columns` is 0."""

    source: int = 0
    columns: int = 0


class KeyValueRows:
    """Rows of keys and values, and a `cache` through which a transformers model reads and extends some of them."""

    def __init__(self) -> None:
        self.lengths_R: IntArray = np.zeros(0, dtype=np.int64)
        # Private: transformers' cache classes, their keys and values; the lists of every_family.py.
        self.cache = Cache(layer_class_to_replicate=partial(_Layer, self))
        self.rows = slice(0, 0)
        self.begin = self.end = 0
        self.shape = (0, 0)
        """Rows and columns that the tensors have room for."""
        self.last = 0
        """The column in which all rows end, which takes their next token."""

    @property
    def tensors(self) -> Tensors:
        """The tensors of all layers that the model has used so far."""
        return [*chain.from_iterable((layer.keys, layer.values) for layer in self.cache.layers)]

    def begins(self, row: int) -> int:
        """Return the column in which a row begins."""
        return self.last - int(self.lengths_R[row])

    def make(self, like: Tensors) -> None:
        """Make the tensors of layers that have none, with the heads and sizes of these."""
        while len(self.cache.layers) < len(like) // 2:
            self.cache.layers.append(_Layer(self))
        for layer, keys, values in zip(self.cache.layers, like[::2], like[1::2], strict=True):
            if layer.keys is None and keys is not None:
                layer.make(keys, values)

    def arrange(self, kept: Sequence[KeptPrefix], lengths_R: IntArray, room: int = 1) -> None:
        """Make rows of these lengths (int64) that begin with what each keeps, with room for `room` more columns."""
        before_R, last, longest = self.lengths_R, self.last, int(lengths_R.max())
        stay = longest <= last <= self.shape[1] - room
        shape = self._new_shape(len(kept), longest, room, stay)
        self.lengths_R, self.shape = lengths_R, shape or self.shape
        if shape or not stay:
            self.last = longest
        stretches = [
            CopiedColumns(source, last - int(before_R[source]), row, self.begins(row), columns)
            for row, (source, columns) in enumerate(kept)
            if columns
        ]
        before = self.tensors
        if shape:
            for layer in self.cache.layers:
                layer.remake()
        else:
            stretches = [stretch for stretch in stretches if stretch[:2] != stretch[2:4]]  # the others stay in place
        copy_columns(before, self.tensors, stretches)

    def _new_shape(self, count: int, longest: int, room: int, stay: bool) -> tuple[int, int] | None:
        """Return the shape of new tensors for `count` rows; None if the present ones have room and are not large."""
        rows, columns = self.shape
        enough = stay or longest + max(room, _ROOM // 2) <= columns
        if count <= rows <= 4 * count and enough and columns <= 2 * (longest + _ROOM):
            return None
        more = min(rows, count) if count > rows else 0
        return count + more, longest + max(room, _ROOM)

    def extend_from(self, rows: slice, begin: int, end: int) -> None:
        """Let the model's next pass continue columns `begin` to `end` of these rows, and write after them."""
        self.rows, self.begin, self.end = rows, begin, end

    def grew(self) -> None:
        """Count one more token in every row, written to the free column."""
        self.lengths_R = self.lengths_R + 1
        self.last += 1


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of one layer; its owner decides which of them the model sees."""

    keys: Any
    values: Any

    def __init__(self, owner: KeyValueRows) -> None:
        super().__init__()
        self._owner = owner

    def update(self, keys_RHCS: torch.Tensor, values_RHCS: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write new columns; return all columns of these rows."""
        if self.keys is None:
            self.make(keys_RHCS, values_RHCS)
        owner = self._owner
        end = owner.end + keys_RHCS.shape[2]
        self.keys[owner.rows, :, owner.end : end] = keys_RHCS
        self.values[owner.rows, :, owner.end : end] = values_RHCS
        return self.keys[owner.rows, :, owner.begin : end], self.values[owner.rows, :, owner.begin : end]

    def get_seq_length(self) -> int:
        return self._owner.end - self._owner.begin

    def make(self, keys_RHCS: torch.Tensor, values_RHCS: Any) -> None:
        """Make the tensors, with the heads and sizes of these."""
        self.keys = zeros_like(keys_RHCS, self._owner.shape)
        self.values = zeros_like(values_RHCS, self._owner.shape)
        self.is_initialized = True

    def remake(self) -> None:
        """Make new tensors of the owner's shape."""
        if self.keys is not None:
            self.make(self.keys, self.values)


def copy_columns(sources: Tensors, targets: Tensors, stretches: Sequence[CopiedColumns]) -> None:
    """Copy stretches of columns in every layer; all are read before the first is written."""
    if not stretches:
        return
    source_I, begin_I, row_I, place_I, columns_I = np.array(stretches, dtype=np.int64).T
    places: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
    for source, target in zip(sources, targets, strict=True):
        if source is None or target is None:
            continue
        key = source.shape[1:3], target.shape[2], source.device
        if key not in places:
            from_N = _flat_places(source_I, begin_I, columns_I, source)
            to_N = _flat_places(row_I, place_I, columns_I, target)
            places[key] = from_N, to_N
        from_N, to_N = places[key]
        columns_NS = source.view(-1, source.shape[-1]).index_select(0, from_N)
        target.view(-1, target.shape[-1]).index_copy_(0, to_N, columns_NS)


def _flat_places(row_I: IntArray, begin_I: IntArray, columns_I: IntArray, tensor_RHCS: torch.Tensor) -> torch.Tensor:
    """Return where the columns of some stretches are in a tensor whose rows, heads and columns are one dimension."""
    _, heads, columns, _ = tensor_RHCS.shape
    first_N = np.repeat(row_I * heads * columns + begin_I - (np.cumsum(columns_I) - columns_I), columns_I)
    places_HN = first_N + np.arange(len(first_N)) + columns * np.arange(heads)[:, None]
    return torch.from_numpy(places_HN.ravel()).to(tensor_RHCS.device)


def zeros_like(tensor_RHCS: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return zeros for rows and columns of this `shape`; on a CPU the system's, which take no time before use."""
    rows, columns = shape
    sizes = (rows, tensor_RHCS.shape[1], columns, tensor_RHCS.shape[3])
    if tensor_RHCS.device.type != "cpu":
        return tensor_RHCS.new_zeros(sizes)
    count = math.prod(sizes) * tensor_RHCS.itemsize
    bytes_ = np.zeros(count + _ALIGNMENT, dtype=np.uint8)
    begin = -bytes_.ctypes.data % _ALIGNMENT
    return torch.from_numpy(bytes_[begin : begin + count]).view(tensor_RHCS.dtype).view(sizes)
