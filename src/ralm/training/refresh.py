"""Encodes the passages again during a training, and keeps the versions of the vectors on disk.

version-N/    the vectors of all passages as the encoders were after N steps; made atomically
encoders/     these encoders, while a version is made
encoding/     chunks of vectors meanwhile; a training that was killed reuses them
"""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ralm.retrieval.build import encode_passages
from ralm.retrieval.dense.options import VECTORS, load_encoder, trained_options
from ralm.retrieval.index import Index
from ralm.retrieval.vectors import RemoteEncoding
from ralm.storage.atomic import storage_errors, sync, sync_one

_KEPT: Final = 2


class Versions:
    """Versions of the vectors of an index in a folder, with the options of the set `vectors`; passages are encoded on
    `device`, unless `ahead` has encoded them on other machines."""

    def __init__(
        self, folder: Path, index: Index, vectors: str | None, device: str, ahead: RemoteEncoding | None = None
    ) -> None:
        self._folder = folder
        self._index = index
        self._like = index.encoder_options(vectors)
        self._stored = index.vector_sets.get(vectors, index.path).options
        self._device = device
        self._ahead = ahead

    def vectors(self, number: int) -> Path:
        """The file of the vectors of a version."""
        return self._path(number) / VECTORS

    def make(self, number: int, save: Callable[[Path], None]) -> None:
        """Encode all passages with the encoders that `save` writes into a folder, unless that was done; only the last
        two versions stay. Raises StorageError if the disk is full."""
        version, encoders, chunks = self._path(number), self._folder / "encoders", self._folder / "encoding"
        partial = version.with_name(f"{version.name}.partial")
        if version.is_dir():
            return
        with storage_errors(version):
            for unfinished in (partial, encoders):
                shutil.rmtree(unfinished, ignore_errors=True)
            encoders.mkdir()
            save(encoders)
            encoder = load_encoder(trained_options(encoders, self._like), device=self._device)
            before = self._ahead(self._index, encoder, chunks) if self._ahead else 0
            encode_passages(self._index.passages, partial, chunks, encoder, self._stored, before=before)
            sync(partial)
            partial.rename(version)
            sync_one(self._folder)
        for unneeded in (encoders, chunks, *map(self._path, self._numbers()[:-_KEPT])):
            shutil.rmtree(unneeded, ignore_errors=True)

    def forget_after(self, step: int) -> None:
        """Remove versions of weights that a training, which goes on after this step, does not have."""
        for number in self._numbers():
            if number > step:
                shutil.rmtree(self._path(number), ignore_errors=True)

    def _numbers(self) -> Sequence[int]:
        names = (re.fullmatch(r"version-([0-9]+)", entry.name) for entry in self._folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def _path(self, number: int) -> Path:
        return self._folder / f"version-{number:08d}"
