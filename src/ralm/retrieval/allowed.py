"""Which passages of an index may be found: one boolean mask by passage number, for every retriever, and no repetitions.

A passage is left out because of its title (`--forbidden-titles`), its metadata or id (`--where`; `filters` beside
this file) or a mask of the caller. `ralm.retrieval.retriever.allowed_mask` makes one mask of all.
`ralm.corpus.decontamination` leaves out what an index shall not have. A retriever finds the best of a mask by its own
`only(mask_N)`.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.corpus import decontamination
from ralm.corpus.store import PassageStore
from ralm.corpus.words import bare_words
from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import BoolArray, Hits, Passages
from ralm.validation import check_search, config_of, retrieve_checked, stable_hits

By = Literal["document", "text"]
_SHINGLE: Final = 5
_SAME: Final = 0.8
_MORE: Final = 4
"""How many times k hits are fetched at first, and again if too few of them are distinct."""


def narrowed(retriever: Retriever, mask_N: BoolArray) -> Retriever:
    """Return the retriever of the best of the passages of a mask; UsageError if it cannot leave any out."""
    if mask_N.all():
        return retriever
    only: Callable[[BoolArray], Retriever] | None = getattr(retriever, "only", None)
    if only is None:
        raise UsageError(
            f"the retriever {type(retriever).__name__} cannot leave passages out: give the class `only(mask_N)`, which "
            "returns a retriever of the passages of a mask."
        )
    return only(mask_N)


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


def title_mask(passages: PassageStore, titles: Iterable[str]) -> BoolArray:
    """Return the mask of the passages of documents with none of these titles, after `normal_title`."""
    normal = {decontamination.normal_title(title) for title in titles} - {""}
    numbers = (number for number, _, title in passages.origins() if decontamination.normal_title(title) in normal)
    return mask_without(len(passages), numbers)


class Distinct:
    """The best hits of a retriever without repetitions.

    By "document", each document is found once, by its best passage. By "text", a passage is left out if the Jaccard
    similarity of its runs of 5 words to those of a better hit is at least 0.8; case and punctuation do not count.
    """

    def __init__(self, retriever: Retriever, passages: Passages, by: By) -> None:
        self._retriever = retriever
        self._passages = passages
        self._by = by

    def only(self, mask_N: BoolArray) -> "Distinct":
        """Return the same of the passages of a mask."""
        return Distinct(narrowed(self._retriever, mask_N), self._passages, self._by)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the configuration of the retriever, and what counts as a repetition."""
        measure: dict[str, JsonValue] = {"words": _SHINGLE, "similarity": _SAME} if self._by == "text" else {}
        return {"distinct": self._by, **measure, "of": config_of(self._retriever, "retriever")}

    @property
    def stable(self) -> int:
        """Return the number of passages if the retriever's hits do not depend on k, else 0."""
        return len(self._passages) if stable_hits(self._retriever) >= len(self._passages) else 0

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best distinct passages for each query, fewer only if there are no more."""
        check_search(queries, k)
        every = len(self._passages)
        rows: list[list[tuple[int, float]]] = [[] for _ in queries]
        lacking, depth = [*range(len(queries))], min(_MORE * k, every)
        while lacking:
            hits = retrieve_checked(self._retriever, [queries[row] for row in lacking], depth, every)
            pairs_of = {row: hits.of(place) for place, row in enumerate(lacking)}
            for row in pairs_of:
                rows[row] = self._distinct(pairs_of[row], k)
            lacking = [row for row in lacking if len(rows[row]) < k and len(pairs_of[row]) == depth < every]
            depth = min(_MORE * depth, every)
        return Hits.from_pairs(rows)

    def _distinct(self, hits: Sequence[tuple[int, float]], k: int) -> list[tuple[int, float]]:
        """Return the first k of the hits that repeat no earlier one."""
        kept: list[tuple[int, float]] = []
        seen: list[frozenset[str]] = []
        for number, score in hits:
            if len(kept) == k:
                break
            passage = self._passages[number]
            shingles = frozenset([passage.document_id]) if self._by == "document" else _shingles(passage.text)
            if not any(_similarity(shingles, other) >= _SAME for other in seen):
                seen.append(shingles)
                kept.append((number, score))
        return kept


def _shingles(text: str) -> frozenset[str]:
    """Return the runs of words of a text; a shorter text is one run."""
    words = bare_words(text)
    return frozenset(decontamination.runs_of(words, min(_SHINGLE, len(words))))


def _similarity(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)
