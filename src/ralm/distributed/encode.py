"""Encodes the passages of an index on the machines of a cluster.

They leave their vectors where `ralm.retrieval.dense.build` looks for them.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ralm.distributed.cluster import Requirements
from ralm.distributed.workers import check_cluster_device, open_workers
from ralm.errors import ClusterError, UsageError
from ralm.protocols import Encoder
from ralm.retrieval.dense.build import CHUNK, SavedChunks, text_hashes
from ralm.retrieval.dense.options import EncoderOptions, load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.layout import options_of_config
from ralm.storage.work import storage_errors
from ralm.terminal import progress_bar

_PACKAGES: Final = ("torch", "transformers", "sentence-transformers")
"""Packages whose versions decide the vectors of an encoder."""


@dataclass(frozen=True, eq=False)
class _Loaded:
    """An index, and the encoder of its passages."""

    index: Index
    chunks: SavedChunks
    encoder: Encoder


@dataclass(frozen=True)
class _EncoderLoader:
    """A loader of an encoder and an index on a machine; vectors go to the folder `work`."""

    index: Path
    options: EncoderOptions
    device: str
    work: Path
    requirements: Requirements

    @property
    def label(self) -> str:
        """The encoder's name in messages."""
        return f"the encoder {self.options.encoder}"

    def __call__(self) -> _Loaded:
        """Load both; raises ClusterError if the machine lacks a requirement, and the errors of loading."""
        self.requirements.check()
        encoder = load_encoder(self.options, device=self.device)
        return _Loaded(open_index(self.index), SavedChunks(self.work, encoder), encoder)

    def facts(self, loaded: _Loaded) -> dict[str, Any]:
        """Return the fingerprints of both."""
        return {"index": loaded.index.fingerprint, **loaded.encoder.config}


@dataclass(frozen=True)
class EncodeOn:
    """A cluster that encodes the passages of an index (a `RemoteEncoding`), on disks that all machines share."""

    address: str
    device: str

    def __post_init__(self) -> None:
        check_cluster_device(self.device)
        if self.device == "map":
            raise UsageError("an encoder is not spread over several GPUs: give another `device` than 'map'.")

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> int:
        """Write the vectors of the index's passages into the folder `work`; return how many were encoded."""
        options = options_of_config(encoder.config)
        folders = [Path(name) for name in (options.encoder, options.query_encoder) if name and Path(name).is_dir()]
        work, path = work.absolute(), index.path.absolute()
        begins = [*range(0, len(index.passages), CHUNK), len(index.passages)]
        with storage_errors(work):
            work.mkdir(exist_ok=True)
        with (
            open_workers(self.address, self.device) as workers,
            progress_bar("Encoding passages", len(index.passages)) as advance,
        ):
            device = "auto" if self.device == "all" else self.device
            requirements = Requirements.of([path, work, *folders], _PACKAGES)
            loader = _EncoderLoader(path, options, device, work, requirements)
            facts = {"index": index.fingerprint, **encoder.config}
            if workers.facts(loader) != facts:
                raise ClusterError(
                    f"the machines of the cluster have another index or encoder than {loader.label} here."
                )
            encoded = 0
            for span, count in workers.run(loader, _encode, pairwise(begins), describe=_describe_span):
                advance(span[1] - span[0])
                encoded += count
        return encoded


def _encode(loaded: _Loaded, span: tuple[int, int]) -> int:
    """Save the vectors of consecutive passages, unless they exist; return how many were encoded."""
    passages = [loaded.index.passages[number] for number in range(*span)]
    hash_P, before = text_hashes(loaded.encoder, passages), loaded.chunks.encoded
    with storage_errors(loaded.index.path):
        loaded.chunks.encode(passages, hash_P)
    return loaded.chunks.encoded - before


def _describe_span(span: tuple[int, int]) -> str:
    return f"encoding the passages from {span[0]:,} to {span[1]:,}"
