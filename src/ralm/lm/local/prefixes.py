"""Keeps the keys and values of the beginnings of texts, so that a passage that stands first is read once for all
requests.

They are kept in blocks of tokens. The key of a block is a digest of all tokens up to its end, so a block is what
reading the text would give. A text is read in the same blocks whether some are kept or not, so that its figures are
the same to the last bit.

Shapes: H heads, C columns, S size of a head.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final, TypeAlias

import torch

from ralm.records import IntArray

BLOCK: Final = {"cpu": 64, "cuda": 256}
"""Tokens of a block; a GPU needs more of them at a time."""
Block: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""The keys and values (H, C, S) of each layer."""


class PrefixCache:
    """Blocks of `size` tokens of at most `capacity` bytes together; the least recently used go first. Safe to use from
    several threads."""

    def __init__(self, capacity: int, size: int) -> None:
        self.size = size
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._lock = Lock()
        self.found = self.read = 0
        """Tokens that were found, and those of the same texts that were not."""
        self.held = 0
        """Bytes of all blocks."""

    def find(self, tokens: IntArray) -> list[Block]:
        """The blocks of the longest beginning of a text (int64) that is kept."""
        found: list[Block] = []
        used: list[bytes] = []
        with self._lock:
            for key in self._keys(tokens):
                if key not in self._blocks:
                    break
                found.append(self._blocks[key])
                used.append(key)
            for key in reversed(used):  # the first block last: no other is of use without it
                self._blocks.move_to_end(key)
            self.found += len(found) * self.size
            self.read += len(tokens) - len(found) * self.size
        return found

    def add(self, tokens: IntArray, block: Block) -> None:
        """Keep the last block of a text whose length is a multiple of `size`, unless it is larger than all may be."""
        *_, key = self._keys(tokens)
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self.held += _bytes_of(block)
            while self.held > self._capacity:
                self.held -= _bytes_of(self._blocks.popitem(last=False)[1])

    def _keys(self, tokens: IntArray) -> Iterator[bytes]:
        """The keys of the whole blocks of a text."""
        digest = hashlib.blake2b(digest_size=16)
        for end in range(self.size, len(tokens) + 1, self.size):
            digest.update(tokens[end - self.size : end].tobytes())
            yield digest.digest()


def _bytes_of(block: Block) -> int:
    return sum(tensor.nbytes for layer in block for tensor in layer)
