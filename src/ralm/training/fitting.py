"""Fits a few weights to signals, and says what they gain on held-out documents.

Letters of shapes: E examples, R readings, P parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.evaluation.bootstrap import bootstrap_means, interval, sums_of_units
from ralm.records import DoubleArray, IntArray
from ralm.runs.run import environment
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import FolderKind, new_folder
from ralm.training.options import FittingOptions
from ralm.training.signals import Signals, evenly_spaced

_STEPS: Final = 500
_HALVINGS: Final = 40
_LONGEST: Final = 4.0
_ARMIJO: Final = 1e-4
_FLAT: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutGain:
    """A gain on held-out examples in nats a token, with the 95% interval of a paired bootstrap over documents."""

    gain: float
    low: float
    high: float


def held_out_gains(gains_ER: DoubleArray, tokens_E: IntArray, document_E: IntArray, seed: int) -> Sequence[HeldOutGain]:
    """The gain of each reading, given the nats that it gains on each example, the tokens of the example, and the number
    of its document (from 0)."""
    sums_UR, counts_U = sums_of_units(gains_ER, document_E), np.bincount(document_E, tokens_E)
    draws_DR = bootstrap_means(sums_UR, counts_U, seed=seed)
    means = (sums_UR.sum(axis=0) / counts_U.sum()).tolist()
    return [
        HeldOutGain(gain=gain, low=low, high=high)
        for gain, (low, high) in zip(means, map(interval, draws_DR.T), strict=True)
    ]


def write_fit(
    out: Path | str,
    kind: FolderKind,
    settings: dict[str, JsonValue],
    signals: Signals,
    options: FittingOptions,
    examples: int,
    *,
    force: bool,
) -> None:
    """Write a folder of weights that were fitted: its manifest has these settings, and all that decided the weights."""
    config: dict[str, JsonValue] = {
        "signals": signals.fingerprint,
        "model": signals.config.get("model"),
        "options": asdict(options),
    }
    with new_folder(Path(out), kind=kind, force=force) as folder:
        write_manifest(
            folder,
            kind=kind,
            settings={**settings, "config": config, "environment": environment()},
            counts={"examples": examples},
        )


def usable_examples(signals: Signals, options: FittingOptions) -> tuple[IntArray, IntArray]:
    """The examples to train with and to hold out: those whose candidates are all possible, evenly chosen if there are
    more than wanted."""
    possible_E = signals.is_possible_E
    parts = [part[possible_E[part]] for part in signals.split(options.held_out, options.seed)]
    total = sum(map(len, parts))
    share = min(1.0, options.most_examples / max(1, total))
    training_E, held_out_E = (evenly_spaced(part, round(share * len(part))) for part in parts)
    if not len(training_E) or not len(held_out_E):
        raise UsageError(
            f"{signals.description} has {total:,} usable examples, which is not enough to learn from some and "
            "test on others: measure more."
        )
    return training_E, held_out_E


def maximise(
    function: Callable[[DoubleArray], tuple[float, DoubleArray]], start_P: DoubleArray
) -> tuple[float, DoubleArray]:
    """A local maximum of a function that also gives its gradient, and where it is, by BFGS from a start."""
    at_P, inverse_PP = start_P, np.eye(len(start_P))
    best, gradient_P = function(at_P)
    for _ in range(_STEPS):
        step_P = inverse_PP @ gradient_P
        step_P = step_P * min(1.0, _LONGEST / max(_FLAT, float(np.linalg.norm(step_P))))
        for halving in range(_HALVINGS):
            moved_P = step_P / 2**halving
            value, new_P = function(at_P + moved_P)
            if value >= best + _ARMIJO * float(gradient_P @ moved_P):
                break
        else:
            break  # no step is better within rounding
        change_P, at_P, best, gradient_P = gradient_P - new_P, at_P + moved_P, value, new_P
        if abs(gradient_P).max() < _FLAT:
            break
        if (curvature := float(change_P @ moved_P)) > 0:
            shift_PP = np.eye(len(at_P)) - np.outer(moved_P, change_P) / curvature
            inverse_PP = shift_PP @ inverse_PP @ shift_PP.T + np.outer(moved_P, moved_P) / curvature
    return best, at_P
