"""Searches an index whose shards are on several machines of a cluster, and encodes passages there.

Each shard has an actor, which opens the whole index but reads only the postings of its own segments, and of the others
only the vocabulary: so scores are those of the whole index. Hits are merged before scores are rounded to float32, so
the order is that of the whole index too, ties included. If a machine is lost, its actors begin again on others.

Machines that encode leave their vectors where `ralm.retrieval.dense.build` looks for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray
from numpy.typing import NDArray
from pydantic import JsonValue
from ray.exceptions import RayError, RayTaskError

from ralm.distributed.cluster import Requirements, connected, processors, raise_cause
from ralm.distributed.workers import check_cluster_device, open_workers
from ralm.errors import ClusterError, DamagedFolderError, UsageError
from ralm.protocols import Encoder
from ralm.records import NO_PASSAGE, Hits, Passages
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.dense.build import CHUNK, ChunkEncoder, check_passage_text
from ralm.retrieval.dense.options import NOTHING_ENCODED, EncoderOptions, EncodingStats, load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.layout import options_of_config
from ralm.storage.atomic import storage_errors
from ralm.terminal import progress_bar


class ShardedBM25:
    """BM25 over the shards of an index, a retriever like `Index.bm25`, with the same hits and the same `config`."""

    def __init__(self, index: Index, actors: Sequence[Any]) -> None:
        self.passages: Passages = index.passages
        self._bm25 = index.bm25
        self._actors = actors

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the hits: that of the same index on one machine."""
        return self._bm25.config

    @property
    def stable(self) -> int:
        """The number of passages: however many hits are asked for, the first of them are the same."""
        return self._bm25.stable

    def retrieve(self, queries: Sequence[str], k: int, forbidden: Forbidden | None = None) -> Hits:
        """The k best passages for each query, as `BM25.retrieve` finds them.

        Raises UsageError if k is below 1, ClusterError if the cluster has failed, and what opening the index raises.
        """
        asked = [actor.retrieve.remote(list(queries), k, forbidden) for actor in self._actors]
        try:
            answers = ray.get(asked)
        except RayTaskError as error:
            raise_cause(error)
        except RayError as error:
            raise ClusterError(f"a shard of the index cannot be searched: {error}") from error
        return merge_hits(answers)


@contextmanager
def open_shards(
    address: str, index: Path | str, options: BM25Options | None = None, *, shards: int | None = None
) -> Iterator[ShardedBM25]:
    """Search an index on the cluster at an address, with an actor for each of its segments, or for `shards` runs of
    consecutive segments, but at most one for each processor. The actors end with the block.

    The index must be on a disk that all machines share. Raises ClusterError, and what `open_index` raises.
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

    def __init__(self, path: Path, options: BM25Options | None, fingerprint: str, begin: int, end: int) -> None:
        index = open_index(path, options)
        if index.fingerprint != fingerprint:
            raise DamagedFolderError(f"{path} is not the index that was opened before: it was changed; open it again.")
        self._bm25 = index.bm25_of(slice(begin, end))

    def retrieve(
        self, queries: Sequence[str], k: int, forbidden: Forbidden | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best passages of the segments, and their exact scores."""
        return self._bm25.retrieve_exactly(queries, k, forbidden)


def merge_hits(several: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]]) -> Hits:
    """The best of the hits of several parts of an index: numbers (int64) and exact scores (float64), each Q x K."""
    k = several[0][0].shape[1]
    numbers, scores = (np.concatenate(parts, axis=1) for parts in zip(*several, strict=True))
    worse = np.where(numbers == NO_PASSAGE, np.inf, -scores)
    order_QK = np.lexsort((numbers, worse), axis=1)[:, :k]
    best = np.take_along_axis(numbers, order_QK, axis=1), np.take_along_axis(scores, order_QK, axis=1)
    return Hits(best[0], best[1].astype(np.float32))


_PACKAGES: Final = ("torch", "transformers", "sentence-transformers")


@dataclass(frozen=True, eq=False)
class _Loaded:
    """An index, and what encodes its passages."""

    index: Index
    chunks: ChunkEncoder
    encoder: Encoder


@dataclass(frozen=True)
class _EncoderLoader:
    """Loads an encoder and an index on any machine that has what is `here`; `work` is where vectors go."""

    index: Path
    options: EncoderOptions
    device: str
    work: Path
    here: Requirements

    @property
    def label(self) -> str:
        """What it loads, in messages."""
        return f"the encoder {self.options.encoder}"

    def __call__(self) -> _Loaded:
        """Load them; raises ClusterError if this machine lacks something, and what loading them raises."""
        self.here.check()
        encoder = load_encoder(self.options, device=self.device)
        return _Loaded(open_index(self.index), ChunkEncoder(self.work, encoder), encoder)

    def facts(self, loaded: _Loaded) -> dict[str, Any]:
        """The fingerprints of both."""
        return {"index": loaded.index.fingerprint, **loaded.chunks.config}


@dataclass(frozen=True)
class EncodeOn:
    """Encodes the passages of an index on the cluster at an address; see `RemoteEncoding`. `device`: as
    for `machines`.

    The index, its encoder if that is a folder, and the folder for the vectors must be on a disk that all machines
    share. Raises ClusterError if one cannot read or write them, or has another encoder.
    """

    address: str
    device: str

    def __post_init__(self) -> None:
        check_cluster_device(self.device)
        if self.device == "map":
            raise UsageError("an encoder is not spread over several GPUs: give another `device` than 'map'.")

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> EncodingStats:
        """Leave the vectors of its passages in the folder `work`."""
        options = options_of_config(encoder.config)
        folders = [Path(name) for name in (options.encoder, options.query_encoder) if name and Path(name).is_dir()]
        work = work.absolute()
        begins = [*range(0, len(index.passages), CHUNK), len(index.passages)]
        with storage_errors(work):
            work.mkdir(exist_ok=True)
        with (
            open_workers(self.address, self.device) as found,
            Requirements.writing(work, [index.path.absolute(), *folders], _PACKAGES) as here,
            progress_bar("Encoding passages", len(index.passages)) as advance,
        ):
            device = "auto" if self.device == "all" else self.device
            loader = _EncoderLoader(index.path.absolute(), options, device, work, here)
            own = {"index": index.fingerprint, **encoder.config}
            if found.facts(loader) != own:
                raise ClusterError(
                    f"the machines of the cluster have another index or encoder than {loader.label} here."
                )
            done = NOTHING_ENCODED
            for span, one in found.run(loader, _encode, pairwise(begins), describe=_describe_span):
                advance(span[1] - span[0])
                done = done.plus(one)
        return done


def _encode(loaded: _Loaded, span: tuple[int, int]) -> EncodingStats:
    """Save the vectors of consecutive passages, unless they are there."""
    passages = [loaded.index.passages[number] for number in range(*span)]
    for one in passages:
        check_passage_text(loaded.encoder, one)
    before = loaded.chunks.done
    with storage_errors(loaded.index.path):
        loaded.chunks.encode(passages)
    after = loaded.chunks.done
    return EncodingStats(after.passages - before.passages, after.seconds - before.seconds)


def _describe_span(span: tuple[int, int]) -> str:
    return f"encoding the passages from {span[0]:,} to {span[1]:,}"
