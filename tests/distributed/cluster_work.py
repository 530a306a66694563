"""What machines of a cluster are told to do in tests; they import it by name."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ralm.records import FloatArray, ScoringSequence


@dataclass(frozen=True)
class Loads:
    """Loads a model that gives each token its id as its log-probability. Its process ends at token 13."""

    name: str = "a fake model"
    label: str = "the model a fake model"

    def __call__(self) -> "Loads":
        return self

    def facts(self, _: object) -> dict[str, Any]:
        known = {"max_length": 100, "vocabulary": 100, "merges_prefixes": True, "end_tokens": frozenset()}
        return {"device": "cpu", **known}

    def score(self, passes: Sequence[ScoringSequence]) -> list[FloatArray]:
        if any(13 in one.tokens_N for one in passes):
            os._exit(1)
        return [-one.tokens_N[one.targets_P].astype(np.float32) for one in passes]


@dataclass(frozen=True)
class Differs:
    """Loads something else in every process."""

    label: str = "the model here"

    def __call__(self) -> dict[str, int]:
        return {"weights": os.getpid(), "layers": 2}

    def facts(self, made: dict[str, int]) -> dict[str, int]:
        return made


@dataclass(frozen=True)
class EndsAsItLoads:
    """Ends the process that loads it."""

    label: str = "a model that is too large"

    def __call__(self) -> None:
        os._exit(1)

    def facts(self, _: None) -> None:
        return None


def wait(*_: object) -> None:
    time.sleep(0.2)
