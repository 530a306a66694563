"""Which passages of an index pass a filter.

Metadata is looked up in the columns, titles and document ids in the store of the passages.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ralm.corpus.documents import some_names
from ralm.corpus.store import PassageStore, arrow_texts, true_places
from ralm.errors import UsageError
from ralm.records import BoolArray
from ralm.retrieval.columns import (
    ColumnFile,
    Columns,
    Kind,
    arrow_numbers,
    kind_of_value,
    stored_value,
)
from ralm.retrieval.filters import Filter, Value

ORIGINS: Final = ("id", "title")
"""The keys that are not metadata."""
_PLURAL: Final[dict[Kind, str]] = {"text": "text", "number": "numbers", "truth": "true or false"}
_COMPARED: Final[dict[str, Any]] = {
    "==": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MATCHED: Final[dict[str, Any]] = {
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "contains": pc.match_substring,
}
_BYTES_KEPT: Final = 64 << 20
"""Size of the masks of the latest filters."""


class IndexColumns:
    """The metadata, titles and document ids of the passages of an index; safe to use from several threads.

    `name` is the name of the index in messages; `file` has its columns, None without metadata.
    """

    def __init__(self, name: str, passages: PassageStore, file: ColumnFile | None) -> None:
        self._name = name
        self._passages = passages
        self._file = file
        self._lock = Lock()
        self._kept: OrderedDict[str, BoolArray] = OrderedDict()

    @cached_property
    def _columns(self) -> Columns:
        if self._file is None:
            return Columns(np.array([len(self._passages)], np.int32), {})
        return self._file.read(len(self._passages))

    @cached_property
    def kinds(self) -> dict[str, list[Kind]]:
        """The keys of the metadata of all passages, with the kinds of their values."""
        found: dict[str, list[Kind]] = {}
        for key, kind in sorted({(name.key, name.kind) for name in self._columns.columns}):
            found.setdefault(key, []).append(kind)
        return found

    def mask(self, wanted: Filter) -> BoolArray:
        """Return the mask of the passages that pass a filter; those of the latest filters are kept.

        Raises UsageError if a key is in no passage, or a value is of another kind than all values of its key.
        """
        with self._lock:
            if wanted.text in self._kept:
                self._kept.move_to_end(wanted.text)
                return self._kept[wanted.text]
        mask_N = wanted.test(self)
        with self._lock:
            self._kept[wanted.text] = mask_N
            if len(self._kept) > _BYTES_KEPT // max(1, len(mask_N)):
                self._kept.popitem(last=False)
        return mask_N

    def matching(self, key: str, operator: str, values: Sequence[Value]) -> BoolArray:
        """Return the passages with a value of the key that fulfils a comparison with these values.

        Raises UsageError if no passage has the key, or a value is of another kind than all values of the key.
        """
        kinds: list[Kind] = ["text"] if key in ORIGINS else self.kinds.get(key, [])
        self._check(key, kinds, values)
        by_kind = {kind: [stored_value(value) for value in values if kind_of_value(value) == kind] for kind in kinds}
        if key in ORIGINS:
            return _origins_with(self._passages.origin_texts(key == "title"), operator, by_kind["text"])
        found = [self._rows_with(key, kind, operator, same) for kind, same in by_kind.items()]
        return np.asarray(np.logical_or.reduce(found))

    def _check(self, key: str, kinds: Sequence[Kind], values: Sequence[Value]) -> None:
        if not kinds:
            known = some_names([*self.kinds, *(one for one in ORIGINS if one not in self.kinds)])
            raise UsageError(f"no passage of {self._name} has the key {key!r}; the keys are {known}.")
        for value in values:
            if kind_of_value(value) not in kinds:
                held = " and ".join(_PLURAL[kind] for kind in kinds)
                quoted = "; put it in quotes to compare it as text" if "text" in kinds else ""
                raise UsageError(
                    f"the key {key!r} of {self._name} holds {held}, which cannot be compared with {value!r}{quoted}."
                )

    def _rows_with(self, key: str, kind: Kind, operator: str, values: Sequence[Any]) -> BoolArray:
        """Return the passages with a value of one kind that fulfils a comparison."""
        rows = np.zeros(len(self._passages), np.bool_)
        for name, column in self._columns.columns.items():
            if (name.key, name.kind) == (key, kind):
                compared = "==" if operator == "contains" and name.listed else operator
                rows |= self._columns.rows(column.runs[_places(column.values, compared, values)])
        return rows


def _origins_with(texts: pa.ChunkedArray, operator: str, values: Sequence[Any]) -> BoolArray:
    """Return which of the ids or titles, unless empty, fulfil a comparison."""
    found, empty = np.zeros(len(texts), np.bool_), _places(texts, "==", [b""])
    found[_places(texts, operator, values)] = True
    found[empty] = False
    return found


def _places(array: Any, operator: str, values: Sequence[Any]) -> Any:
    """Return the places of an array whose values fulfil a comparison with these values, which are of its kind."""
    if operator == "exists":
        return slice(None)
    if operator == "in":
        return true_places(pc.is_in(array, value_set=_as_array(values, array.type))) if values else []
    if not values:
        return []
    [value] = values
    if operator in _MATCHED:
        return true_places(_MATCHED[operator](array, value)) if isinstance(value, bytes) else []
    return true_places(_COMPARED[operator](array, _as_array([value], array.type)[0]))


def _as_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of Arrow; `pa.array` would import pandas, which takes a second."""
    return arrow_texts(values, kind) if isinstance(values[0], bytes) else arrow_numbers(np.array(values, np.float64))
