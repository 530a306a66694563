"""Random passages: the control that shows how much of a gain comes from retrieval and not from any text before it.

The passages of a query depend on a hash of the seed, the query, and the number of its earlier occurrences in the call.
They do not depend on other queries.

Letters of shapes: Q queries, K hits per query, M draws, some of which are repeats.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.records import BoolArray, Hits, IntArray
from ralm.validation import MAX_SEED, check_count, check_search

_DRAWS_AT_A_TIME: Final = 1 << 22
_SPARE: Final = 8


class RandomRetriever:
    """Passages drawn uniformly, without repetition within a query; a smaller `k` gives the first of them.

    The n-th occurrence of a query in a call gets the query's n-th draw, whatever the other queries are. Every call
    starts over, so equal calls give equal hits.

    Args:
        passages: How many passages there are, or the numbers (int64) of those to draw from.
        seed: Seed of the draws.
    """

    def __init__(self, passages: int | IntArray, seed: int = 0) -> None:
        check_count("seed", seed, minimum=0, maximum=MAX_SEED)
        self._numbers = None if isinstance(passages, int) else np.asarray(passages, dtype=np.int64)
        self._count = passages if isinstance(passages, int) else len(passages)
        self._seed = seed
        self.stable = self._count

    def only(self, mask_N: BoolArray) -> "RandomRetriever":
        """Return the same control with only the passages of a mask."""
        numbers = np.flatnonzero(mask_N)
        return RandomRetriever(numbers if self._numbers is None else np.intersect1d(numbers, self._numbers), self._seed)

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the seed, and the passages to draw from."""
        of = None if self._numbers is None else hashlib.sha256(self._numbers.astype("<i8").tobytes()).hexdigest()
        return {"retriever": "random", "seed": self._seed, "passages": self._count, "of": of}

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return `k` random passages for each query, or all if there are fewer, with score 0."""
        check_search(queries, k)
        keys_Q = self._keys(queries)
        hits = Hits.none(len(queries), min(k, self._count))
        step = max(1, _DRAWS_AT_A_TIME // (k + _SPARE))
        for first in range(0, len(queries) if self._count else 0, step):
            part = slice(first, first + step)
            places_QK = _places(keys_Q[part], self._count, hits.numbers_QK.shape[1])
            hits.numbers_QK[part] = places_QK if self._numbers is None else self._numbers[places_QK]
        return hits

    def _keys(self, queries: Sequence[str]) -> NDArray[np.uint64]:
        """Return the key of each query, which decides its draws."""
        before: Counter[str] = Counter()
        digests = bytearray()
        for query in queries:
            text = f"{self._seed} {before[query]} {query}".encode("utf-8", "surrogatepass")
            digests += hashlib.blake2b(text, digest_size=8).digest()
            before[query] += 1
        return np.frombuffer(digests, "<u8")


def _places(keys_Q: NDArray[np.uint64], count: int, k: int) -> IntArray:
    """Return `k` different places below `count` for each key: drawn with repetition, then repeats are dropped."""
    draws = k + _SPARE
    while True:
        drawn_QM = (_mixed(keys_Q[:, None], np.arange(draws, dtype=np.uint64)) % np.uint64(count)).astype(np.int64)
        order_QM = np.argsort(drawn_QM, axis=1, kind="stable")
        sorted_QM = np.take_along_axis(drawn_QM, order_QM, axis=1)
        repeats_QM = np.zeros(drawn_QM.shape, np.bool_)
        np.put_along_axis(repeats_QM, order_QM[:, 1:], sorted_QM[:, 1:] == sorted_QM[:, :-1], axis=1)
        if (draws - np.count_nonzero(repeats_QM, axis=1) >= k).all():
            return np.take_along_axis(drawn_QM, np.argsort(repeats_QM, axis=1, kind="stable")[:, :k], axis=1)
        draws *= 2


def _mixed(keys: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers of SplitMix64 (Steele, Lea and Flood, 2014) at some places of the stream of each key."""
    mixed = keys + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
