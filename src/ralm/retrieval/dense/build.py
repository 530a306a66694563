"""Building the vectors of an index from a stream of passages, so that what was encoded survives an interruption.

Passages are encoded a chunk at a time, the longest of a chunk first. The vectors of a chunk are kept in a work folder
beside the index, named by what was encoded and with what, and end in a checksum; a build that begins again finds them
there, and encodes again what is not as it was written. At the end FAISS is trained on a sample of them where its string
asks for that, and takes them all in order.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import faiss
import numpy as np
from pydantic import JsonValue

from ralm.errors import CorpusError, DamagedFolderError, ModelError, UsageError
from ralm.folders.outputs import storage_errors
from ralm.progress import Advance, track
from ralm.protocols import Encoder
from ralm.records import FloatArray, Passage
from ralm.retrieval.dense.options import VECTORS, VectorOptions

_CHECKSUM_BYTES: Final = hashlib.sha256().digest_size
CHUNK: Final = 4096
"""Passages encoded between one saving and the next."""
FEWEST_NEIGHBOURS: Final = 2
"""With fewer neighbours in a graph FAISS ends the process."""
MOST_NEIGHBOURS: Final = 2048
"""More would take more memory than the vectors."""


class DenseBuilder:
    """Collects passages and writes their vectors into `folder`; call `add` for each in order, `encode_rest`, `finish`.

    `work` is where vectors are kept in the meantime, until whoever holds it removes them; what an earlier build of the
    same passages with the same encoder left there is taken and not encoded again. `chunk`: passages encoded between one
    saving and the next. `advance` is called as passages are encoded. Raises UsageError if FAISS cannot make an index
    of this string.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        encoder: Encoder,
        options: VectorOptions | None = None,
        *,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> None:
        self._folder = folder
        self._work = work
        self._encoder = encoder
        self._options = options or VectorOptions()
        self._chunk = chunk
        self._advance = advance
        self._config = encoder.config
        self._index = new_faiss_index(encoder.dimension, self._options.faiss)
        self._waiting: list[Passage] = []
        self._files: list[Path] = []
        self._count = self._encoded = 0
        self._seconds = 0.0

    def add(self, passage: Passage) -> None:
        """Encode the next passage, sooner or later.

        Raises CorpusError if there is nothing in it to encode, ModelError if its vector is none.
        """
        if not self._encoder.text_of(passage).strip():
            raise CorpusError(
                f"passage {passage.number} (document {passage.document_id!r}) is empty, so there is nothing to encode; "
                "leave it out of the corpus."
            )
        self._waiting.append(passage)
        if len(self._waiting) == self._chunk:
            self.encode_rest()

    def finish(self) -> dict[str, JsonValue]:
        """Write the vectors; what there is to record about them.

        Raises CorpusError if nothing was added, UsageError if they are too few to train on.
        """
        assert not self._waiting, "encode_rest comes first"
        if not self._count:
            raise CorpusError("the corpus has no passages: nothing to index.")
        if not self._index.is_trained:
            train(self._index, self._sample(), self._options.faiss)
        try:
            for file in track(self._files, "Adding vectors", len(self._files)):
                self._index.add(np.load(file, allow_pickle=False))
            faiss.write_index(self._index, str(self._folder / VECTORS))
            faiss.read_index(str(self._folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UsageError(
                f"FAISS cannot keep {self._count:,} vectors in an index {self._options.faiss!r} ({_reason(error)}); "
                "take another one: what was encoded is kept for it."
            ) from None
        return {
            "encoder": self._config,
            "query_fingerprint": self._encoder.query_fingerprint,
            "query_reading": self._encoder.query_config.get("reading", {}),
            "dimension": self._encoder.dimension,
            "encoded": self._encoded,
            "encoding_seconds": round(self._seconds, 3),
            **asdict(self._options),
        }

    def encode_rest(self) -> None:
        """Have the vectors of the passages that still wait in the work folder."""
        passages, self._waiting = self._waiting, []
        if not passages:
            return
        file = self._work / f"{self._address(passages)}.npy"
        if not _is_whole(file):
            begin = perf_counter()
            vectors_PD = self._encoder.encode_passages(passages, self._advance)
            self._seconds += perf_counter() - begin
            self._encoded += len(passages)
            _check_finite(vectors_PD, passages)
            _save(file, vectors_PD)
        elif self._advance:
            self._advance(len(passages))
        self._files.append(file)
        self._count += len(passages)

    def _address(self, passages: Sequence[Passage]) -> str:
        """A hash of what is encoded and with what."""
        digest = hashlib.sha256(json.dumps(self._config, sort_keys=True).encode())
        for passage in passages:
            text = self._encoder.text_of(passage).encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        return digest.hexdigest()

    def _sample(self) -> FloatArray:
        """Vectors to train on, drawn without repetition, in the order of the passages."""
        generator = np.random.default_rng(self._options.seed)
        size = min(self._options.training_sample, self._count)
        rows = np.sort(generator.choice(self._count, size, replace=False))
        return np.concatenate([part for part in self._rows(rows) if len(part)])

    def _rows(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[FloatArray]:
        for number, file in enumerate(self._files):
            begin = number * self._chunk
            mine = rows[(rows >= begin) & (rows < begin + self._chunk)] - begin
            yield np.load(file, mmap_mode="r", allow_pickle=False)[mine]


def new_faiss_index(dimension: int, string: str) -> faiss.Index:
    """An empty FAISS index for inner products of vectors of `dimension`, made by `index_factory`.

    Raises UsageError if FAISS knows no such index, or none for vectors of that dimension, or one that could not be
    used: it would compare otherwise, take no vectors in order or bit by bit, or end the process.
    """
    for neighbours in re.findall(r"(?:HNSW|NSG)(\d+)", string):
        if not FEWEST_NEIGHBOURS <= int(neighbours) <= MOST_NEIGHBOURS:
            raise _no_index(string, dimension, f"neighbours must be {FEWEST_NEIGHBOURS} to {MOST_NEIGHBOURS:,}")
    try:
        index = faiss.index_factory(dimension, string, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise _no_index(string, dimension, _reason(error)) from None
    except TypeError:  # what is not UTF-8 is no string to FAISS
        raise _no_index(string, dimension, "it is not UTF-8") from None
    for part in _parts(index):
        fault = _fault(part)
        if fault:
            raise _no_index(string, dimension, fault)
    return index


def _no_index(string: str, dimension: int, reason: str) -> UsageError:
    return UsageError(
        f"FAISS cannot make an index {string!r} for vectors of {dimension} dimensions ({reason}); "
        "see its documentation of index_factory, or take Flat."
    )


def _parts(index: faiss.Index) -> Iterator[faiss.Index]:
    """An index and those within it."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _parts(inner)


def _fault(index: faiss.Index) -> str:
    """Why vectors cannot be kept in an index, or not be found again; empty where they can."""
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        return f"its {type(index).__name__} compares distances, not inner products"
    if isinstance(index, faiss.IndexIDMap | faiss.IndexNSG):
        return f"its {type(index).__name__} does not take vectors one part after the other"
    if isinstance(index, faiss.IndexIVF) and index.nlist < 1:
        return "it has no lists"
    if isinstance(index, faiss.IndexPreTransform) and index.index.d < 1:
        return "it leaves no dimensions"
    return ""


def train(index: faiss.Index, vectors_PD: FloatArray, string: str) -> None:
    """Train an index on these vectors (float32).

    Raises UsageError if they are too few for it.
    """
    try:
        index.train(vectors_PD)
    except RuntimeError as error:
        raise UsageError(
            f"a FAISS index {string!r} cannot be trained on {len(vectors_PD):,} vectors ({_reason(error)}); take one "
            "with fewer lists or centroids, a larger training sample, or Flat."
        ) from None


def _reason(error: RuntimeError | MemoryError) -> str:
    """The last part of a message of FAISS, which begins with the place in its source."""
    return str(error).strip().splitlines()[-1].rpartition(": ")[2]


def _check_finite(vectors_PD: FloatArray, passages: Sequence[Passage]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors_PD).all(axis=1))
    if len(bad):
        passage = passages[int(bad[0])]
        raise ModelError(
            f"the encoder gives a vector with NaN or infinity for passage {passage.number} ({passage.text[:40]!r}); "
            'its weights are damaged, or overflow in this number format: try `dtype="float32"`.'
        )


def _is_whole(file: Path) -> bool:
    """Whether a file is there and as `_save` wrote it."""
    if not file.is_file():
        return False
    content = file.read_bytes()
    return content[-_CHECKSUM_BYTES:] == _checksum(file, content[:-_CHECKSUM_BYTES])


def _checksum(file: Path, content: bytes) -> bytes:
    """That of what a file holds, under its name: another file in its place is another one."""
    return hashlib.sha256(file.name.encode() + content).digest()


def _save(file: Path, vectors_PD: FloatArray) -> None:
    """Write an array whole or not at all, and its checksum behind it, where numpy does not look."""
    partial = file.with_name(f"{file.name}.partial")
    if file.is_dir():
        raise DamagedFolderError(f"{file} is a folder where a file is to be; remove it, and run this again.")
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, vectors_PD, allow_pickle=False)
        content = buffer.getvalue()
        with partial.open("wb") as stream:
            stream.write(content + _checksum(file, content))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
