"""What was scored already, in a file that grows as a run goes on: a run that was killed does not score it again.

Knows requests and their log-probabilities; knows nothing of the run. A record is a key of 16 bytes, the number of
targets, their log-probabilities (float32), and a checksum. What a crash left half written at the end is cut off, and so
is everything behind a record that was altered: it is scored again.
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
from ralm.folders.outputs import storage_errors
from ralm.records import FloatArray, Request

_KEY_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<{_KEY_BYTES}sI")
_CHECKSUM: Final = struct.Struct("<I")


def request_key(request: Request) -> bytes:
    """What a request is known by: a hash of all its tokens, and of which of them are targets."""
    digest = blake2b(len(request.targets).to_bytes(8, "little"), digest_size=_KEY_BYTES)
    for part in (request.document, request.context, request.targets):
        digest.update(part.tobytes())
    return digest.digest()


class Journal:
    """Log-probabilities of requests by their keys, kept in a file; a context manager.

    `reused` counts the requests that were answered from what an earlier process left.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[bytes, FloatArray] = {}
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

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> FloatArray | None:
        """The log-probabilities (float32) of a request's targets, where they are known."""
        self.reused += key in self._earlier
        return self._known.get(key)

    def add(self, scored: Iterable[tuple[bytes, FloatArray]]) -> None:
        """Keep these; once this returns a killed process does not lose them."""
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
            raise DamagedFolderError(f"{self._path} is a folder where a file is to be; remove it, and run this again.")
        stream = self._path.open("a+b")
        stream.seek(0)
        whole = self._read(stream)
        stream.truncate(whole)
        stream.seek(whole)
        return stream

    def _read(self, stream: BinaryIO) -> int:
        """Take in the records of a file; how many bytes of it are whole records."""
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
