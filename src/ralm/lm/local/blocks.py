"""Keeps the keys and values of texts in blocks of 16 tokens, so that what texts begin with is read once.

A block is addressed by the chained hash of all tokens up to its end (as in vLLM), so the longest known beginning of a
text is found whatever the texts were that it was read in: passages that requests share, demonstrations before every
prompt, a chat that goes on, a long text that is read in pieces. Blocks of a text are kept once it is read; the least
recently used go first. In a file, which other processes may use too, the key also has all else that decides keys and
values.

Shapes: R rows or blocks, H heads, C columns, S size of a head.
"""

import hashlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from threading import RLock
from typing import Final

import safetensors.torch
import torch
from pydantic import JsonValue

from ralm.lm.local.rows import CopiedColumns, KeyValueRows, Tensors, copy_columns, zeros_like
from ralm.records import IntArray
from ralm.storage.store import Store

BLOCK: Final = 16
"""Tokens of a block. With 64 a text reads up to 63 known tokens again, which is most of a short question or answer."""
_FIRST_BLOCKS: Final = 64
"""Blocks that there is room for at first; the room doubles."""
_DIGEST: Final = 16
_SYSTEM: Final = Path("/proc/meminfo")
_CONTAINER: Final = Path("/sys/fs/cgroup")


class BlockFile:
    """Blocks in a growing file, under all that decides keys and values: tokens, `identity`, threads, versions."""

    def __init__(self, file: Path, identity: Callable[[], Mapping[str, JsonValue]]) -> None:
        self._make_identity = identity
        self._store = Store(file, "passage cache", "choose another `passage_cache_file`")

    def get(self, key: bytes) -> Tensors | None:
        """Return the block that was put under a key by a process in which the same decides it."""
        store_key = self._key(key)
        value = self._store.get([store_key]).get(store_key)
        if value is None:
            return None
        named = safetensors.torch.load(value)
        return [named.get(str(place)) for place in range(int(named["count"]))]

    def put(self, key: bytes, tensors: Tensors) -> None:
        """Put a block (1, H, C, S)."""
        named = {str(place): tensor.clone() for place, tensor in enumerate(tensors) if tensor is not None}
        named["count"] = torch.tensor(len(tensors))
        self._store.put([(self._key(key), safetensors.torch.save(named))])

    def _key(self, key: bytes) -> bytes:
        return hashlib.blake2b(self._identity + key, digest_size=_DIGEST).digest()

    @cached_property
    def _identity(self) -> bytes:
        decisive = {
            "model": self._make_identity(),
            "block": BLOCK,
            "threads": torch.get_num_threads(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "versions": [version(package) for package in ("ralm", "torch", "transformers")],
        }
        return json.dumps(decisive, sort_keys=True).encode()


class Blocks:
    """Blocks of at most `capacity` bytes together, for several threads; with a `file` all are there too."""

    def __init__(self, capacity: int, file: BlockFile | None = None) -> None:
        self._capacity = capacity
        self._file = file
        self._tensors: list[torch.Tensor | None] = []
        self._block_bytes = 0
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._lock = RLock()
        self.reused = self.read = 0
        """Tokens of texts that were taken from here, and tokens that were read."""

    @property
    def token_bytes(self) -> int:
        """The bytes of a token; 0 until the first text is read."""
        return self._block_bytes // BLOCK

    @property
    def kept_bytes(self) -> int:
        """The bytes of all blocks that are kept."""
        return len(self._slots) * self._block_bytes

    def keeps(self, tokens: int) -> bool:
        """Return whether a text of so many tokens fits; until the first block it may."""
        return tokens // BLOCK * self._block_bytes <= self._capacity

    def kept_tokens(self, text: IntArray) -> int:
        """Return how many tokens of a text are kept from its beginning on."""
        with self._lock:
            return len(self._longest(text)) * BLOCK

    def fill(self, rows: KeyValueRows, texts: Mapping[int, IntArray], filled: Mapping[int, int]) -> dict[int, int]:
        """Copy the longest kept beginning of each text into its row, unless more is filled; return what is filled."""
        columns = {row: filled[row] for row in texts}
        with self._lock:
            for row, text in texts.items():
                first, slots = filled[row] // BLOCK, self._longest(text)
                if len(slots) * BLOCK <= filled[row]:
                    continue
                columns[row] = len(slots) * BLOCK
                rows.make(self._tensors)
                begin = rows.begins(row)
                places = range(first, len(slots))
                # before the next text, whose blocks of the file may take the places of these
                copied = [CopiedColumns(slots[at], 0, row, begin + at * BLOCK, BLOCK) for at in places]
                copy_columns(self._tensors, rows.tensors, copied)
            self.reused += sum(columns[row] - filled[row] for row in texts)
        return columns

    def keep(self, rows: KeyValueRows, texts: Mapping[int, IntArray]) -> None:
        """Keep the blocks of texts whose rows are read, as far as memory holds them; none of too large a text."""
        with self._lock:
            self._begin(rows.tensors)
            for row, text in texts.items():
                keys = block_keys(text)
                new = [(place, key) for place, key in enumerate(keys) if key not in self._slots]
                if not new or not self.keeps(len(text)):
                    continue
                self._use([key for key in keys if key in self._slots])
                begin = rows.begins(row)
                try:
                    with self._new_slots(len(new)) as slots:
                        copied = [
                            CopiedColumns(row, begin + place * BLOCK, slot, 0, BLOCK)
                            for (place, _), slot in zip(new, slots, strict=True)
                        ]
                        copy_columns(rows.tensors, self._tensors, copied)
                except torch.OutOfMemoryError:
                    self._capacity = (len(self._slots) + len(self._free)) * self._block_bytes
                    continue
                self._slots.update((key, slot) for (_, key), slot in zip(new, slots, strict=True))
                self._use(keys)
                if self._file is not None:
                    for _, key in new:
                        self._file.put(key, self._block(self._slots[key]))

    def _longest(self, text: IntArray) -> list[int]:
        """Return the slots of the longest kept beginning of a text, which are now the most recently used."""
        if not self.keeps(len(text)):
            return []
        keys = block_keys(text)
        self._use([key for key in keys if key in self._slots])
        beginning = [*takewhile(self._find, keys)]
        self._use(beginning)
        return [self._slots[key] for key in beginning]

    def _find(self, key: bytes) -> bool:
        """Return whether a block is kept, or in the file once a text was read, which shows where the layers are."""
        if key in self._slots or self._file is None or not self._tensors:
            return key in self._slots
        tensors = self._file.get(key)
        if tensors is None:
            return False
        with self._new_slots(1) as [slot]:
            for kept, tensor in zip(self._block(slot), tensors, strict=True):
                if kept is not None and tensor is not None:
                    kept.copy_(tensor)
        self._slots[key] = slot
        return True

    def _use(self, keys: Sequence[bytes]) -> None:
        """Make blocks the most recently used, the first of a text last: those after it are found only with it."""
        for key in reversed(keys):
            self._slots.move_to_end(key)

    def _begin(self, like: Tensors) -> None:
        """Learn the heads and sizes of the layers from the first tensors (R, H, C, S)."""
        if not self._tensors:
            self._tensors = [None if tensor is None else zeros_like(tensor, (0, BLOCK)) for tensor in like]
            self._block_bytes = sum(tensor[:1, :, :1].nbytes * BLOCK for tensor in like if tensor is not None)

    @contextmanager
    def _new_slots(self, count: int) -> Iterator[list[int]]:
        """Give slots to fill, some maybe of the least recently used blocks; after an error they are free again."""
        slots: list[int] = []
        try:
            for _ in range(count):
                self._grow()
                slots.append(self._free.pop() if self._free else self._slots.popitem(last=False)[1])
            yield slots
        except BaseException:
            self._free += slots
            raise

    def _grow(self) -> None:
        """Make room for more blocks, twice as many, if none is free and the capacity allows it."""
        room, most = (
            next(len(tensor) for tensor in self._tensors if tensor is not None),
            self._capacity // self._block_bytes,
        )
        if self._free or room >= most:
            return
        more = min(max(room, _FIRST_BLOCKS), most - room)
        grown = [tensor if tensor is None else zeros_like(tensor, (room + more, BLOCK)) for tensor in self._tensors]
        copy_columns(self._tensors, grown, [CopiedColumns(slot, 0, slot, 0, BLOCK) for slot in range(room)])
        self._tensors, self._free = grown, [*range(room, room + more)]

    def _block(self, slot: int) -> Tensors:
        """Return the tensors (1, H, C, S) of a slot."""
        return [tensor if tensor is None else tensor[slot : slot + 1] for tensor in self._tensors]


def shared_tokens(texts: Sequence[IntArray]) -> list[int]:
    """Return how many tokens of each text (int64) are whole blocks of another one, too, from its beginning on."""
    firsts = Counter(text[:BLOCK].tobytes() for text in texts)
    keys = [block_keys(text) if firsts[text[:BLOCK].tobytes()] > 1 else [] for text in texts]
    counts = Counter(key for text_keys in keys for key in text_keys)
    return [BLOCK * sum(1 for _ in takewhile(lambda key: counts[key] > 1, text_keys)) for text_keys in keys]


def block_keys(text: IntArray) -> list[bytes]:
    """Return the keys of the whole blocks of a text (int64), each a hash of all tokens up to the block's end."""
    keys, digest = [], hashlib.blake2b(digest_size=_DIGEST)
    for end in range(BLOCK, len(text) + 1, BLOCK):
        digest.update(text[end - BLOCK : end].tobytes())
        keys.append(digest.copy().digest())
    return keys


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a GPU, or that this process may still take of the main memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_system_bytes(), _container_bytes())


def _system_bytes() -> int:
    """Return what the system has; where it does not say what is free (macOS), half of all."""
    if not _SYSTEM.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    kilobytes = dict(line.split(":") for line in _SYSTEM.read_text(encoding="ascii").splitlines())
    return 1024 * int(kilobytes["MemAvailable"].split()[0])


def _container_bytes() -> int:
    """Return what is left of the limit of the process's container; without one, more than any system has."""
    limit, used, parts = (_CONTAINER / f"memory.{name}" for name in ("max", "current", "stat"))
    if not parts.is_file() or not limit.is_file() or (most := limit.read_text(encoding="ascii").strip()) == "max":
        return 1 << 62
    sizes = dict(line.split() for line in parts.read_text(encoding="ascii").splitlines())
    files = int(sizes["active_file"]) + int(sizes["inactive_file"])  # copies of files, which the system drops
    return max(0, int(most) - int(used.read_text(encoding="ascii")) + files)
