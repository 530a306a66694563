"""Encodes the passages of an index with snapshots, in another process, while training goes on.

The process ends when the training ends, for whatever reason; what it has encoded is on disk, so the next one goes on
from there. If the process is killed, another one takes its place.
"""

import logging
import sys
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from ralm.errors import RalmError, UsageError, WorkerError
from ralm.processes import end_with_parent, starting_processes
from ralm.retrieval.dense.options import EncoderOptions, VectorOptions, load_encoder, options_of
from ralm.retrieval.encode import Ahead
from ralm.retrieval.index import Index, open_index
from ralm.storage.atomic import storage_errors
from ralm.terminal import no_progress
from ralm.training.versions import Versions

MOST_DEATHS: Final = 5
"""How often in a row a process may die before training stops."""

_logger = logging.getLogger(__name__)


class Refresher:
    """The process that makes versions of the vectors of an index in a folder, one at a time.

    `like`: how the encoders of the snapshots read. `stored`: how vectors are stored.
    `device`: where it encodes. `ahead` may encode passages before it would.
    """

    def __init__(
        self,
        index: Index,
        folder: Path,
        like: EncoderOptions,
        stored: VectorOptions,
        device: str,
        ahead: Ahead | None = None,
    ) -> None:
        self._arguments = (index.path.resolve(), index.fingerprint, folder, like, stored, device, ahead)
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
        failure = _received(self._answer)
        if process.exitcode == 0:
            return
        if failure is not None:
            raise failure
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
        arguments = (*self._arguments, self._number, theirs)
        self._process = get_context("spawn").Process(target=_refresh, args=arguments, daemon=True)
        with no_progress(), starting_processes():
            self._process.start()
        theirs.close()


def _received(answer: Connection) -> RalmError | None:
    """The error that a process that has ended reported."""
    try:
        return answer.recv() if answer.poll() else None
    except EOFError:
        return None


def _refresh(
    index: Path,
    fingerprint: str,
    folder: Path,
    like: EncoderOptions,
    stored: VectorOptions,
    device: str,
    ahead: Ahead | None,
    number: int,
    answer: Connection,
) -> None:
    """Make a version, in the other process."""
    end_with_parent()
    versions = Versions(folder)
    try:
        opened = open_index(index)
        if opened.fingerprint != fingerprint:
            raise UsageError(f"{index} was changed while it was trained on; train again with the index as it is now.")
        with storage_errors(folder):
            encoder = load_encoder(options_of(versions.snapshot(number), like), device=device)
            versions.encode(number, opened, encoder, stored, ahead)
    except RalmError as error:
        answer.send(error)
        sys.exit(1)
