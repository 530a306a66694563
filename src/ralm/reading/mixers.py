"""Mixers: the weights with which the predictions after several passages become one.

    p(x_t | x_<t) = sum over d of  w(d, t) p(x_t | [d; x_<t])          (REPLUG, Eq. 2, where w is lambda(d, x))

`PosteriorWeights` are Bayes' rule with forgetting: a passage that predicted the last tokens well gets more weight.

    w(d, t) = w(d, 0) exp( eta sum over s < t of exp(-(t - s) / decay) log p(x_s | [d; x_<s]) ),  normalised over d

`EntropyWeights` are softmax(-H(p_d) / temperature) over the entropies of the predictions (arXiv 2406.17519).
`LearnedWeights` add features of the passages and a place for no passage, all with fitted weights.

The evidence for a target is read from the tokens before it alone. Weights are float64, in log space. Letters of shapes:
K predictions of a row, T targets, E tokens of evidence.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, UsageError
from ralm.options import Needs, Option, check_options
from ralm.protocols import DistributionMixer, Mixer
from ralm.reading.contrast import AdaptiveContrast, Backoff, Contrast
from ralm.records import DoubleArray, FloatArray, IntArray, MixerNeeds, Predictions
from ralm.storage.manifest import open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.validation import check_number

MixerName = Literal[
    "similarity", "uniform", "posterior", "prior", "learned", "entropy", "contrast", "adaptive-contrast", "backoff"
]
Start: TypeAlias = Literal["similarity", "uniform"]
EVIDENCE: Final = 32
"""Tokens before each target that are evidence, unless an option says otherwise; `overlap_of` looks at as many."""
MIXER_KIND: Final = FolderKind("mixer")


@dataclass(frozen=True, slots=True)
class SimilarityWeights:
    """The weights of the reader; an `Ensemble` gives the softmax of the retrieval scores (REPLUG, Eq. 3)."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"mixer": "similarity"}

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights of the reader."""
        return given.log_weights_K


@dataclass(frozen=True, slots=True)
class UniformWeights:
    """The same weight for every prediction."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"mixer": "uniform"}

    def log_weights(self, given: Predictions) -> DoubleArray:
        """1 / K each."""
        return _uniform(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class PosteriorWeights:
    """Weights by how well each passage predicted the last `evidence` tokens: Bayes' rule with forgetting.

    `start` are the weights before any evidence. With `eta` 0 they stay; with `eta` 1 and a large `decay` the weights
    are the posterior of a Bayesian who read these tokens. Raises UsageError if a value is out of range.
    """

    eta: Annotated[float, Option("Posterior: the weight of the evidence.", maximum=100)] = 0.7
    decay: Annotated[float, Option("Posterior: evidence so many tokens ago counts 1/e.", minimum=0.1, maximum=1e6)] = (
        8.0
    )
    evidence: Annotated[int, Option("Posterior: tokens before each target that are evidence.", maximum=1024)] = EVIDENCE
    start: Annotated[Start, Option("Posterior: the weights before any evidence.", flag="start-weights")] = "similarity"

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "posterior", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The evidence."""
        return MixerNeeds(evidence=self.evidence)

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights for each target (T x K)."""
        start_K = given.log_weights_K if self.start == "similarity" else _uniform(given)
        return _normalised(_updated(start_K, given.evidence_TKE, self.eta, self.decay))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorWeights:
    """Adds the prediction without passages: softmax over [scores / `temperature`, `none_score`]. Raises UsageError if
    a value is out of range."""

    none_score: Annotated[
        float,
        Option(
            "Prior: the score of the prediction without passages; the temperature does not divide it.",
            minimum=-1e6,
            maximum=1e6,
        ),
    ] = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_options(self)
        check_number("temperature", self.temperature, minimum=0, maximum=1e6, above=True)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "prior", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The prediction without passages."""
        return MixerNeeds(plain=True)

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The softmax of the scores and of `none_score`."""
        return _normalised(np.append(given.scores_K[:-1] / self.temperature, self.none_score))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyWeights:
    """Weights by the certainty of each prediction, softmax(-entropy / `temperature`) for each target (arXiv 2406.17519,
    which multiplies the predictions where this averages them). Raises UsageError if `temperature` is out of range."""

    temperature: Annotated[
        float,
        Option(
            "Entropy: temperature of the softmax over entropies in nats.",
            minimum=1e-3,
            maximum=1e6,
            flag="entropy-temperature",
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"mixer": "entropy", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """The entropies."""
        return MixerNeeds(summaries=True)

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights for each target (T x K)."""
        assert given.summaries_TK2 is not None
        certainty_TK = -given.summaries_TK2[..., 0].astype(np.float64) / self.temperature
        return np.asarray(certainty_TK - np.logaddexp.reduce(certainty_TK, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedWeights:
    """Weights that `ralm train mixer` fitted: softmax of [score / `temperature` + `rank` log(rank) + `overlap` log(1 +
    overlap)] over the passages and `none` without a passage, times evidence as in `PosteriorWeights`.

    Raises UsageError if a value is out of range.
    """

    temperature: float
    rank: float
    overlap: float
    none: float
    eta: float
    decay: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            minimum = -np.inf if name in ("rank", "overlap", "none") else 0
            check_number(name, value, minimum=minimum, maximum=np.inf, above=name != "eta")

    @property
    def config(self) -> dict[str, JsonValue]:
        """All weights, by name."""
        return {"mixer": "learned", **asdict(self)}

    @property
    def needs(self) -> MixerNeeds:
        """Everything."""
        return MixerNeeds(evidence=EVIDENCE, plain=True, overlap=True)

    def log_weights(self, given: Predictions) -> DoubleArray:
        """The weights for each target (T x K)."""
        features_KF = mixer_features(given.scores_K[:-1], given.overlap_K[:-1])
        passages_K = features_KF @ [1 / self.temperature, self.rank, self.overlap]
        return _normalised(_updated(np.append(passages_K, self.none), given.evidence_TKE, self.eta, self.decay))


def mixer_features(scores: DoubleArray, overlap: IntArray) -> DoubleArray:
    """What `LearnedWeights` know of passages (... x K) in the order of their ranks (float64, ... x K x 3): score,
    log(rank), log(1 + overlap)."""
    log_rank_K = np.log(np.arange(1, scores.shape[-1] + 1))
    return np.stack(np.broadcast_arrays(scores, log_rank_K, np.log1p(overlap)), axis=-1)


def open_mixer(path: Path | str) -> LearnedWeights:
    """Read a folder that `ralm train mixer` wrote.

    Raises NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    path = Path(path)
    manifest = open_consistently(path, lambda: read_manifest(path, kind=MIXER_KIND))
    weights: Any = manifest.settings.get(MIXER_KIND.name)
    try:
        return LearnedWeights(**weights)
    except (TypeError, UsageError) as error:
        raise DamagedFolderError(
            f"{path} is damaged: its manifest does not record the weights; train it again."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerOptions:
    """Which mixer an ensemble has; the other fields are the options of the mixers of these names."""

    mixer: Annotated[
        MixerName,
        Option(
            "Weights of an ensemble: softmax of the scores of retrieval (similarity: REPLUG), all the same (uniform), "
            "by how well each passage predicted the tokens before (posterior), similarity with a place for the "
            "prediction without passages (prior), as `ralm train mixer` learned (learned), or by the certainty of each "
            "prediction (entropy). Or their average contrasted with the prediction without passages (contrast: CAD; "
            "adaptive-contrast: AdaCAD), or replaced by it where that is more certain (backoff)."
        ),
    ] = "similarity"
    posterior: Annotated[
        PosteriorWeights,
        Option("Weights by evidence.", needs=Needs.value("mixer", "posterior")),
    ] = field(default_factory=PosteriorWeights)
    prior: Annotated[
        PriorWeights,
        Option("A place for no passage.", needs=Needs.value("mixer", "prior")),
    ] = field(default_factory=PriorWeights)
    learned: Annotated[
        Path | None,
        Option(
            "Learned: the weights, a folder that `ralm train mixer` made.",
            flag="mixer-weights",
            needs=Needs.value("mixer", "learned"),
        ),
    ] = None
    entropy: Annotated[
        EntropyWeights,
        Option("Weights by certainty.", needs=Needs.value("mixer", "entropy")),
    ] = field(default_factory=EntropyWeights)
    contrast: Annotated[Contrast, Option("Contrast.", needs=Needs.value("mixer", "contrast"))] = field(
        default_factory=Contrast
    )
    adaptive_contrast: Annotated[
        AdaptiveContrast,
        Option(
            "Adaptive contrast.",
            needs=Needs.value("mixer", "adaptive-contrast"),
        ),
    ] = field(default_factory=AdaptiveContrast)
    backoff: Annotated[Backoff, Option("Backoff.", needs=Needs.value("mixer", "backoff"))] = field(
        default_factory=Backoff
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.mixer == "learned" and self.learned is None:
            raise UsageError('`mixer="learned"` needs the folder that `ralm train mixer` made: give `learned` too.')

    @property
    def by_similarity(self) -> bool:
        """Whether the temperature of retrieval scores has an effect."""
        return not (
            self.mixer in ("uniform", "learned", "entropy")
            or (self.mixer == "posterior" and self.posterior.start == "uniform")
        )

    def chosen(self, temperature: float) -> Mixer | DistributionMixer:
        """The selected mixer, for scores that are divided by this temperature."""
        match self.mixer:
            case "similarity":
                return SimilarityWeights()
            case "uniform":
                return UniformWeights()
            case "posterior":
                return self.posterior
            case "prior":
                return replace(self.prior, temperature=temperature)
            case "learned":
                assert self.learned is not None, "checked when it was made"
                return open_mixer(self.learned)
            case "entropy":
                return self.entropy
            case "contrast":
                return self.contrast
            case "adaptive-contrast":
                return self.adaptive_contrast
            case "backoff":
                return self.backoff


def overlap_of(passage: IntArray, prefix: IntArray) -> int:
    """How many of the last tokens of a prefix (int64) stand in the passage (int64) in a row, at one place."""
    ends, count = np.arange(len(passage)), 0
    while count < len(prefix):
        ends = ends[ends >= count]
        ends = ends[passage[ends - count] == prefix[-1 - count]]
        if not len(ends):
            break
        count += 1
    return count


def log_sum_exp(values: DoubleArray, axis: int = -1) -> DoubleArray:
    """log(sum(exp)) over an axis; minus infinity if all values are."""
    highest = values.max(axis=axis)
    highest = np.where(np.isneginf(highest), 0.0, highest)  # -inf minus -inf would be NaN
    with np.errstate(divide="ignore"):
        return np.asarray(highest + np.log(np.exp(values - np.expand_dims(highest, axis)).sum(axis=axis)))


def _updated(start_K: DoubleArray, evidence_TKE: FloatArray, eta: float, decay: float) -> DoubleArray:
    """The logarithms of weights (T x K), not normalised, after evidence that is forgotten."""
    shares_E = eta * np.exp(-np.arange(evidence_TKE.shape[2], 0, -1) / decay)
    counted_E = shares_E > 0  # 0 times the log-probability of an impossible token would be NaN
    weighted_TK = start_K + evidence_TKE[:, :, counted_E].astype(np.float64) @ shares_E[counted_E]
    impossible_T = np.isneginf(weighted_TK).all(axis=1)
    weighted_TK[impossible_T] = start_K  # the tokens before were impossible after every passage
    return weighted_TK


def _uniform(given: Predictions) -> DoubleArray:
    count = len(given.log_weights_K)
    return np.full(count, -np.log(count))


def _normalised(log_weights: DoubleArray) -> DoubleArray:
    """Logarithms of weights that sum to 1 over the last axis."""
    return np.asarray(log_weights - log_sum_exp(log_weights)[..., None])
