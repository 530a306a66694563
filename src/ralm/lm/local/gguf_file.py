"""Reads the metadata and the weights of GGUF files, llama.cpp's format of a model, one file or several shards.

The package gguf dequantises. Its reader, which transformers uses too, needs 30 to 50 times as long for a header, half a
minute for a large vocabulary. It believes what a header says of sizes, and reads no shards.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from ralm.errors import ModelError, extra

if TYPE_CHECKING:
    import torch

_SCALARS: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The formats (struct) of numbers in metadata, by the number of their type."""
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_CHUNK: Final = 1 << 22
"""The number of weights that are dequantised at once: their float32 copy takes 16 MB."""
_OFF: Final[tuple[Any, ...]] = (False, 0, "", "none", [])
"""Values that switch a setting off."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a tensor's weights, in rows of `row_bytes`, gguf's type `kind`, and the dequantised `shape`."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    kind: Any
    row_bytes: int

    @property
    def rows(self) -> int:
        """The number of rows, which are stored one after another."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The metadata of a model in GGUF files and its tensors; `digest` hashes what was read, `used` names it."""

    name: str
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]
    digest: Any
    used: set[str] = field(default_factory=set)

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, with which the names of its settings begin."""
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting."""
        self.used.add(key)
        return self.metadata.get(key, default)

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting of the architecture; ModelError if it differs from layer to layer."""
        value = self.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:
            return value[0]
        if isinstance(value, list):
            raise ModelError(f"{self.name}: layers with different {self.architecture}.{key} are not supported.")
        return value

    def positive(self, key: str, default: Any = None) -> Any:
        """Return a positive number among the settings of the architecture; ModelError if it is none, or missing."""
        value = self.setting(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelError(f"{self.name} is damaged: {self.architecture}.{key} is {value!r}, not a positive number.")
        return value

    def unused(self, prefix: str, no_effect: tuple[str, ...]) -> str | None:
        """Return the first setting with this prefix that nobody asked for, not switched off, without these ends."""
        keys = (key for key in self.metadata.keys() - self.used if key.startswith(prefix))
        return min(
            (key for key in keys if not key.endswith(no_effect) and self.metadata[key] not in _OFF), default=None
        )

    def load(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        """Return the dequantised weights of a tensor, a few rows at a time; ModelError if the file is shorter now."""
        import torch
        from gguf.quants import dequantize

        self.used.add(name)
        stored = self.tensors[name]
        weights = torch.empty((stored.rows, stored.shape[-1]), dtype=dtype)
        with stored.path.open("rb") as file:
            file.seek(stored.offset)
            for part in torch.split(weights, max(1, _CHUNK // stored.shape[-1])):
                data = np.empty((len(part), stored.row_bytes), dtype=np.uint8)
                if file.readinto(data.data.cast("B")) != data.nbytes:
                    raise _truncated(stored.path)
                self.digest.update(data)
                part.copy_(torch.from_numpy(dequantize(data, stored.kind)))
        return weights.reshape(stored.shape)


def open_gguf(name: str) -> GgufFile:
    """Return the header of a GGUF file and its shards; ModelError if one is no whole file that gguf can dequantise."""
    first = Path(name)
    if not first.is_file():
        raise ModelError(f"{name} is a folder, not a file." if first.is_dir() else f"there is no file {name}.")
    with extra("gguf", "GGUF files need", ("gguf",)):
        import gguf  # noqa: F401
    whole = _read_header(first)
    digest = hashlib.sha256(whole.digest.digest())
    for number, path in enumerate(_other_shards(first, whole.metadata), start=1):
        shard = _read_header(path)
        if [shard.metadata.get(f"split.{key}") for key in ("no", "count")] != [number, whole.metadata["split.count"]]:
            raise ModelError(f"{path} is not shard {number + 1} of {name}.")
        if twice := whole.tensors.keys() & shard.tensors.keys():
            raise ModelError(f"{path}: the tensor {min(twice)} is stored twice.")
        whole.tensors.update(shard.tensors)
        digest.update(shard.digest.digest())
    return replace(whole, name=name, digest=digest)


def _other_shards(first: Path, metadata: dict[str, Any]) -> Iterator[Path]:
    """Yield the shards after the first; ModelError if one is missing, or the file is not the first."""
    count = metadata.get("split.count", 0)
    if count <= 1:
        return
    stem, _, ending = first.name.rpartition("-00001-of-")
    if ending.lower() != f"{count:05}.gguf" or metadata.get("split.no") != 0:
        raise ModelError(f"{first} is one of {count} shards: give the first, NAME-00001-of-{count:05}.gguf.")
    for number in range(2, count + 1):
        path = first.with_name(f"{stem}-{number:05}-of-{ending}")
        if not path.is_file():
            raise ModelError(f"{first} is one of {count} shards, and {path.name} is missing beside it.")
        yield path


def _truncated(path: Path) -> ModelError:
    return ModelError(f"{path} is truncated: it ends before its metadata or weights do. Copy or download it again.")


class _Cursor:
    """A place in a header, whose values are read and hashed in turn; ModelError at the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._remaining = path.stat().st_size
        self.digest = hashlib.sha256()

    def unpack(self, format: str, count: int = 1) -> tuple[Any, ...]:  # noqa: A002
        """Return the next numbers, little-endian; `count` of a format of one letter."""
        size = count * struct.calcsize(f"<{format}")
        if size > self._remaining or len(data := self._file.read(size)) < size:
            raise _truncated(self._path)
        self._remaining -= size
        self.digest.update(data)
        return struct.unpack(f"<{count}{format}", data)

    def string(self) -> str:
        """Return the next string."""
        (length,) = self.unpack("Q")
        (data,) = self.unpack("s", length)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{self._path} is damaged: its header has a string that is not UTF-8.") from None

    def value(self) -> Any:
        """Return the next value of metadata, after its type; float32 as the shortest decimal that stands for it."""
        (kind,) = self.unpack("I")
        of, count = self.unpack("IQ") if kind == _ARRAY else (kind, 1)
        if of == _STRING:
            values = [self.string() for _ in range(count)]
        elif of in _SCALARS:
            values = list(self.unpack(_SCALARS[of], count))
        else:
            raise ModelError(f"{self._path} is damaged: its metadata has a value of the unknown type {of}.")
        if kind == _ARRAY:
            return values
        return float(str(np.float32(values[0]))) if kind == _FLOAT32 else values[0]


def _read_header(path: Path) -> GgufFile:
    """Return the header of one file, which has room for all its weights; ModelError if it is no such file."""
    with path.open("rb") as file:
        cursor = _Cursor(file, path)
        if cursor.unpack("s", 4) != (b"GGUF",):
            raise ModelError(f"{path} is not a GGUF file: it does not begin with GGUF.")
        version, tensor_count, setting_count = cursor.unpack("IQQ")
        if version not in _VERSIONS:
            raise ModelError(f"{path} has GGUF's version {version}, or is big-endian; versions 2 and 3 can be read.")
        metadata: dict[str, Any] = {}
        for _ in range(setting_count):
            key = cursor.string()
            if key in metadata:
                raise ModelError(f"{path} is damaged: it has the setting {key} twice.")
            metadata[key] = cursor.value()
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{path} is damaged: its alignment is {alignment!r}.")
        stored = [_tensor(cursor, path) for _ in range(tensor_count)]
        begin = -(-file.tell() // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, tensor in stored:
        if name in tensors or tensor.offset != -(-end // alignment) * alignment:
            raise ModelError(
                f"{path} is damaged: the tensor {name} is stored twice, or does not follow the one before it."
            )
        end = tensor.offset + tensor.rows * tensor.row_bytes
        tensors[name] = replace(tensor, offset=begin + tensor.offset)
    if begin + end > path.stat().st_size:
        raise _truncated(path)
    return GgufFile(str(path), metadata, tensors, cursor.digest)


def _tensor(cursor: _Cursor, path: Path) -> tuple[str, StoredTensor]:
    """Return the next tensor and its name, with its offset among all weights; ModelError if gguf cannot read it."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    name = cursor.string()
    (count,) = cursor.unpack("I")
    if not 1 <= count <= _MAX_DIMENSIONS:
        raise ModelError(f"{path} is damaged: the tensor {name} has {count} dimensions.")
    sizes = cursor.unpack("Q", count)
    number, offset = cursor.unpack("IQ")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, block_bytes), dtype=np.uint8), kind)
    except ValueError:
        raise ModelError(f"{path}: the package gguf does not know {number}, the type of {name}.") from None
    except NotImplementedError:
        raise ModelError(f"{path}: the package gguf cannot dequantise {kind.name}, the type of {name}.") from None
    if not math.prod(sizes) or sizes[0] % block:
        raise ModelError(f"{path} is damaged: the tensor {name} has the shape {sizes}, which {kind.name} cannot have.")
    return name, StoredTensor(path, offset, tuple(reversed(sizes)), kind, sizes[0] // block * block_bytes)
