"""Keeps the keys and values of the beginnings of prompts, so that a passage that stands first is read once for all
requests.

Callers mark beginnings that other prompts may have too, such as a template with its passage. A text is read in two
passes, its longest marked beginning and the rest, whether the beginning is kept or not: so its figures are the same to
the last bit. The key of a beginning is a digest of its tokens; their positions are those from 0 on. In a file, which
other processes may use too, the key also has all else that decides the last bits.

Shapes: H heads, C columns, S size of a head.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

import safetensors.torch
import torch
from pydantic import JsonValue

from ralm.records import IntArray
from ralm.storage.store import Store

KeysAndValues: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""The keys and values (H, C, S) of each layer."""
_MARKS: Final = 1 << 17
"""The beginnings that are remembered as marked, the latest."""
_DIGEST: Final = 16
_LARGEST: Final = 900_000_000
"""Bytes of the largest beginning that goes into a file: SQLite's values have less than 1 GB."""


class PrefixFile:
    """Beginnings in a file, which grows with each new one. `identity` returns all that decides their keys and values
    besides the tokens; the number of threads and the versions of libraries are added to it. InputError if the file is
    something else, StorageError if it cannot be used."""

    def __init__(self, file: Path, identity: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._make_identity = identity
        self._store = Store(file, "passage cache", "choose another `passage_cache_file`")

    def get(self, key: bytes) -> KeysAndValues | None:
        """What was put under a key by a process in which the same decides it."""
        own = self._key(key)
        found = self._store.get([own]).get(own)
        if found is None:
            return None
        tensors = safetensors.torch.load(found)
        return [(tensors[f"{layer}.keys"], tensors[f"{layer}.values"]) for layer in range(len(tensors) // 2)]

    def put(self, key: bytes, layers: KeysAndValues) -> None:
        """Put the keys and values of a beginning, unless they are too large."""
        if _bytes_of(layers) > _LARGEST:
            return
        named = {f"{place}.keys": keys for place, (keys, _) in enumerate(layers)}
        named |= {f"{place}.values": values for place, (_, values) in enumerate(layers)}
        self._store.put([(self._key(key), safetensors.torch.save(named))])

    def _key(self, key: bytes) -> bytes:
        return hashlib.blake2b(self._identity + key, digest_size=_DIGEST).digest()

    @cached_property
    def _identity(self) -> bytes:
        decisive = {
            "model": self._make_identity(),
            "threads": torch.get_num_threads(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "versions": [version(package) for package in ("ralm", "torch", "transformers")],
        }
        return json.dumps(decisive, sort_keys=True).encode()


class PrefixCache:
    """Beginnings of at most `capacity` bytes together; the least recently used go first. With a `file` all are there
    too. Safe to use from several threads."""

    def __init__(self, capacity: int, file: PrefixFile | None = None) -> None:
        self._capacity = capacity
        self._file = file
        self._marked: OrderedDict[bytes, int] = OrderedDict()
        self._lengths: dict[int, int] = {}
        self._kept: OrderedDict[bytes, KeysAndValues] = OrderedDict()
        self._lock = Lock()
        self.found = self.read = 0
        """Tokens of marked beginnings that were kept, and of those that were read."""
        self.held = 0
        """Bytes of all that is kept."""

    def mark(self, tokens: IntArray) -> None:
        """Keep this beginning (int64) of texts once it is read."""
        key = _digest(tokens)
        with self._lock:
            if key not in self._marked:
                self._lengths[len(tokens)] = self._lengths.get(len(tokens), 0) + 1
            self._marked[key] = len(tokens)
            self._marked.move_to_end(key)
            if len(self._marked) > _MARKS:
                _, length = self._marked.popitem(last=False)
                self._lengths[length] -= 1
                if not self._lengths[length]:
                    del self._lengths[length]

    def marked(self, tokens: IntArray) -> IntArray:
        """The longest marked beginning of a text (int64); empty without one."""
        with self._lock:
            lengths = sorted(length for length in self._lengths if length <= len(tokens))
            longest, before, digest = 0, 0, hashlib.blake2b(digest_size=_DIGEST)
            for length in lengths:
                digest.update(tokens[before:length].tobytes())
                before = length
                if digest.copy().digest() in self._marked:
                    longest = length
        return tokens[:longest]

    def find(self, tokens: IntArray) -> KeysAndValues | None:
        """What is kept of a beginning."""
        key = _digest(tokens)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        if kept is None and self._file is not None:
            kept = self._file.get(key)
            if kept is not None:
                self._hold(key, kept)
        with self._lock:
            if kept is None:
                self.read += len(tokens)
            else:
                self.found += len(tokens)
        return kept

    def add(self, tokens: IntArray, layers: KeysAndValues) -> None:
        """Keep a beginning, unless it is larger than all may be."""
        key = _digest(tokens)
        self._hold(key, layers)
        if self._file is not None:
            self._file.put(key, layers)

    def _hold(self, key: bytes, layers: KeysAndValues) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = layers
                self.held += _bytes_of(layers)
            while self.held > self._capacity:
                self.held -= _bytes_of(self._kept.popitem(last=False)[1])


def _digest(tokens: IntArray) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=_DIGEST).digest()


def _bytes_of(layers: KeysAndValues) -> int:
    return sum(tensor.nbytes for layer in layers for tensor in layer)
