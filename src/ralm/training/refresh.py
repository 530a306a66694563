"""Encodes the passages again during a training, in another process, and keeps the versions of the vectors on disk.

snapshot-N/   the encoders as they were after N steps
encoding-N/   chunks of vectors, while the passages are encoded with that snapshot
version-N/    the vectors of all passages

N is a number of steps. Snapshots and versions are written atomically. Version 0 is the set of vectors of the index, so
it has no folder. The process ends with the training and resumes from what is on disk; a killed one is replaced.
"""

import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from ralm.errors import RalmError, UsageError, WorkerError
from ralm.processes import end_with_parent, starting_processes
from ralm.retrieval.dense.options import VECTORS, EncoderOptions, VectorOptions, load_encoder, trained_options
from ralm.retrieval.index import open_index
from ralm.retrieval.update import RemoteEncoding, write_vectors
from ralm.storage.atomic import storage_errors, sync, sync_one
from ralm.terminal import no_progress

_SNAPSHOT: Final = "snapshot"
_ENCODING: Final = "encoding"
_VERSION: Final = "version"
_KEPT: Final = 2
MOST_DEATHS: Final = 5
"""How often in a row a process may die before training stops."""

_logger = logging.getLogger(__name__)


class Versions:
    """The snapshots and versions in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def snapshot(self, number: int) -> Path:
        """The folder of a snapshot."""
        return self._path(_SNAPSHOT, number)

    def vectors(self, number: int) -> Path:
        """The file of the vectors of a version."""
        return self._path(_VERSION, number) / VECTORS

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

    @contextmanager
    def new_version(self, number: int) -> Iterator[tuple[Path, Path]]:
        """Yield the folder of a version to make, and the one of its chunks, which may be there already."""
        work = self._path(_ENCODING, number)
        with self._whole(_VERSION, number) as folder:
            yield folder, work
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
                    shutil.rmtree(self._path(kind, number), ignore_errors=True)

    def _numbers(self, kind: str) -> Iterator[int]:
        names = (re.fullmatch(rf"{kind}-([0-9]+)", entry.name) for entry in self._folder.iterdir())
        return (int(match[1]) for match in names if match)

    def _path(self, kind: str, number: int) -> Path:
        return self._folder / f"{kind}-{number:08d}"

    @contextmanager
    def _whole(self, kind: str, number: int) -> Iterator[Path]:
        """Yield the name of a folder to make; it gets its own name, on disk, when the block succeeds."""
        folder = self._path(kind, number)
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


@dataclass(frozen=True, slots=True, eq=False)
class VersionMaker:
    """Makes versions of the vectors of an index, with this fingerprint, in a folder; it is sent to another process.

    `like`: how the encoders of the snapshots read. `stored`: how vectors are stored. `device`: where it encodes.
    `ahead` may encode passages before it would.
    """

    index: Path
    fingerprint: str
    folder: Path
    like: EncoderOptions
    stored: VectorOptions
    device: str
    ahead: RemoteEncoding | None = None

    def make(self, number: int, answer: Connection) -> None:
        """Make the version of the snapshot with this number, from where an earlier process was killed; sends the error
        if it fails."""
        end_with_parent()
        versions = Versions(self.folder)
        try:
            index = open_index(self.index)
            if index.fingerprint != self.fingerprint:
                raise UsageError(
                    f"{self.index} was changed while it was trained on; train again with the index as it is now."
                )
            with storage_errors(self.folder):
                encoder = load_encoder(trained_options(versions.snapshot(number), self.like), device=self.device)
                with versions.new_version(number) as (folder, work):
                    write_vectors(index, folder, work, encoder, self.stored, self.ahead)
        except RalmError as error:
            answer.send(error)
            sys.exit(1)


class Refresher:
    """The process in which a `VersionMaker` makes versions, one at a time."""

    def __init__(self, maker: VersionMaker) -> None:
        self._maker = maker
        self._number = 0
        self._deaths = 0
        self._process: BaseProcess | None = None
        self._answer: Connection

    @property
    def is_busy(self) -> bool:
        """Whether a version is being made."""
        return self._process is not None

    def begin(self, number: int) -> None:
        """Make the version of the snapshot with this number."""
        assert self._process is None
        self._number = number
        self._deaths = 0
        self._start()

    def look_after(self) -> None:
        """Take note if the process has ended; start another one if it was killed.

        Raises WorkerError if it dies again and again, and what the process failed with.
        """
        process = self._process
        if process is None or process.is_alive():
            return
        process.join()
        self._process = None
        if process.exitcode == 0:
            return
        with suppress(EOFError):
            if self._answer.poll():
                raise self._answer.recv()
        self._deaths += 1
        if self._deaths == MOST_DEATHS:
            raise WorkerError(
                f"the process that encodes the passages with the weights of step {self._number:,} died "
                f"{MOST_DEATHS} times, perhaps because memory ran out, or because a script does not guard its code by "
                'if __name__ == "__main__"; the last checkpoint is kept. Rerun the command to go on.'
            )
        _logger.info("the process that encodes the passages died and is started again")
        self._start()

    def close(self) -> None:
        """End the process; what it has encoded stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        self._answer, theirs = Pipe(duplex=False)
        self._process = get_context("spawn").Process(target=self._maker.make, args=(self._number, theirs), daemon=True)
        with no_progress(), starting_processes():
            self._process.start()
        theirs.close()
