"""The passages of an index: those of its stores, one after the other, without the removed ones."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, overload

from ralm.corpus.numbering import Numbering
from ralm.records import IntArray, Passage

if TYPE_CHECKING:
    from ralm.corpus.store import PassageStore


class StoredPassages(Sequence[Passage]):
    """The passages of stores that are left after the rows in `removed` (in any order) were removed; numbered from 0.

    Negative numbers are not supported: -1 means "no passage" elsewhere and raises IndexError here. Raises
    DamagedFolderError, on reading, if a store is damaged.
    """

    def __init__(self, stores: "Sequence[PassageStore]", removed: IntArray | Sequence[int] = ()) -> None:
        self._stores = stores
        self._begins = [0, *accumulate(len(store) for store in stores)]
        self.numbering = Numbering(self._begins[-1], removed)
        """The translation between these numbers and rows of all stores."""

    def __len__(self) -> int:
        return len(self.numbering)

    @overload
    def __getitem__(self, number: int) -> Passage: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Passage]: ...

    def __getitem__(self, number: int | slice) -> Passage | Sequence[Passage]:
        """The passage with this number; a slice returns a list."""
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(f"there is no passage {number}: the corpus has {len(self)}")
        row = self.numbering.row(number)
        store = bisect_right(self._begins, row) - 1
        return self._stores[store].numbered(row - self._begins[store], int(number))

    def origins(self) -> Iterator[tuple[int, str, str]]:
        """The number, document id and title of every passage, without reading the texts."""
        gone = set(self.numbering.removed.tolist())
        number = 0
        for begin, store in zip(self._begins, self._stores, strict=False):
            for row, document_id, title in store.origins():
                if begin + row not in gone:
                    yield number, document_id, title
                    number += 1

    def check(self) -> None:
        """Read every passage.

        Raises DamagedFolderError if one is damaged.
        """
        for store in self._stores:
            store.check()
