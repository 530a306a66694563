"""Checkpoints of a training, in its work folder: files that are either whole or absent.

A file is written under a temporary name, synced and renamed. Its name holds a hash of its content, so a file that was
damaged later is not used either. Nothing is pickled.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from pydantic import JsonValue
from safetensors.torch import load, save

from ralm.storage.atomic import storage_errors, write_atomically

_LOG: Final = logging.getLogger(__name__)
_CHECKPOINT: Final = "checkpoint"
_WEIGHTS: Final = "weights"
_SUFFIX: Final = ".safetensors"
_NONE: Final = "none"
_NAME: Final = re.compile(r"(?P<kind>[a-z]+)-(?P<step>\d+)-(?P<best>\d+|none)-[0-9a-f]+\.safetensors", re.ASCII)
_FACTS: Final = "facts"
_KEPT: Final = 2
_HASH_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Tensors by name, and facts that JSON can hold, after some step."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    facts: dict[str, JsonValue]


class _File(NamedTuple):
    """A file of the folder, by its name: KIND-STEP-BEST-HASH; BEST is the step of the best weights so far."""

    step: int
    best_step: int | None
    path: Path


class Checkpoints:
    """The checkpoints in a folder: the last two, and the weights that were the best when these were written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for partial in folder.glob(f"*{_SUFFIX}.partial"):  # of a killed process
            partial.unlink()

    def save(self, checkpoint: Checkpoint, best_step: int | None) -> None:
        """Write a checkpoint, then remove what neither it nor the one before it needs.

        Raises StorageError if the disk is full; the earlier checkpoints stay.
        """
        self._write(_CHECKPOINT, checkpoint, best_step)
        files = self._files(_CHECKPOINT)
        needed = {file.best_step for file in files[:_KEPT]}
        for file in [*files[_KEPT:], *(file for file in self._files(_WEIGHTS) if file.step not in needed)]:
            file.path.unlink()

    def latest(self) -> Checkpoint | None:
        """The last whole checkpoint whose best weights are there too; None if there is none."""
        for file in self._files(_CHECKPOINT):
            has_best = file.best_step is None or self.weights(file.best_step) is not None
            if has_best and (found := _read(file)) is not None:
                return found
        return None

    def save_weights(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the weights of a model after some step: the best so far. Others of this step or of a later one are of
        an attempt that was killed, and are removed."""
        own = self._write(_WEIGHTS, Checkpoint(step, tensors, {}), step)
        for file in self._files(_WEIGHTS):
            if file.step >= step and file.path != own:
                file.path.unlink()

    def weights(self, step: int) -> Mapping[str, torch.Tensor] | None:
        """The weights that were the best after some step; None if they are missing or damaged."""
        for file in self._files(_WEIGHTS):
            if file.step == step and (found := _read(file)) is not None:
                return found.tensors
        return None

    def _files(self, kind: str) -> list[_File]:
        """The files of a kind, latest first."""
        matches = [(_NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        files = [
            _File(int(match["step"]), None if match["best"] == _NONE else int(match["best"]), path)
            for match, path in matches
            if match and match["kind"] == kind
        ]
        return sorted(files, key=lambda file: (-file.step, file.path))

    def _write(self, kind: str, checkpoint: Checkpoint, best_step: int | None) -> Path:
        own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in checkpoint.tensors.items()}
        content = save(own, {_FACTS: json.dumps(checkpoint.facts)})
        best = _NONE if best_step is None else best_step
        file = self._folder / f"{kind}-{checkpoint.step}-{best}-{_hash(content)}{_SUFFIX}"
        with storage_errors(file):
            write_atomically(file, content)
        return file


def _read(file: _File) -> Checkpoint | None:
    """The content of a file; None, with a warning in the log, if it is damaged."""
    content = file.path.read_bytes()
    if not file.path.name.endswith(f"-{_hash(content)}{_SUFFIX}"):
        _LOG.warning("%s is damaged: an earlier checkpoint is used, or the training begins again.", file.path)
        return None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return Checkpoint(file.step, load(content), json.loads(header["__metadata__"][_FACTS]))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_HASH_CHARACTERS]
