"""Mixers: the weights with which the predictions after several passages become one.

    p(x_t | x_<t) = sum over d of  w(d, t) p(x_t | [d; x_<t])          (REPLUG, Eq. 2, where w is lambda(d, x))

`PosteriorWeights` are Bayes' rule with forgetting: a passage that predicted the last tokens well gets more weight.

    w(d, t) = w(d, 0) exp( eta sum over s < t of exp(-(t - s) / decay) log p(x_s | [d; x_<s]) ),  normalised over d

`LearnedWeights` add features of the passages and a place for no passage, all with fitted weights.

The evidence for a target is read from the tokens before it alone. Weights are float64, in log space. Letters of shapes:
K predictions of a row, T targets, E tokens of evidence.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, MixerError, UsageError
from ralm.options import Needs, Option, check_options
from ralm.protocols import Documents, LanguageModel, Mixer, WritingModel, traits_of
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray, MixerNeeds, Predictions, PromptPrefix
from ralm.storage.manifest import open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.validation import check_number, scores_given_texts

MixerName = Literal["similarity", "uniform", "posterior", "prior", "learned"]
Start: TypeAlias = Literal["similarity", "uniform"]
EVIDENCE: Final = 32
"""Tokens before each target that are evidence, unless an option says otherwise; `overlap_of` looks at as many."""
MIXER_KIND: Final = FolderKind("mixer")
_ROUNDING: Final = 1e-5
_NOTHING: Final = MixerNeeds()


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
    """Which mixer weighs the predictions of an ensemble; `posterior` and `prior` are the options of these mixers."""

    mixer: Annotated[
        MixerName,
        Option(
            "Weights of an ensemble: softmax of the scores of retrieval (similarity: REPLUG), all the same (uniform), "
            "by how well each passage predicted the tokens before (posterior), similarity with a place for the "
            "prediction without passages (prior), or as `ralm train mixer` learned (learned)."
        ),
    ] = "similarity"
    posterior: Annotated[
        PosteriorWeights,
        Option("Weights by evidence.", needs=Needs('`mixer="posterior"`', lambda mixing: mixing.mixer == "posterior")),
    ] = field(default_factory=PosteriorWeights)
    prior: Annotated[
        PriorWeights,
        Option("A place for no passage.", needs=Needs('`mixer="prior"`', lambda mixing: mixing.mixer == "prior")),
    ] = field(default_factory=PriorWeights)
    learned: Annotated[
        Path | None,
        Option(
            "Learned: the weights, a folder that `ralm train mixer` made.",
            flag="mixer-weights",
            needs=Needs('`mixer="learned"`', lambda mixing: mixing.mixer == "learned"),
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.mixer == "learned" and self.learned is None:
            raise UsageError('`mixer="learned"` needs the folder that `ralm train mixer` made: give `learned` too.')

    @property
    def by_similarity(self) -> bool:
        """Whether the temperature of retrieval scores has an effect."""
        return not (
            self.mixer in ("uniform", "learned") or (self.mixer == "posterior" and self.posterior.start == "uniform")
        )

    def chosen(self, temperature: float) -> Mixer:
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


class CheckedMixer:
    """A mixer with its optional members, whose weights are checked."""

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.needs: MixerNeeds = getattr(mixer, "needs", _NOTHING)
        self._name = type(mixer).__name__

    def begin(
        self,
        prompt_prefixes: Sequence[PromptPrefix],
        scores: dict[int, float],
        documents: Documents,
        before: IntArray | None,
    ) -> list[PromptPrefix]:
        """The prompt prefixes of a row with the scores of their passages and, if it is needed, the overlap with the
        tokens `before` the row and the one without a passage. Their weights are final unless the mixer needs
        evidence. UsageError if nothing is before the row that the mixer compares passages with."""
        given = [replace(one, score=scores.get(one.passage, 0.0)) for one in prompt_prefixes]
        if self.needs.overlap:
            if before is None:
                raise UsageError(
                    f"the mixer {self._name} compares passages with the text before the row, and there is none here: "
                    "choose another mixer."
                )
            given = [replace(one, overlap=overlap_of(one.tokens, before[-EVIDENCE:])) for one in given]
        if self.needs.plain:
            given.append(PromptPrefix(documents[NO_PASSAGE], log_weight=-np.inf, score=-np.inf))
        if self.needs.evidence:
            return given
        [log_weights_K] = self.log_weights(given, np.zeros((1, len(given), 0), dtype=np.float32))
        return [replace(one, log_weight=weight) for one, weight in zip(given, log_weights_K.tolist(), strict=True)]

    def log_weights(self, prompt_prefixes: Sequence[PromptPrefix], evidence_TKE: FloatArray) -> DoubleArray:
        """The logarithms of the weights (float64, T x K) for each target, given the log-probabilities of the tokens
        before it. MixerError if the mixer does not give weights that sum to 1."""
        log_weights_K = np.array([one.log_weight for one in prompt_prefixes], dtype=np.float64)
        scores_K = np.array([one.score for one in prompt_prefixes], dtype=np.float64)
        overlap_K = np.array([one.overlap for one in prompt_prefixes], dtype=np.int64)
        targets, count, _ = evidence_TKE.shape
        given = np.asarray(self.mixer.log_weights(Predictions(log_weights_K, scores_K, evidence_TKE, overlap_K)))
        if given.shape not in ((count,), (targets, count)) or given.dtype.kind != "f":
            self._reject(f"{given.dtype} values of shape {given.shape} for {targets} targets and {count} predictions")
        total_T = np.exp(np.atleast_2d(given)).sum(axis=1)
        if not (abs(total_T - 1) < _ROUNDING).all():
            self._reject(f"weights that sum to {total_T[int(abs(total_T - 1).argmax())]:g}, not 1")
        return np.broadcast_to(given.astype(np.float64), (targets, count))

    def require_fixed(self, what: str) -> None:
        """Raise UsageError if the weights depend on evidence, which `what` does not read."""
        if self.needs.evidence:
            raise UsageError(
                f"the mixer {self._name} weighs passages by the tokens before each target, and {what} does not read "
                "these: choose another mixer."
            )

    def require_every_token(self, model: WritingModel) -> None:
        """Raise UsageError if the weights depend on generated tokens whose log-probabilities the model may not give."""
        self.require_exact(model)
        if self.needs.evidence and model.tier not in ("all", "chosen"):
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {self._name} needs the log-probability "
                "of each generated token after every passage: choose another mixer."
            )

    def require_exact(self, model: LanguageModel) -> None:
        """Raise UsageError if the weights depend on log-probabilities that the model does not return."""
        if self.needs.evidence and (traits_of(model).bound or not scores_given_texts(model)):
            raise UsageError(
                f"{model.name} does not return log-probabilities of given texts, which are the evidence of the mixer "
                f"{self._name}: choose another mixer, or use a server that returns them."
            )

    def _reject(self, fault: str) -> None:
        raise MixerError(f"the mixer {self._name} gives {fault}; see `Mixer` for what it should give.")


@dataclass(slots=True, eq=False)
class Evidence:
    """The last log-probabilities (float32, K x N) after the prompt prefixes of a text that is being continued."""

    mixer: CheckedMixer
    log_probs_KN: FloatArray

    def weighed(self, prompt_prefixes: Sequence[PromptPrefix]) -> Sequence[PromptPrefix]:
        """The prompt prefixes with their weights for the next token."""
        next_KN = np.hstack([self.log_probs_KN, np.zeros((len(prompt_prefixes), 1), dtype=np.float32)])
        [log_weights_K] = self.mixer.log_weights(prompt_prefixes, evidence_of(next_KN, 1, self.mixer.needs.evidence))
        pairs = zip(prompt_prefixes, log_weights_K.tolist(), strict=True)
        return [replace(one, log_weight=weight) for one, weight in pairs]

    def add(self, log_probs_K: FloatArray) -> None:
        """Add the token that was drawn."""
        kept_KN = self.log_probs_KN[:, max(0, self.log_probs_KN.shape[1] + 1 - self.mixer.needs.evidence) :]
        self.log_probs_KN = np.hstack([kept_KN, log_probs_K.astype(np.float32)[:, None]])


def evidence_of(log_probs_KN: FloatArray, targets: int, count: int) -> FloatArray:
    """The log-probabilities (float32, T x K x E) of the `count` tokens before each of the last `targets` of N tokens;
    0 before the first of the N."""
    before = np.zeros((len(log_probs_KN), count), dtype=np.float32)
    padded_KN = np.hstack([before, log_probs_KN])[:, -(targets + count) : -1]
    return np.lib.stride_tricks.sliding_window_view(padded_KN, count, axis=1).swapaxes(0, 1)


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
