"""Which passages of an index may be found: one boolean mask by passage number, for every retriever.

Titles, patterns of ids, filters of metadata and decontamination at query time give masks, which combine with `&`. A
retriever finds the best of the passages of a mask by its own `only(mask_N)`; from one without it, hits are fetched
deeper and the others dropped (`Narrowed`).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import BoolArray, Hits
from ralm.validation import MAX_COUNT, check_search, config_of, retrieve_checked

_MORE: Final = 4
"""How many times the wanted hits are fetched at first, and again if too few of them may be found."""
_DEEPEST: Final = 1 << 16


def narrowed(retriever: Retriever, mask_N: BoolArray) -> Retriever:
    """Return the retriever of the best of the passages of a mask."""
    if mask_N.all():
        return retriever
    only: Any = getattr(retriever, "only", None)
    found: Retriever = Narrowed(retriever, mask_N) if only is None else only(mask_N)
    return found


def mask_without(passages: int, numbers: Iterable[int]) -> BoolArray:
    """Return the mask of all passages but those with these numbers."""
    mask_N = np.ones(passages, np.bool_)
    mask_N[np.fromiter(numbers, np.int64)] = False
    return mask_N


def mask_config(mask_N: BoolArray | None) -> dict[str, JsonValue]:
    """Return what identifies a mask in the `config` of a retriever; nothing without one."""
    if mask_N is None:
        return {}
    digest = hashlib.sha256(np.packbits(mask_N).tobytes()).hexdigest()
    return {"only": {"passages": int(np.count_nonzero(mask_N)), "sha256": digest}}


def fetch_deeper(
    retriever: Retriever,
    queries: Sequence[str],
    passages: int,
    wanted: int,
    keep: Callable[[Sequence[tuple[int, float]]], list[tuple[int, float]]],
    deepest: int = MAX_COUNT,
) -> tuple[list[list[tuple[int, float]]], list[int]]:
    """Return what `keep` leaves of the hits of each query, fetched so deep that as many as `wanted` are left; and the
    queries of which more hits than the `deepest` would be needed."""
    rows: list[list[tuple[int, float]]] = [[] for _ in queries]
    left, depth = [*range(len(queries))], min(_MORE * max(wanted, 1), passages, deepest)
    while left:
        hits = retrieve_checked(retriever, [queries[row] for row in left], depth, passages)
        lacking = []
        for place, row in enumerate(left):
            found = hits.of(place)
            rows[row] = keep(found)
            if len(rows[row]) < wanted and len(found) == depth < passages:
                lacking.append(row)
        if depth == deepest:
            return rows, lacking
        left, depth = lacking, min(_MORE * depth, passages, deepest)
    return rows, []


class Narrowed:
    """The best hits of a retriever without `only` among the passages of a mask.

    Raises UsageError if they are not among the first 65,536 hits of a query.
    """

    def __init__(self, retriever: Retriever, mask_N: BoolArray) -> None:
        self._retriever = retriever
        self._mask_N = mask_N

    def only(self, mask_N: BoolArray) -> "Narrowed":
        """Return the same for the passages of another mask, too."""
        return Narrowed(self._retriever, self._mask_N & mask_N)

    @property
    def config(self) -> dict[str, JsonValue]:
        """That of the retriever, and the mask."""
        return {**config_of(self._retriever, "retriever"), **mask_config(self._mask_N)}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query that may be found; fewer only if there are no more."""
        check_search(queries, k)
        wanted = min(k, int(np.count_nonzero(self._mask_N)))

        def allowed(hits: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
            return [hit for hit in hits if self._mask_N[hit[0]]][:k]

        rows, lacking = fetch_deeper(self._retriever, queries, len(self._mask_N), wanted, allowed, _DEEPEST)
        if lacking:
            raise UsageError(
                f"fewer than {k} of the first {_DEEPEST:,} hits of {type(self._retriever).__name__} may be found: give "
                "the class `only(mask_N)`, which finds the best of the passages of a mask."
            )
        return Hits.from_pairs(rows)
