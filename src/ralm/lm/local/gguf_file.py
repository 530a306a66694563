"""Reads the metadata and the weights of GGUF files, llama.cpp's format of a model, one file or several shards."""

import hashlib
import math
import re
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
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where the weights of a tensor are: at `offset` in the file `path`, in rows of `row_bytes`. `kind` is gguf's type,
    `shape` that of the dequantised tensor."""

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
    """The metadata of a model in GGUF files, and where its tensors are; `digest` hashes all that was read of them."""

    name: str
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def dtype(self) -> "torch.dtype":
        """The number format of the matrices; float32 if they are quantised or of several formats."""
        import torch  # here, so that tokenizers load without it

        kinds = {one.kind.name for one in self.tensors.values() if len(one.shape) > 1}
        return {"F16": torch.float16, "BF16": torch.bfloat16}.get(kinds.pop() if len(kinds) == 1 else "", torch.float32)

    def load(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        """The dequantised weights of a tensor, read a few rows at a time; ModelError if the file has become shorter."""
        import torch
        from gguf.quants import dequantize

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
    """The header of a GGUF file, and of all its shards if it is the first of several.

    Raises MissingExtraError without the extra `gguf`; ModelError if there is no such file, if it or a shard is no whole
    GGUF file, or if gguf cannot dequantise it.
    """
    if not Path(name).is_file():
        raise ModelError(f"{name} is a folder, not a file." if Path(name).is_dir() else f"there is no file {name}.")
    with extra("gguf", "GGUF files need", ("gguf",)):
        import gguf  # noqa: F401
    first = _read_header(Path(name))
    model = GgufFile(name, first.metadata, {})
    for number, path in enumerate(_shards(Path(name), first.metadata)):
        part = _read_header(path) if number else first
        if number and (part.metadata.get("split.no"), part.metadata.get("split.count")) != (
            number,
            first.metadata["split.count"],
        ):
            raise ModelError(f"{path} is not shard {number + 1} of {name}.")
        if twice := model.tensors.keys() & part.tensors.keys():
            raise ModelError(f"{path}: the tensor {min(twice)} is stored twice.")
        model.tensors.update(part.tensors)
        model.digest.update(part.digest.digest())
    if first.metadata.get("split.tensors.count", len(model.tensors)) != len(model.tensors):
        raise ModelError(
            f"{name} and its shards have {len(model.tensors)} tensors, which is not the number in its header."
        )
    _check_kinds(model)
    return model


def _shards(first: Path, metadata: dict[str, Any]) -> Iterator[Path]:
    """The file itself and the shards after it; ModelError if it is not the first shard, or one is missing."""
    yield first
    count = metadata.get("split.count", 0)
    if count <= 1:
        return
    named = _SHARD.fullmatch(first.name)
    if named is None or int(named[3]) != count or int(named[2]) != 1 or metadata.get("split.no") != 0:
        raise ModelError(f"{first} is one of {count} shards: give the first, NAME-00001-of-{count:05}.gguf.")
    for number in range(2, count + 1):
        path = first.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf")
        if not path.is_file():
            raise ModelError(f"{first} is one of {count} shards, and {path.name} is missing beside it.")
        yield path


def _check_kinds(model: GgufFile) -> None:
    """Raise ModelError if gguf cannot dequantise some tensor."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    for kind, name in {one.kind: name for name, one in model.tensors.items()}.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise ModelError(
                f"{model.name}: the package gguf cannot dequantise {kind.name}, the type of {name}."
            ) from None


def _truncated(path: Path) -> ModelError:
    return ModelError(f"{path} is truncated: it ends before its metadata or weights do. Copy or download it again.")


class _Cursor:
    """Reads values of a header one after another; ModelError at the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = path.stat().st_size
        self.position = 0
        self.digest = hashlib.sha256()

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self._left or len(data := self._file.read(count)) < count:
            raise _truncated(self._path)
        self._left -= count
        self.position += count
        self.digest.update(data)
        return data

    def unpack(self, format: str, count: int = 1) -> tuple[Any, ...]:  # noqa: A002
        """The next numbers, little-endian; `count` of a format of one letter."""
        return struct.unpack(f"<{count}{format}", self.take(count * struct.calcsize(f"<{format}")))

    def string(self) -> str:
        """The next string."""
        data = self.take(self.unpack("Q")[0])
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ModelError(f"{self._path} is damaged: its header has a string that is not UTF-8.") from None

    def value(self) -> Any:
        """The next value of metadata, after its type; float32 as the shortest decimal that stands for it."""
        (kind,) = self.unpack("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            of, count = self.unpack("IQ")
            if of == _STRING:
                return [self.string() for _ in range(count)]
            return list(self.unpack(self._format(of), count))
        (value,) = self.unpack(self._format(kind))
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ModelError(f"{self._path} is damaged: its metadata has a value of the unknown type {kind}.")
        return _SCALARS[kind]


def _read_header(path: Path) -> GgufFile:
    """The metadata and tensors of one file, all of whose weights are in it; ModelError if it is no such file."""
    with path.open("rb") as file:
        cursor = _Cursor(file, path)
        if cursor.take(4) != b"GGUF":
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
    begin = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, one in stored:
        if name in tensors or one.offset != -(-end // alignment) * alignment:
            raise ModelError(
                f"{path} is damaged: the tensor {name} is stored twice, or does not follow the one before it."
            )
        end = one.offset + one.rows * one.row_bytes
        tensors[name] = replace(one, offset=begin + one.offset)
    if begin + end > path.stat().st_size:
        raise _truncated(path)
    return GgufFile(str(path), metadata, tensors, cursor.digest)


def _tensor(cursor: _Cursor, path: Path) -> tuple[str, StoredTensor]:
    """The name of a tensor, and the tensor with its offset from the beginning of all weights."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.string()
    (count,) = cursor.unpack("I")
    if not 1 <= count <= _MAX_DIMENSIONS:
        raise ModelError(f"{path} is damaged: the tensor {name} has {count} dimensions.")
    sizes = cursor.unpack("Q", count)
    number, offset = cursor.unpack("IQ")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelError(
            f"{path}: the tensor {name} has the type {number}, which the package gguf does not know."
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not math.prod(sizes) or sizes[0] % block:
        raise ModelError(f"{path} is damaged: the tensor {name} has the shape {sizes}, which {kind.name} cannot have.")
    return name, StoredTensor(path, offset, tuple(reversed(sizes)), kind, sizes[0] // block * block_bytes)
