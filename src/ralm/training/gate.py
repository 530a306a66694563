"""Fits a gate to signals: whether the first passage will help, from what is known before it is read.

    sum over examples of  |gain|  log sigmoid(+-f)          maximised over the weights of f, + where the gain is above 0

An example counts by how much it gains or loses, since a wrong decision costs as much. BFGS in float64 with a weak
normal prior. The threshold is the highest that keeps 95% of what the best one gains, and whose loss cannot be told from
0, on the training examples. Letters of shapes: E examples, F features, R thresholds.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.gate import GATE_KIND, LearnedGate, check_gate, hit_features, plain_features
from ralm.reading.tokens import first_tokens
from ralm.records import NO_PASSAGE, DoubleArray, IntArray
from ralm.storage import outputs
from ralm.training.fitting import HeldOutGain, held_out_gains, maximise, usable_examples, write_fit
from ralm.training.options import GateOptions
from ralm.training.signals import WHERE, Signals, open_signals

_SPREAD: Final = 3.0
_THRESHOLDS: Final = 40
_MOST_LOST: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGate:
    """The `gate` that was fitted to `examples`, and what reading the first passage gains over none on `held_out` others
    of `documents` documents: `always`, where the gate opens (`gated`), for a random choice of as many (`random`), and
    where it helps (`oracle`). `loss`: always minus gated. `saved`: the share for which nothing is read."""

    gate: LearnedGate
    examples: int
    held_out: int
    documents: int
    saved: float
    always: HeldOutGain
    gated: HeldOutGain
    random: HeldOutGain
    oracle: HeldOutGain
    loss: HeldOutGain

    def as_json(self) -> dict[str, JsonValue]:
        """For a manifest."""
        return asdict(self)


def train_gate(
    signals: Signals | Path | str,
    out: Path | str,
    model: LanguageModel,
    options: GateOptions | None = None,
    *,
    force: bool = False,
) -> TrainedGate:
    """Fit a gate to signals, and write the folder `out`; the model reads each prefix once, without passages.

    Raises UsageError if the signals were measured with another model or have too few usable examples, FolderExistsError
    if `out` exists and `force` is not set, and what `open_signals` raises.
    """
    options = options or GateOptions()
    outputs.check_output(Path(out), kind=GATE_KIND, force=force)
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    _check_model(signals, model)
    check_gate(model)
    training_E, held_out_E = usable_examples(signals, options)
    features_EF = _features(signals, model, np.concatenate([training_E, held_out_E]), hits=options.hits)
    fitted_EF, tested_EF = np.split(features_EF, [len(training_E)])
    gate = fit_gate(fitted_EF, _gains(signals, training_E), _documents(signals, training_E), options.seed)
    trained = _tested(gate, tested_EF, signals, held_out_E, len(training_E), options.seed)
    settings: dict[str, JsonValue] = {GATE_KIND.name: asdict(gate), "results": trained.as_json()}
    write_fit(out, GATE_KIND, settings, signals, options, trained.examples + trained.held_out, force=force)
    return trained


def _check_model(signals: Signals, model: LanguageModel) -> None:
    """Raise UsageError if signals are of another model, wherever it runs."""
    recorded = signals.config.get("model")
    known, own = (
        {name: value for name, value in config.items() if name not in WHERE}
        for config in (recorded if isinstance(recorded, dict) else {}, dict(Scorer.of(model).config))
    )
    if known != own:
        raise UsageError(
            f"{signals.description} was measured with another language model than {model.name}, whose predictions the "
            "gate would see: give the same."
        )


def _features(signals: Signals, model: LanguageModel, examples_E: IntArray, *, hits: bool) -> DoubleArray:
    """What a gate sees of examples (E x F), in their order."""
    prefixes = signals.table("prefix_tokens")["prefix_tokens"].take(examples_E).to_pylist()
    candidates = signals.config.get("candidates")
    bos: Any = candidates.get("bos", "auto") if isinstance(candidates, dict) else "auto"
    contexts = [np.array(one, dtype=np.int64) for one in prefixes]
    features_EF = plain_features(first_tokens(model.tokenizer, bos), contexts, Scorer.of(model))
    if not hits:
        return features_EF
    there_EK = signals.passages_EK[examples_E] != NO_PASSAGE
    return np.hstack([features_EF, hit_features(signals.scores_EK[examples_E].astype(np.float64), there_EK)])


def _gains(signals: Signals, examples_E: IntArray) -> DoubleArray:
    """What the first passage gains over none, in nats; 0 without one."""
    there_E = signals.passages_EK[examples_E, 0] != NO_PASSAGE
    first_E = np.where(there_E, signals.log_probs_EK[examples_E, 0], 0)
    return np.where(there_E, first_E - signals.baseline_E[examples_E], 0.0)


def _documents(signals: Signals, examples_E: IntArray) -> IntArray:
    """The number of the document of each example."""
    return np.unique(np.array(signals.documents_E)[examples_E], return_inverse=True)[1]


def fit_gate(features_EF: DoubleArray, gains_E: DoubleArray, document_E: IntArray, seed: int = 0) -> LearnedGate:
    """The gate that keeps most of the gain, with the highest threshold whose loss cannot be told from 0."""
    middle_F, spread_F = features_EF.mean(axis=0), features_EF.std(axis=0)
    scaled_EF = (features_EF - middle_F) / np.where(spread_F > 0, spread_F, 1)
    inputs_EF = np.column_stack([np.ones(len(scaled_EF)), scaled_EF])
    size = max(1e-12, float(np.abs(gains_E).sum()))
    weights_E, signs_E = np.abs(gains_E) / size, np.sign(gains_E)

    def function(weights_F: DoubleArray) -> tuple[float, DoubleArray]:
        margin_E = signs_E * (inputs_EF @ weights_F)
        away_F = weights_F / _SPREAD**2 / len(gains_E)
        value = -float(weights_E @ np.logaddexp(0, -margin_E)) - float(weights_F @ away_F) / 2
        slope_E = weights_E * signs_E * np.exp(-np.logaddexp(0, margin_E))
        return value, inputs_EF.T @ slope_E - away_F

    _, best_F = maximise(function, np.zeros(inputs_EF.shape[1]))
    scale_F = np.divide(best_F[1:], spread_F, out=np.zeros_like(spread_F), where=spread_F > 0)
    bias = float(best_F[0] - scale_F @ middle_F)
    sums_E = features_EF @ scale_F + bias
    threshold = _threshold(sums_E, gains_E, document_E, seed)
    return LearnedGate(bias=bias, weights=scale_F.tolist(), threshold=threshold)


def _threshold(sums_E: DoubleArray, gains_E: DoubleArray, document_E: IntArray, seed: int) -> float:
    """The highest threshold that keeps about as much of the gain as the best one."""
    inside = np.quantile(sums_E, np.linspace(0, 1, _THRESHOLDS, endpoint=False)[1:])
    levels_R = np.append(sums_E.min() - 1, inside)
    kept_ER = np.where(sums_E[:, None] > levels_R[None, :], gains_E[:, None], 0.0)
    best = int(kept_ER.sum(axis=0).argmax())
    most = _MOST_LOST * float(kept_ER[:, best].mean())
    ones_E = np.ones(len(gains_E), dtype=np.int64)
    losses = held_out_gains(kept_ER[:, best, None] - kept_ER[:, best:], ones_E, document_E, seed)
    return max(float(levels_R[best + place]) for place, one in enumerate(losses) if one.low <= 0 and one.gain <= most)


def _tested(
    gate: LearnedGate, features_EF: DoubleArray, signals: Signals, examples_E: IntArray, trained: int, seed: int
) -> TrainedGate:
    """What a gate keeps of the gain on examples that did not decide it."""
    gains_E, tokens_E = _gains(signals, examples_E), signals.tokens_E[examples_E]
    opens_E: NDArray[np.bool_] = gate.opens(features_EF)
    chance_E = np.full(len(gains_E), opens_E.mean())  # in expectation
    gated_E = np.where(opens_E, gains_E, 0)
    columns = (gains_E, gated_E, gains_E * chance_E, np.maximum(gains_E, 0), gains_E - gated_E)
    document_E = _documents(signals, examples_E)
    always, gated, random, oracle, loss = held_out_gains(np.stack(columns, axis=1), tokens_E, document_E, seed)
    return TrainedGate(
        gate=gate,
        examples=trained,
        held_out=len(examples_E),
        documents=len(np.unique(document_E)),
        saved=float(1 - opens_E.mean()),
        always=always,
        gated=gated,
        random=random,
        oracle=oracle,
        loss=loss,
    )
