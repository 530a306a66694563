"""Searches an index whose shards are on several machines of a cluster.

Each shard has an actor, which opens the whole index but reads only the postings of its own segments, and of the others
only the vocabulary: so scores are those of the whole index. Hits are merged before scores are rounded to float32, so
the order is that of the whole index too, ties included. If a machine is lost, its actors begin again on others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from pydantic import JsonValue
from ray.exceptions import RayError, RayTaskError

from ralm.distributed.cluster import connected, processors, raise_cause
from ralm.errors import ClusterError, DamagedFolderError
from ralm.records import NO_PASSAGE, Hits, Passages
from ralm.retrieval.bm25 import formula, scan
from ralm.retrieval.index import Index, open_index


class ShardedBM25:
    """BM25 over the shards of an index, a retriever like `Index.bm25`, with the same hits and the same `config`."""

    def __init__(self, index: Index, actors: Sequence[Any]) -> None:
        self.passages: Passages = index.passages
        self._bm25 = index.bm25
        self._actors = actors

    @property
    def config(self) -> dict[str, JsonValue]:
        """The `config` of the same index on one machine."""
        return self._bm25.config

    @property
    def stable(self) -> int:
        """The number of passages: however many hits are asked for, the first of them are the same."""
        return self._bm25.stable

    def retrieve(self, queries: Sequence[str], k: int, forbidden: scan.Forbidden | None = None) -> Hits:
        """The k best passages for each query, as `BM25.retrieve` finds them.

        Raises UsageError if k is below 1, ClusterError if the cluster has failed, and the errors of opening the index.
        """
        pending = [actor.retrieve.remote(list(queries), k, forbidden) for actor in self._actors]
        try:
            hits = ray.get(pending)
        except RayTaskError as error:
            raise_cause(error)
        except RayError as error:
            raise ClusterError(f"a shard of the index cannot be searched: {error}") from error
        return merge_hits(hits)


@contextmanager
def open_shards(
    address: str, index: Path | str, options: formula.BM25Options | None = None, *, shards: int | None = None
) -> Iterator[ShardedBM25]:
    """A retriever over an index on a disk that all machines of a cluster share.

    It has an actor for each segment, or for `shards` runs of consecutive segments, but at most one for each processor.
    The actors end with the block. Raises ClusterError, and the errors of `open_index`.
    """
    opened = open_index(Path(index).absolute(), options)
    with connected(address):
        count = len(opened.segments)
        parts = min(shards or count, count, processors())
        borders = np.linspace(0, count, parts + 1).round().astype(int).tolist()
        make: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(_Shard)
        actors = [make.remote(opened.path, options, opened.fingerprint, begin, end) for begin, end in pairwise(borders)]
        try:
            yield ShardedBM25(opened, actors)
        finally:
            for actor in actors:
                ray.kill(actor)


class _Shard:
    """Searches consecutive segments of an index."""

    def __init__(self, path: Path, options: formula.BM25Options | None, fingerprint: str, begin: int, end: int) -> None:
        index = open_index(path, options)
        if index.fingerprint != fingerprint:
            raise DamagedFolderError(f"{path} is not the index that was opened before: it was changed; open it again.")
        self._bm25 = index.bm25_of(slice(begin, end))

    def retrieve(
        self, queries: Sequence[str], k: int, forbidden: scan.Forbidden | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best passages of the segments, and their exact scores."""
        return self._bm25.retrieve_exactly(queries, k, forbidden)


def merge_hits(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]]) -> Hits:
    """The best of the hits of several parts of an index: numbers (int64) and exact scores (float64), each Q x K."""
    k = parts[0][0].shape[1]
    numbers, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    worse = np.where(numbers == NO_PASSAGE, np.inf, -scores)
    order_QK = np.lexsort((numbers, worse), axis=1)[:, :k]
    best = np.take_along_axis(numbers, order_QK, axis=1), np.take_along_axis(scores, order_QK, axis=1)
    return Hits(best[0], best[1].astype(np.float32))
