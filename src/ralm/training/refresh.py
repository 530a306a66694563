"""Encodes the passages again during a training, and keeps the versions of the vectors on disk.

version-N/    the vectors of all passages as the encoders were after N steps; made atomically
encoders/     these encoders, while a version is made
encoding/     chunks of vectors meanwhile; a training that was killed reuses them
"""

import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue
from transformers import TrainerCallback

from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE
from ralm.retrieval.build import encode_passages
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import VECTORS, load_encoder, trained_options
from ralm.retrieval.dense.search import Dense, open_vectors
from ralm.retrieval.index import Index
from ralm.retrieval.vectors import RemoteEncoding
from ralm.storage.atomic import storage_errors, sync, sync_one
from ralm.terminal import no_progress
from ralm.training.options import RetrieverTrainingOptions

_KEPT: Final = 2

_logger = logging.getLogger(__name__)


class Refresh(TrainerCallback):  # type: ignore[misc]
    """Encodes the passages again every so many steps, at a checkpoint, so that a training that resumes has the weights
    of the version. `retriever` searches the last vectors, at first those that the index has; `probes` are queries whose
    hits before and after are compared."""

    def __init__(
        self,
        encoder: SentenceEncoder,
        index: Index,
        first: Dense,
        probes: Sequence[str],
        options: RetrieverTrainingOptions,
        device: str,
        ahead: RemoteEncoding | None = None,
    ) -> None:
        self.retriever = first
        self.refreshes: list[JsonValue] = []
        """For each time that the passages were encoded again: the step, and the share of the hits that stayed."""
        self._version = 0
        """The number of steps after which the vectors were encoded that are searched."""
        self._encoder = encoder
        self._index = index
        self._probes = probes
        self._options = options
        self._device = device
        self._ahead = ahead
        self._versions: Versions

    def begin(self, work: Path, step: int) -> None:
        """Keep versions in a folder, for a training that begins or resumes after this step."""
        self._versions = Versions(work, self._index, self._options.vectors, self._device, self._ahead)
        self._versions.forget_after(step)

    def on_step_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Encode the passages again if it is time."""
        step, every = state.global_step, self._options.refresh_every
        if every is not None and step % args.save_steps == 0 and step - self._version >= every:
            with no_progress():  # the bar of the training is there already
                self._refresh(step)

    def state(self) -> dict[str, JsonValue]:
        """The version that is searched, and the refreshes so far."""
        return {"version": self._version, "refreshes": [*self.refreshes]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.refreshes = state["refreshes"]
        if state["version"]:
            self.retriever, self._version = self._open(state["version"]), state["version"]

    def _refresh(self, step: int) -> None:
        """Encode the passages with the encoders as they are, and search these vectors from now on."""
        self._versions.make(step, self._encoder.save)
        new = self._open(step)
        shared = overlap(self.retriever, new, self._probes, self._options.candidates)
        self.refreshes.append({"step": step, "overlap": round(shared, 4)})
        _logger.info(
            "step %s: the passages were encoded again; %s of the hits are as before", f"{step:,}", f"{shared:.0%}"
        )
        self.retriever, self._version = new, step

    def _open(self, version: int) -> Dense:
        """The retriever over a version."""
        file = self._versions.vectors(version)
        return Dense(open_vectors(file, file, len(self._index.passages)), self._encoder)


def overlap(one: Retriever, other: Retriever, queries: Sequence[str], k: int) -> float:
    """The share of the first k passages of a retriever that another one has among its first k, over all queries."""
    first_QK, second_QK = (retriever.retrieve(queries, k).numbers_QK for retriever in (one, other))
    found_QK = first_QK != NO_PASSAGE
    again_QK = (first_QK[:, :, None] == second_QK[:, None, :]).any(axis=2) & found_QK
    return float(again_QK.sum() / max(1, found_QK.sum()))


class Versions:
    """Versions of the vectors of an index in a folder, with the options of the set `vectors`; passages are encoded on
    `device`, unless `ahead` has encoded them on other machines."""

    def __init__(
        self, folder: Path, index: Index, vectors: str | None, device: str, ahead: RemoteEncoding | None = None
    ) -> None:
        self._folder = folder
        self._index = index
        self._like = index.encoder_options(vectors)
        self._stored = index.vector_sets.get(vectors, index.path).options
        self._device = device
        self._ahead = ahead

    def vectors(self, number: int) -> Path:
        """The file of the vectors of a version."""
        return self._path(number) / VECTORS

    def make(self, number: int, save: Callable[[Path], None]) -> None:
        """Encode all passages with the encoders that `save` writes into a folder, unless that was done; the last two
        versions stay, and those that a checkpoint needs. Raises StorageError if the disk is full."""
        version, encoders, chunks = self._path(number), self._folder / "encoders", self._folder / "encoding"
        partial = version.with_name(f"{version.name}.partial")
        if version.is_dir():
            return
        with storage_errors(version):
            for unfinished in (partial, encoders):
                shutil.rmtree(unfinished, ignore_errors=True)
            encoders.mkdir()
            save(encoders)
            encoder = load_encoder(trained_options(encoders, self._like), device=self._device)
            before = self._ahead(self._index, encoder, chunks) if self._ahead else 0
            encode_passages(self._index.passages, partial, chunks, encoder, self._stored, before=before)
            sync(partial)
            partial.rename(version)
            sync_one(self._folder)
        for unneeded in (encoders, chunks, *map(self._path, self._unneeded())):
            shutil.rmtree(unneeded, ignore_errors=True)

    def forget_after(self, step: int) -> None:
        """Remove versions of weights that a training, which goes on after this step, does not have."""
        for number in self._numbers():
            if number > step:
                shutil.rmtree(self._path(number), ignore_errors=True)

    def _unneeded(self) -> Sequence[int]:
        """The versions but for the last two, and those from the one on that the oldest checkpoint searches."""
        numbers = self._numbers()
        oldest = min((int(folder.name.partition("-")[2]) for folder in self._folder.glob("checkpoint-*")), default=None)
        begins = numbers[-1:] if oldest is None else [number for number in numbers if number < oldest][-1:]
        return [number for number in numbers[:-_KEPT] if number < max(begins, default=0)]

    def _numbers(self) -> Sequence[int]:
        names = (re.fullmatch(r"version-([0-9]+)", entry.name) for entry in self._folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def _path(self, number: int) -> Path:
        return self._folder / f"version-{number:08d}"
