"""Which passages of an index pass a filter.

Metadata is looked up in the columns of the segments, titles and document ids in the stores of the passages.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, reduce
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ralm.corpus.documents import some_names
from ralm.corpus.numbering import Numbering
from ralm.corpus.store import PassageStore, arrow_texts, true_places
from ralm.errors import UsageError
from ralm.retrieval.columns import ColumnFile, Kind, SegmentColumns, collect_columns, stored_value, value_kind
from ralm.retrieval.filters import (
    BoolArray,
    Condition,
    Filter,
    Junction,
    Not,
    Passing,
    conditions,
    written_value,
)

ORIGINS: Final = ("id", "title")
"""The keys that are not metadata."""
_PLURAL: Final[dict[Kind, str]] = {"text": "text", "number": "numbers", "truth": "true or false"}
_FILTERS_KEPT: Final = 64


class IndexColumns:
    """The metadata, titles and document ids of the passages of an index; safe to use from several threads.

    `name` is the name of the index in messages; `files` are the columns of its stores, None if they must be collected.
    """

    def __init__(
        self, name: str, stores: Sequence[PassageStore], files: Sequence[ColumnFile | None], numbering: Numbering
    ) -> None:
        self._name = name
        self._stores = stores
        self._files = files
        self._numbering = numbering
        self._lock = Lock()
        self._segments: list[SegmentColumns] | None = None
        self._kept: OrderedDict[str, Passing] = OrderedDict()

    @property
    def segments(self) -> list[SegmentColumns]:
        """The columns of each segment."""
        with self._lock:
            if self._segments is None:
                pairs = zip(self._stores, self._files, strict=True)
                self._segments = [
                    collect_columns(store) if file is None else file.read(len(store)) for store, file in pairs
                ]
            return self._segments

    @cached_property
    def kinds(self) -> dict[str, list[Kind]]:
        """The keys of the metadata of all passages, with the kinds of their values."""
        found: dict[str, list[Kind]] = {}
        for key, kind in sorted({name for one in self.segments for name in one.columns}):
            rows = self._rows_of(Condition(key, "exists"), kind)
            rows[self._numbering.removed] = False
            if rows.any():
                found.setdefault(key, []).append(kind)
        return found

    def passing(self, wanted: Filter) -> Passing:
        """The passages that pass a filter; the results of the latest filters are kept.

        Raises UsageError if a key is in no passage, or a value is of another kind than all values of its key.
        """
        name = str(wanted)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        for condition in conditions(wanted):
            self._check(condition)
        rows = self._rows(wanted)
        rows[self._numbering.removed] = False
        found = Passing(wanted, rows, self._numbering)
        with self._lock:
            self._kept[name] = found
            if len(self._kept) > _FILTERS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _check(self, condition: Condition) -> None:
        key = condition.key
        if key in ORIGINS:
            kinds: list[Kind] = ["text"]
        elif key in self.kinds:
            kinds = self.kinds[key]
        else:
            known = some_names([*self.kinds, *(one for one in ORIGINS if one not in self.kinds)])
            raise UsageError(f"no passage of {self._name} has the key {key!r}; the keys are {known}.")
        for value in condition.values:
            if value_kind(value) not in kinds:
                held = " and ".join(_PLURAL[kind] for kind in kinds)
                quoted = "; put it in quotes to compare it as text" if "text" in kinds else ""
                raise UsageError(
                    f"the key {key!r} of {self._name} holds {held}, which cannot be compared with "
                    f"{written_value(value)}{quoted}."
                )

    def _rows(self, wanted: Filter) -> BoolArray:
        match wanted:
            case Not(part):
                return ~self._rows(part)
            case Junction(operator, parts):
                join_rows: Any = np.logical_and if operator == "and" else np.logical_or
                return reduce(join_rows, map(self._rows, parts))
            case Condition(key) if key in ORIGINS:
                return np.concatenate([_texts_match(store, wanted) for store in self._stores])
            case Condition(key):
                return reduce(np.logical_or, [self._rows_of(wanted, kind) for kind in self.kinds[key]])

    def _rows_of(self, condition: Condition, kind: Kind) -> BoolArray:
        """The rows with a value of one kind that fulfils a condition."""
        values = [value for value in condition.values if value_kind(value) == kind]
        rows = []
        for segment in self.segments:
            column = segment.columns.get((condition.key, kind))
            fits = column is not None and (values or condition.operator == "exists")
            rows.append(segment.rows([*column.runs_of(condition, values)] if column is not None and fits else []))
        return np.concatenate(rows)


def _texts_match(store: PassageStore, condition: Condition) -> BoolArray:
    """Which passages of a store have an id or title, which is not empty, that fulfils a condition."""
    texts = store.origin_texts(condition.key == "title")
    has_text = np.zeros(len(store), np.bool_)
    has_text[true_places(pc.not_equal(texts, _scalar(b"")))] = True
    if condition.operator == "exists":
        return has_text
    found = np.zeros(len(store), np.bool_)
    names = {"in": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
    test = getattr(pc, names[condition.operator])
    for value in condition.values:
        found[true_places(test(texts, _scalar(stored_value(value))))] = True
    return found & has_text


def _scalar(text: bytes) -> pa.Scalar:
    """A text as a scalar of Arrow; `pa.scalar` would import pandas, which takes a second."""
    return arrow_texts([text], pa.binary())[0]
