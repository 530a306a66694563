"""What a language model makes of the passages that a retriever finds for some examples, at one moment of a training.

Letters of shapes: B examples, K candidates.
"""

import logging
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.protocols import Retriever
from ralm.records import FloatArray, Hits, IntArray
from ralm.storage.atomic import storage_errors

_LOG: Final = logging.getLogger(__name__)
_DAMAGED: Final = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)


class Examples(Protocol):
    """Prefixes with continuations, and a language model that says which passages help.

    Examples are given by number (int64, B), from 0.
    """

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides the examples, and their scores with given passages."""

    @property
    def documents_E(self) -> Sequence[str]:
        """The ids of the documents that the examples are from."""

    def queries(self, examples_B: IntArray) -> Sequence[str]:
        """What the retriever reads of examples."""

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        """The k best passages for each example among those that it may be shown."""

    def score(self, examples_B: IntArray, hits: Hits) -> NDArray[np.float64]:
        """The mean log-probability of a token of each continuation behind each hit (float64, B x K), padded with
        -inf."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The candidates of examples (int64, padded with `NO_PASSAGE`), and how likely a token of the continuation is
    behind each (float32, padded with -inf)."""

    examples_B: IntArray
    passages_BK: IntArray
    lm_scores_BK: FloatArray

    def of(self, example: int) -> tuple[IntArray, FloatArray]:
        """The candidates of one of the examples, and their scores."""
        place = int(np.flatnonzero(self.examples_B == example)[0])
        return self.passages_BK[place], self.lm_scores_BK[place]


def measure(examples: Examples, examples_B: IntArray, retriever: Retriever, k: int) -> Measured:
    """Retrieve candidates of examples, and score them."""
    hits = examples.candidates(examples_B, retriever, k)
    return Measured(examples_B, hits.numbers_QK, examples.score(examples_B, hits).astype(np.float32))


def measured_once(file: Path, examples: Examples, examples_B: IntArray, retriever: Retriever, k: int) -> Measured:
    """What an earlier call kept in a file, or else what `measure` gives, which is kept there."""
    try:
        with np.load(file, allow_pickle=False) as kept:
            return Measured(**{one.name: kept[one.name] for one in fields(Measured)})
    except FileNotFoundError:
        pass
    except _DAMAGED as error:
        _LOG.warning("%s is damaged (%s): its scores are computed again.", file, error)
    measured = measure(examples, examples_B, retriever, k)
    partial = file.with_name(f"{file.name}.partial")
    with storage_errors(file), partial.open("wb") as stream:
        np.savez(stream, **{one.name: getattr(measured, one.name) for one in fields(Measured)})
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
    return measured
