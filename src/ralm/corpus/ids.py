"""Finds ids that several documents of a corpus share, in bounded memory: eight bytes for each document.

Consecutive documents with one id are one document in parts, such as the pages of a PDF file.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ralm.records import Document

_IDS_AT_ONCE: Final = 1 << 16
_MOST_IDS: Final = 1 << 23
_EXAMPLES: Final = 3
_BITS: Final = (1 << 64) - 1


class SharedIds:
    """Counts the documents whose id an earlier document has, among the first 8,388,608 documents."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        self._seen: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        """The hashes of all ids so far, sorted; two ids of 8 million share one by chance once in a million corpora."""

    def watched(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The same documents; the counts are complete once they are exhausted."""
        last = None
        ids: list[str] = []
        for document in documents:
            yield document
            if document.id != last:
                last = document.id
                ids.append(last)
            if len(ids) == _IDS_AT_ONCE:
                self._add(ids)
                ids.clear()
        self._add(ids)

    def watch(self, ids: Iterable[str]) -> None:
        """Count these ids, of consecutive documents or passages."""
        different = (identifier for identifier, _ in groupby(ids))
        while some := list(islice(different, _IDS_AT_ONCE)):
            if len(self._seen) >= _MOST_IDS:
                return
            self._add(some)

    def _add(self, ids: list[str]) -> None:
        if len(self._seen) >= _MOST_IDS or not ids:
            return
        hashes = np.fromiter((hash(identifier) & _BITS for identifier in ids), np.uint64, len(ids))
        order = np.argsort(hashes, kind="stable")
        repeated = np.zeros(len(ids), dtype=np.bool_)
        repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
        if len(self._seen):
            places = np.minimum(np.searchsorted(self._seen, hashes), len(self._seen) - 1)
            repeated |= self._seen[places] == hashes
        self.count += int(repeated.sum())
        examples = dict.fromkeys([*self.examples, *(ids[place] for place in np.flatnonzero(repeated).tolist())])
        self.examples = list(examples)[:_EXAMPLES]
        self._seen = np.sort(np.concatenate([self._seen, hashes]), kind="stable")
