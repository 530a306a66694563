"""Encodes the passages again during a training, and keeps the versions of the vectors on disk.

version-N/    the vectors of all passages as the encoders were after N steps; made atomically
encoding/     chunks of vectors, while a version is made; a training that was killed reuses them
"""

import logging
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ralm.protocols import Retriever
from ralm.retrieval.build import encode_passages
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import VECTORS
from ralm.retrieval.dense.search import Dense, open_vectors
from ralm.retrieval.index import Index
from ralm.storage.atomic import storage_errors, sync, sync_one
from ralm.terminal import no_progress
from ralm.training.options import RetrieverTrainingOptions, TrainingOptions

_logger = logging.getLogger(__name__)


class Refresh(TrainerCallback):  # type: ignore[misc]
    """A callback that encodes the passages again at some checkpoints; `retriever` searches the last vectors."""

    def __init__(
        self, encoder: SentenceEncoder, index: Index, options: RetrieverTrainingOptions, training: TrainingOptions
    ) -> None:
        self.retriever: Retriever = index.dense(vectors=options.vectors, encoder=encoder)
        self._encoder = encoder
        self._index = index
        self._vectors = options.vectors
        checkpoints = -(-(options.refresh_every or 0) // training.evaluate_every)
        self._every = checkpoints * training.evaluate_every
        self._work: Path

    def begin(self, work: Path, step: int) -> None:
        """Keep versions in a folder, for a training that begins or resumes after this step; remove later ones."""
        self._work = work
        for number, folder in self._versions().items():
            if number > step:
                shutil.rmtree(folder)
        if version := self._searched_at(step):
            self.retriever = self._open(version)

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Encode the passages again if it is time, and search these vectors from now on."""
        step = state.global_step
        if self._every and step and step % self._every == 0:
            with no_progress():  # the bar of the training is there already
                self.make_version(step)
            self.retriever = self._open(step)
            _logger.info("step %s: the passages were encoded again", f"{step:,}")

    def make_version(self, step: int) -> None:
        """Encode all passages, unless that was done, and remove versions that no checkpoint searches."""
        version, chunks = self._folder(step), self._work / "encoding"
        partial = version.with_name(f"{version.name}.partial")
        if version.is_dir():
            return
        with storage_errors(version):
            shutil.rmtree(partial, ignore_errors=True)
            stored = self._index.vector_sets.get(self._vectors, self._index.path).options
            encode_passages(self._index.passages, partial, chunks, self._encoder, stored)
            sync(partial)
            partial.rename(version)
            sync_one(self._work)
        checkpoints = [int(folder.name.partition("-")[2]) for folder in self._work.glob("checkpoint-*")]
        oldest = self._searched_at(min(checkpoints, default=step))
        unneeded = [folder for number, folder in self._versions().items() if number < oldest]
        for folder in (chunks, *unneeded):
            shutil.rmtree(folder, ignore_errors=True)

    def _searched_at(self, step: int) -> int:
        """Return the version that is searched at the checkpoint of a step; 0 for the vectors of the index."""
        return (step - 1) // self._every * self._every if self._every and step else 0

    def _open(self, version: int) -> Dense:
        """Return the retriever over a version."""
        file = self._folder(version) / VECTORS
        return Dense(open_vectors(file, file, len(self._index.passages)), self._encoder)

    def _versions(self) -> dict[int, Path]:
        return {int(folder.name.partition("-")[2]): folder for folder in self._work.glob("version-????????")}

    def _folder(self, version: int) -> Path:
        return self._work / f"version-{version:08d}"
