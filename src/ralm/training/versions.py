"""The versions of passage vectors that a training makes on its way, on disk, each named by a number of steps.

snapshot-N/   the encoders as they were after N steps
encoding-N/   chunks of vectors, while the passages are encoded with that snapshot
version-N/    the vectors of all passages

Snapshots and versions are whole or absent. Version 0 is the set of vectors that the index has, so it is not here. Knows
files and encoders; knows nothing of training.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ralm.protocols import Encoder
from ralm.retrieval.dense.options import VECTORS, VectorOptions
from ralm.retrieval.encode import Ahead, write_vectors
from ralm.retrieval.index import Index
from ralm.storage.atomic import storage_errors, sync, sync_one

_SNAPSHOT: Final = "snapshot"
_ENCODING: Final = "encoding"
_VERSION: Final = "version"
_KEPT: Final = 2


class Versions:
    """The snapshots and versions in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def snapshot(self, number: int) -> Path:
        """The folder of a snapshot."""
        return self._named(_SNAPSHOT, number)

    def vectors(self, number: int) -> Path:
        """The file of the vectors of a version."""
        return self._named(_VERSION, number) / VECTORS

    def newest(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return max(self._numbers(_VERSION), default=0)

    def waiting(self) -> int | None:
        """The number of the newest snapshot whose passages have not all been encoded, if there is one."""
        return max((number for number in self._numbers(_SNAPSHOT) if number > self.newest()), default=None)

    def take_snapshot(self, number: int, save: Callable[[Path], None]) -> None:
        """Keep the encoders that `save` writes into a folder. Raises StorageError if the disk is full."""
        with self._whole(_SNAPSHOT, number) as folder:
            folder.mkdir()
            save(folder)

    def encode(
        self, number: int, index: Index, encoder: Encoder, stored: VectorOptions, ahead: Ahead | None = None
    ) -> None:
        """Make a version: encode the passages of an index with the encoder of a snapshot, from where an earlier call
        was killed. Raises what `write_vectors` raises, StorageError if the disk is full."""
        work = self._named(_ENCODING, number)
        with self._whole(_VERSION, number) as folder:
            write_vectors(index, folder, work, encoder, stored, ahead)
        shutil.rmtree(work, ignore_errors=True)

    def keep_newest(self) -> None:
        """Remove all versions but the last two, and what is only needed to make a version that is complete."""
        kept = sorted(self._numbers(_VERSION))[-_KEPT:]
        self._remove(lambda kind, number: number not in kept if kind == _VERSION else number <= self.newest())

    def forget_after(self, step: int) -> None:
        """Remove what was made of weights that a training, which goes on after this step, does not have."""
        self._remove(lambda _, number: number > step)

    def _remove(self, is_unneeded: Callable[[str, int], bool]) -> None:
        for kind in (_SNAPSHOT, _ENCODING, _VERSION):
            for number in [*self._numbers(kind)]:
                if is_unneeded(kind, number):
                    shutil.rmtree(self._named(kind, number), ignore_errors=True)

    def _numbers(self, kind: str) -> Iterator[int]:
        names = (re.fullmatch(rf"{kind}-([0-9]+)", entry.name) for entry in self._folder.iterdir())
        return (int(match[1]) for match in names if match)

    def _named(self, kind: str, number: int) -> Path:
        return self._folder / f"{kind}-{number:08d}"

    @contextmanager
    def _whole(self, kind: str, number: int) -> Iterator[Path]:
        """Yield the name of a folder to make; it gets its own name, on disk, when the block succeeds."""
        folder = self._named(kind, number)
        partial = folder.with_name(f"{folder.name}.partial")
        with storage_errors(folder):
            shutil.rmtree(partial, ignore_errors=True)
            try:
                yield partial
                sync(partial)
                partial.rename(folder)
                sync_one(self._folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
