"""Learns the weights of a mixer from signals: those that make the text most likely.

    sum over targets t of  log  sum over d of  w(d, t) p(x_t | [d; x_<t])            maximised over the parameters of w

w is that of `LearnedWeights`: six numbers, fitted by BFGS in float64, with a weak normal prior that keeps them finite
where examples do not decide them. The signals hold all that is needed, so nothing is scored. Letters of shapes: E
examples, K predictions (the candidates, then the one without a passage), N tokens (the last 32 of the prefix, then the
targets), T targets, F features, P parameters.
"""

from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.reading.mixers import EVIDENCE, MIXER_KIND, LearnedWeights, log_sum_exp, mixer_features
from ralm.records import DoubleArray, IntArray
from ralm.storage import outputs
from ralm.training.fitting import HeldOutGain, held_out_gains, maximise, usable_examples, write_fit
from ralm.training.options import MixerTrainingOptions
from ralm.training.signals import Signals, open_signals

_LOGARITHMS: Final = 3
"""The first parameters are logarithms: of 1 / temperature, eta and decay. The weights of the other features follow."""
_MIDDLE: Final = np.array([0.0, np.log(0.5), np.log(8.0), 0.0, 0.0, 0.0])
"""The means of the prior. Scores are measured from their mean, in units of their standard deviation."""
_SPREAD: Final = 3.0
"""The standard deviation of the prior: it counts less than one target."""
_STARTS: Final = [
    _MIDDLE + np.array([log_slope, log_eta, 0, 0, 0, 0]) for log_slope in (-1.5, 0, 1.5) for log_eta in (-1.5, 0)
]
"""There may be several maxima; the best one that is reached from these is taken."""
_SIMILARITY: Final = LearnedWeights(temperature=1, rank=0, overlap=0, none=0, eta=0, decay=1)
_LOWEST: Final = -1e4
"""Stands for the log-probability of an impossible token of the prefix, so that all sums are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMixer:
    """The `weights` that were learned from `examples`, and what they gain on `held_out` others, of `documents`
    documents: over no passage, over similarity weights, and over these at `best_temperature`, which is fitted too."""

    weights: LearnedWeights
    best_temperature: float
    examples: int
    held_out: int
    documents: int
    over_none: HeldOutGain
    over_similarity: HeldOutGain
    over_best_temperature: HeldOutGain

    @property
    def gains(self) -> bool:
        """Whether the weights are better than similarity weights at any temperature, and than no passage."""
        return min(self.over_none.low, self.over_similarity.low, self.over_best_temperature.low) > 0

    def as_json(self) -> dict[str, JsonValue]:
        """For a manifest."""
        return {**asdict(self), "gains": self.gains}


def train_mixer(
    signals: Signals | Path | str,
    out: Path | str,
    options: MixerTrainingOptions | None = None,
    *,
    force: bool = False,
) -> TrainedMixer:
    """Learn the weights of a mixer from signals, and write the folder `out`; it takes seconds.

    Raises UsageError if the signals have too few usable examples or documents, FolderExistsError if `out` exists and
    `force` is not set, and what `open_signals` raises.
    """
    options = options or MixerTrainingOptions()
    outputs.check_output(Path(out), kind=MIXER_KIND, force=force)
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    training_E, held_out_E = usable_examples(signals, options)
    names_E = np.array(signals.documents_E)
    if shared := {*names_E[training_E]} & {*names_E[held_out_E]}:
        raise UsageError(
            f"{signals.description} has too few documents to hold some out whole ({len({*names_E})}; {min(shared)} "
            "would be on both sides): measure more of them, or give another `seed`."
        )
    trained = _trained(
        read_examples(signals, training_E, options.documents),
        read_examples(signals, held_out_E, options.documents),
        np.unique(names_E[held_out_E], return_inverse=True)[1],
        signals.tokens_E[held_out_E],
        options.seed,
    )
    settings: dict[str, JsonValue] = {MIXER_KIND.name: asdict(trained.weights), "results": trained.as_json()}
    write_fit(out, MIXER_KIND, settings, signals, options, trained.examples + trained.held_out, force=force)
    return trained


@dataclass(frozen=True, slots=True, eq=False)
class MixtureExamples:
    """What a mixer sees of E examples, float64: `log_probs_EKN`, 0 after the last target of a shorter continuation, and
    `features_EKF`, which are the score, log(rank), log(1 + overlap), and 1 without a passage. `there_EK` says which
    predictions are not padding."""

    log_probs_EKN: DoubleArray
    features_EKF: DoubleArray
    there_EK: NDArray[np.bool_]

    @property
    def targets(self) -> int:
        """The number of targets of the longest example."""
        return self.log_probs_EKN.shape[2] - EVIDENCE

    def log_likelihood(self, weights: LearnedWeights, *, plain: bool = True) -> DoubleArray:
        """The log-likelihood of each target (E x T); `plain` is whether no passage has a place."""
        return self.with_gradient(_parameters(weights), plain=plain)[0]

    def with_gradient(self, parameters_P: DoubleArray, *, plain: bool = True) -> tuple[DoubleArray, DoubleArray]:
        """The log-likelihood of each target (E x T), and the gradient of its mean by the parameters (P)."""
        slope, eta, decay = np.exp(parameters_P[:_LOGARITHMS])
        ages_NT = np.arange(self.targets) + EVIDENCE - np.arange(EVIDENCE + self.targets)[:, None]
        shares_NT = np.where((ages_NT >= 1) & (ages_NT <= EVIDENCE), np.exp(-ages_NT / decay), 0.0)
        evidence_EKT = self.log_probs_EKN @ shares_NT
        by_decay_EKT = self.log_probs_EKN @ (shares_NT * ages_NT / decay)
        there_EK = self.there_EK.copy()
        if not plain:  # an example without candidates is read without a passage all the same
            there_EK[there_EK[:, :-1].any(axis=1), -1] = False
        linear_F = np.append(slope, parameters_P[_LOGARITHMS:])
        weighted_EKT = np.where(there_EK, self.features_EKF @ linear_F, -np.inf)[:, :, None] + eta * evidence_EKT
        joint_EKT = weighted_EKT + self.log_probs_EKN[:, :, EVIDENCE:]
        joint_ET, weighted_ET = log_sum_exp(joint_EKT, axis=1), log_sum_exp(weighted_EKT, axis=1)
        # posterior minus weight, the derivative by the logarithm of a weight before it is normalised
        apart_EKT = np.exp(joint_EKT - joint_ET[:, None]) - np.exp(weighted_EKT - weighted_ET[:, None])
        by_F = np.einsum("ekt,ekf->f", apart_EKT, self.features_EKF)
        by_eta, by_decay = (eta * (apart_EKT * one).sum() for one in (evidence_EKT, by_decay_EKT))
        gradient_P = np.array([slope * by_F[0], by_eta, by_decay, *by_F[1:]])
        return joint_ET - weighted_ET, gradient_P / joint_ET.size


def fit_weights(examples: MixtureExamples) -> LearnedWeights:
    """The weights that make the targets most likely."""
    scaled_EKF = examples.features_EKF.copy()
    scores = scaled_EKF[:, :-1, 0][examples.there_EK[:, :-1]]
    middle, spread = (float(scores.mean()), float(scores.std()) or 1.0) if len(scores) else (0.0, 1.0)
    scaled_EKF[:, :-1, 0] = (scaled_EKF[:, :-1, 0] - middle) / spread
    scaled = replace(examples, features_EKF=scaled_EKF)
    size = scaled.log_probs_EKN[:, 0, EVIDENCE:].size

    def function(parameters_P: DoubleArray) -> tuple[float, DoubleArray]:
        likelihood_ET, gradient_P = scaled.with_gradient(parameters_P)
        away_P = (parameters_P - _MIDDLE) / _SPREAD**2 / size
        return float(likelihood_ET.mean() - (parameters_P - _MIDDLE) @ away_P / 2), gradient_P - away_P

    _, parameters_P = max((maximise(function, start_P) for start_P in _STARTS), key=itemgetter(0))
    slope, eta, decay = np.exp(parameters_P[:_LOGARITHMS]).tolist()
    rank, overlap, none = parameters_P[_LOGARITHMS:].tolist()
    temperature = spread / slope
    return LearnedWeights(
        temperature=temperature, rank=rank, overlap=overlap, none=none + middle / temperature, eta=eta, decay=decay
    )


def fit_temperature(examples: MixtureExamples) -> float:
    """The temperature of similarity weights that makes the targets most likely."""
    rest_P = _parameters(_SIMILARITY)[1:]

    def function(slope_1: DoubleArray) -> tuple[float, DoubleArray]:
        likelihood_ET, gradient_P = examples.with_gradient(np.append(slope_1, rest_P), plain=False)
        return float(likelihood_ET.mean()), gradient_P[:1]

    starts = (np.array([-np.log(temperature)]) for temperature in (1.0, 4.0, 16.0))
    _, [log_slope] = max((maximise(function, start_1) for start_1 in starts), key=itemgetter(0))
    return float(np.exp(-log_slope))


def _parameters(weights: LearnedWeights) -> DoubleArray:
    """What is fitted, from weights."""
    with np.errstate(divide="ignore"):  # eta may be 0
        logarithms = np.log([1 / weights.temperature, weights.eta, weights.decay])
    return np.append(logarithms, [weights.rank, weights.overlap, weights.none])


def _trained(
    training: MixtureExamples, held_out: MixtureExamples, document_E: IntArray, tokens_E: IntArray, seed: int
) -> TrainedMixer:
    """The weights of the training examples, and their gains on the others, which are of numbered documents and have so
    many tokens."""
    weights, temperature = fit_weights(training), fit_temperature(training)
    best = replace(_SIMILARITY, temperature=temperature)
    others = (held_out.log_likelihood(one, plain=False) for one in (_SIMILARITY, best))
    compared = (held_out.log_probs_EKN[:, -1, EVIDENCE:], *others)
    learned_ET = held_out.log_likelihood(weights)
    gains_ER = np.stack([(learned_ET - one).sum(axis=1) for one in compared], axis=1)
    over_none, over_similarity, over_best = held_out_gains(gains_ER, tokens_E, document_E, seed)
    return TrainedMixer(
        weights=weights,
        best_temperature=temperature,
        examples=len(training.there_EK),
        held_out=len(document_E),
        documents=len(np.unique(document_E)),
        over_none=over_none,
        over_similarity=over_similarity,
        over_best_temperature=over_best,
    )


def read_examples(signals: Signals, examples_E: IntArray, documents: int) -> MixtureExamples:
    """What a mixer sees of some examples (rising) with their first `documents` candidates.

    Raises UsageError if no example has as many, or if their prefixes were not scored, DamagedFolderError if the tables
    cannot be read.
    """
    if documents > signals.width:
        raise UsageError(
            f"`documents` {documents} are more than the {signals.width} candidates of an example in "
            f"{signals.description}: lower it, or measure more candidates."
        )
    table = signals.candidates(examples_E)
    if not pc.max(pc.list_value_length(table["before"])).as_py():
        raise UsageError(f"{signals.description} was measured without `evidence`: measure it again, with it.")
    example_R = table["example"].to_numpy()
    column_R = np.arange(len(table)) - np.searchsorted(example_R, example_R) - 1  # -1, the last: without a passage
    read_R = column_R < documents
    table, place_R = table.filter(read_R), (np.searchsorted(examples_E, example_R[read_R]), column_R[read_R])
    targets, shape = int(signals.tokens_E[examples_E].max()), (len(examples_E), documents + 1)
    log_probs_EKN, features_EKF = np.zeros((*shape, EVIDENCE + targets)), np.zeros((*shape, 4))
    scores_EK, overlap_EK, there_EK = np.zeros(shape), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    before_RN, targets_RT = _padded(table["before"], EVIDENCE), _padded(table["log_probs"], targets, after=True)
    log_probs_EKN[place_R] = np.maximum(np.hstack([before_RN, targets_RT]), _LOWEST)
    scores_EK[place_R], overlap_EK[place_R] = (table[name].fill_null(0).to_numpy() for name in ("score", "overlap"))
    there_EK[place_R] = True
    features_EKF[:, :-1, :-1] = mixer_features(scores_EK[:, :-1], overlap_EK[:, :-1])
    features_EKF[:, -1, -1] = 1
    return MixtureExamples(log_probs_EKN, features_EKF, there_EK)


def _padded(lists: pa.ChunkedArray, width: int, *, after: bool = False) -> DoubleArray:
    """Lists of numbers as rows (float64), with zeros before those that are shorter, or after them."""
    rows_RN = np.zeros((len(lists), width))
    counts_R = pc.list_value_length(lists).to_numpy()
    places_N = width - 1 - np.arange(width) if after else np.arange(width)
    rows_RN[places_N >= width - counts_R[:, None]] = pc.list_flatten(lists).to_numpy()
    return rows_RN
