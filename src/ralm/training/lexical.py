"""Fits the weights of the lexical reranker to signals (In-Context RALM, Eq. 9), in about a second.

    sum over examples of  log  sum over d of  p_rank(d) p(y | [d; x])         maximised over the weights w of f

p_rank is the softmax of f over the candidates (`ralm.reranking.lexical`). BFGS in float64, with a weak normal prior
that keeps weights finite where examples do not decide them. Letters of shapes: E examples, K candidates, F features.
"""

from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.reading.mixers import log_sum_exp
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray
from ralm.reranking.lexical import BUILT_IN, DECAY, LEXICAL_KIND, LexicalWeights, lexical_features
from ralm.reranking.zero_shot import decayed
from ralm.retrieval.index import Index
from ralm.storage import outputs
from ralm.training.fitting import HeldOutGain, held_out_gains, maximise, usable_examples, write_fit
from ralm.training.options import LexicalOptions
from ralm.training.signals import Signals, index_of, open_signals

_SPREAD: Final = 3.0
"""The standard deviation of the prior of weights of features with a standard deviation of 1."""

_CONSTANT: Final = 1e-9
"""A feature whose standard deviation is so small a share of its largest value is constant within rounding; its weight
is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedLexical:
    """The `weights` that were fitted to `examples`, and what the chosen passage gains on `held_out` others, of
    `documents` documents: the retriever's first over no passage, and the built-in and the fitted weights over that
    first."""

    weights: LexicalWeights
    examples: int
    held_out: int
    documents: int
    first_over_none: HeldOutGain
    built_in_over_first: HeldOutGain
    fitted_over_first: HeldOutGain

    @property
    def gains(self) -> bool:
        """Whether the fitted weights choose better than the retriever."""
        return self.fitted_over_first.low > 0

    def as_json(self) -> dict[str, JsonValue]:
        """For a manifest."""
        return {**asdict(self), "gains": self.gains}


def train_lexical(
    signals: Signals | Path | str,
    out: Path | str,
    options: LexicalOptions | None = None,
    *,
    index: Index | Path | str | None = None,
    force: bool = False,
) -> TrainedLexical:
    """Fit the weights of a lexical reranker to signals, and write the folder `out`.

    `index` is the one that the signals were measured with; None is the folder that they name. Raises UsageError if it
    is another one, or the signals have too few usable examples, or no evidence although the likelihood should count;
    FolderExistsError if `out` exists and `force` is not set, and what `open_signals` raises.
    """
    options = options or LexicalOptions()
    outputs.check_output(Path(out), kind=LEXICAL_KIND, force=force)
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = index_of(signals, index)
    training_E, held_out_E = usable_examples(signals, options)
    features_EKF = features_of(signals, index, np.concatenate([training_E, held_out_E]), likelihood=options.likelihood)
    fitted_EKF, tested_EKF = np.split(features_EKF, [len(training_E)])
    weights = fit_lexical(fitted_EKF, signals.log_probs_EK[training_E])
    log_probs_EK, baseline_E = signals.log_probs_EK[held_out_E], signals.baseline_E[held_out_E]
    first_E, built_in_E, chosen_E = (
        _read(log_probs_EK, scores_EK, baseline_E)
        for scores_EK in (-tested_EKF[:, :, 1], BUILT_IN.scores(tested_EKF), weights.scores(tested_EKF))
    )
    names_E = np.array(signals.documents_E)[held_out_E]
    document_E = np.unique(names_E, return_inverse=True)[1]
    gains_ER = np.stack([first_E - baseline_E, built_in_E - first_E, chosen_E - first_E], axis=1)
    over_none, built_in, fitted = held_out_gains(gains_ER, signals.tokens_E[held_out_E], document_E, options.seed)
    trained = TrainedLexical(
        weights=weights,
        examples=len(training_E),
        held_out=len(held_out_E),
        documents=len({*names_E}),
        first_over_none=over_none,
        built_in_over_first=built_in,
        fitted_over_first=fitted,
    )
    settings: dict[str, JsonValue] = {"weights": asdict(weights), "results": trained.as_json()}
    write_fit(out, LEXICAL_KIND, settings, signals, options, trained.examples + trained.held_out, force=force)
    return trained


def features_of(signals: Signals, index: Index, examples_E: IntArray, *, likelihood: bool) -> DoubleArray:
    """The features of the candidates of examples (float64, E x K x F), in the order of the examples; 0 for padding.

    Raises UsageError if the likelihood should count and the signals have no evidence, DamagedFolderError if tables
    cannot be read.
    """
    prefixes = signals.texts("prefix").take(examples_E).to_pylist()
    features_EKF = np.zeros((len(examples_E), signals.width, 6))
    for features_KF, prefix, example in zip(features_EKF, prefixes, examples_E.tolist(), strict=True):
        numbers = [number for number in signals.passages_EK[example].tolist() if number != NO_PASSAGE]
        contents = [index.passages[number].contents for number in numbers]
        scores = signals.scores_EK[example, : len(numbers)].tolist()
        features_KF[: len(numbers)] = lexical_features(prefix, contents, scores)
    if likelihood:
        place_of = {example: place for place, example in enumerate(examples_E.tolist())}
        table = signals.candidates(examples_E)
        table = table.filter(table["passage"].is_valid())
        column_of = [0] * len(examples_E)
        for example, before in zip(table["example"].to_pylist(), table["before"].to_pylist(), strict=True):
            if not before:
                raise UsageError(f"{signals.description} was measured without `evidence`: measure it again, with it.")
            place = place_of[example]
            features_EKF[place, column_of[place], 5] = decayed(np.array(before, dtype=np.float32), DECAY)
            column_of[place] += 1
    return features_EKF


def fit_lexical(features_EKF: DoubleArray, log_probs_EK: DoubleArray) -> LexicalWeights:
    """The weights that minimise Eq. 9, given the log-probability of each continuation after each candidate, padded with
    -inf."""
    there_EK = np.isfinite(log_probs_EK)
    spread_F = features_EKF[there_EK].std(axis=0) if there_EK.any() else np.zeros(features_EKF.shape[2])
    spread_F[spread_F < _CONSTANT * np.abs(features_EKF).max(axis=(0, 1), initial=0)] = 0
    scaled_EKF = features_EKF / np.where(spread_F > 0, spread_F, 1)
    size = max(1, len(log_probs_EK))

    def function(weights_F: DoubleArray) -> tuple[float, DoubleArray]:
        scores_EK = np.where(there_EK, scaled_EKF @ weights_F, -np.inf)
        joint_EK = np.where(there_EK, scores_EK + log_probs_EK, -np.inf)
        total_E, joint_E = log_sum_exp(scores_EK, axis=1), log_sum_exp(joint_EK, axis=1)
        used_E = there_EK.any(axis=1)
        apart_EK = np.exp(joint_EK[used_E] - joint_E[used_E, None]) - np.exp(scores_EK[used_E] - total_E[used_E, None])
        away_F = weights_F / _SPREAD**2 / size
        value = float((joint_E[used_E] - total_E[used_E]).sum() / size - weights_F @ away_F / 2)
        return value, np.einsum("ek,ekf->f", apart_EK, scaled_EKF[used_E]) / size - away_F

    built_in_F = np.array([*asdict(BUILT_IN).values()]) * spread_F
    _, best_F = max(
        (maximise(function, start_F) for start_F in (np.zeros_like(spread_F), built_in_F)), key=itemgetter(0)
    )
    fitted_F = np.divide(best_F, spread_F, out=np.zeros_like(best_F), where=spread_F > 0)
    return replace(BUILT_IN, **dict(zip(asdict(BUILT_IN), fitted_F.tolist(), strict=True)))


def _read(log_probs_EK: DoubleArray, scores_EK: DoubleArray | FloatArray, baseline_E: DoubleArray) -> DoubleArray:
    """The log-probability of each continuation after the candidate with the highest score; without candidates, that
    without a passage."""
    there_EK = np.isfinite(log_probs_EK)
    chosen_E = np.where(there_EK, scores_EK, -np.inf).argmax(axis=1)
    found_E = log_probs_EK[np.arange(len(chosen_E)), chosen_E]
    return np.where(there_EK.any(axis=1), found_E, baseline_E)
