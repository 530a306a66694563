"""Checkpoints of a training, in its work folder: files that are either whole or absent.

A file is written under a temporary name, synced and renamed. Its name holds a hash of its content, so a file that was
damaged later is not used either. Nothing is pickled.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from pydantic import JsonValue
from safetensors.torch import load, save

from ralm.storage.atomic import storage_errors, write_atomically

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"checkpoint-(\d+)-([0-9a-f]+)\.safetensors", re.ASCII)
_FACTS: Final = "facts"
_KEPT: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Tensors by name, and facts that JSON can hold, after some step."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    facts: dict[str, JsonValue]


class Checkpoints:
    """The last two checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for partial in folder.glob("checkpoint-*.partial"):  # of a killed process
            partial.unlink()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove all but the last two; StorageError if the disk is full."""
        own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in checkpoint.tensors.items()}
        content = save(own, {_FACTS: json.dumps(checkpoint.facts)})
        file = self._folder / f"checkpoint-{checkpoint.step}-{_hash(content)}.safetensors"
        with storage_errors(file):
            write_atomically(file, content)
        for _, old in [*self._files()][_KEPT:]:
            old.unlink()

    def latest(self) -> Checkpoint | None:
        """The last whole checkpoint; None if there is none."""
        for step, file in self._files():
            content = file.read_bytes()
            if file.name == f"checkpoint-{step}-{_hash(content)}.safetensors":
                header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
                return Checkpoint(step, load(content), json.loads(header["__metadata__"][_FACTS]))
            _LOG.warning("%s is damaged: an earlier checkpoint is used, or the training begins again.", file)
        return None

    def _files(self) -> Iterator[tuple[int, Path]]:
        """The steps and files of checkpoints, latest first."""
        matches = [(_NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        yield from sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
