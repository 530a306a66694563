"""A journal of what a run has scored: an append-only file, so that a killed run does not score it again.

Knows requests and their log-probabilities; knows nothing of the run. A record is a key of 16 bytes, the number of
targets, their log-probabilities (float32), and a checksum. A record that a crash left incomplete is cut off, and so is
a damaged record with everything after it. These are scored again.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import numpy as np

from ralm.errors import DamagedFolderError
from ralm.records import FloatArray, Request
from ralm.storage.atomic import storage_errors

_KEY_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<{_KEY_BYTES}sI")
_CHECKSUM: Final = struct.Struct("<I")


def request_key(request: Request) -> bytes:
    """The key of a request: a hash of all its tokens and of the number of targets."""
    digest = blake2b(len(request.targets).to_bytes(8, "little"), digest_size=_KEY_BYTES)
    for part in (request.document, request.context, request.targets):
        digest.update(part.tobytes())
    return digest.digest()


class MemoryJournal:
    """Log-probabilities of requests by their keys, kept in memory."""

    def __init__(self) -> None:
        self._known: dict[bytes, FloatArray] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> FloatArray | None:
        """The log-probabilities (float32) of a request's targets, or None if they are not known."""
        return self._known.get(key)

    def add(self, scored: Iterable[tuple[bytes, FloatArray]]) -> None:
        """Keep these; those that are known stay as they are."""
        for key, log_probs in scored:
            self._known.setdefault(key, log_probs)

    def items(self) -> list[tuple[bytes, FloatArray]]:
        """All of them, with their keys."""
        return [*self._known.items()]


class Journal(MemoryJournal):
    """The same kept in a file; a context manager.

    `reused` counts the requests that were answered from the records of an earlier process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with storage_errors(path):
            self._stream = self._open()
        self._earlier = frozenset(self._known)
        self.reused = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def get(self, key: bytes) -> FloatArray | None:
        """The log-probabilities (float32) of a request's targets, or None if they are not known."""
        self.reused += key in self._earlier
        return super().get(key)

    def add(self, scored: Iterable[tuple[bytes, FloatArray]]) -> None:
        """Write these to the file; a process that is killed after this returns does not lose them."""
        records = []
        for key, log_probs in scored:
            if key not in self._known:
                self._known[key] = log_probs
                record = _HEAD.pack(key, len(log_probs)) + log_probs.astype("<f4").tobytes()
                records.append(record + _CHECKSUM.pack(zlib.crc32(record)))
        with storage_errors(self._path):
            self._stream.write(b"".join(records))
            self._stream.flush()

    def _open(self) -> BinaryIO:
        if self._path.is_dir():
            raise DamagedFolderError(f"{self._path} is a folder, but must be a file; remove it and run this again.")
        stream = self._path.open("a+b")
        stream.seek(0)
        whole = self._read(stream)
        stream.truncate(whole)
        stream.seek(whole)
        return stream

    def _read(self, stream: BinaryIO) -> int:
        """Load the records of a file; returns how many bytes at its beginning are complete records."""
        whole, size = 0, os.fstat(stream.fileno()).st_size
        while len(head := stream.read(_HEAD.size)) == _HEAD.size:
            key, targets = _HEAD.unpack(head)
            if 4 * targets > size - stream.tell():
                break
            body = stream.read(4 * targets)
            checksum = stream.read(_CHECKSUM.size)
            if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum) != (zlib.crc32(head + body),):
                break
            self._known[key] = np.frombuffer(body, "<f4").astype(np.float32)
            whole = stream.tell()
        return whole
