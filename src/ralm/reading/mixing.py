"""The mixer of a reader where it is used: checks its weights, and keeps the evidence that it is given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np

from ralm.errors import PartError, UsageError
from ralm.protocols import DistributionMixer, Documents, LanguageModel, Mixer, WritingModel, traits_of
from ralm.reading.mixture import mix, similarity_log_weights
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, PromptPrefix, Readings
from ralm.validation import scores_given_texts

_ROUNDING: Final = 1e-5


class CheckedMixer:
    """A mixer whose weights or distributions are checked.

    `evidence` is how many tokens before each target it looks at. One that `contrasts` is a `DistributionMixer`: it
    makes the distribution of the next token, which is no average.
    """

    def __init__(self, mixer: Mixer | DistributionMixer) -> None:
        self.mixer = mixer
        self.contrasts = isinstance(mixer, DistributionMixer)
        self._name = type(mixer).__name__
        if not isinstance(mixer, Mixer | DistributionMixer):
            raise UsageError(
                f"the mixer {self._name} has neither `__call__` nor `log_probs`, or no `config` or `evidence`: see "
                "`Mixer` and `DistributionMixer`."
            )
        self.evidence = mixer.evidence if isinstance(mixer, Mixer) else 0

    def looks_at(self, readings: Readings) -> bool:
        """Return whether the prediction of a row depends on more than the weights of its readings."""
        if self.contrasts:
            return any(one.passages for one in readings)
        return self.evidence > 0 and len(readings) > 1

    def readings(self, prompt_prefixes: Sequence[PromptPrefix], documents: Documents) -> Readings:
        """Return the prompt prefixes of a row with their weights before any evidence, and for contrast the one without
        a passage, which has no weight. PartError if the weights do not sum to 1."""
        if self.contrasts:
            prompt_prefixes = [*prompt_prefixes, PromptPrefix(documents[NO_PASSAGE], score=-np.inf)]
        scores_K = np.array([one.score for one in prompt_prefixes], dtype=np.float64)
        if self.contrasts:
            return Readings(prompt_prefixes, similarity_log_weights(scores_K))
        return Readings(prompt_prefixes, self._log_weights(scores_K, np.zeros((len(scores_K), 0), dtype=np.float32)))

    def weights_by_evidence(self, readings: Readings, log_probs_KN: FloatArray, targets: int) -> DoubleArray:
        """Return the logarithms of the weights (float64, K x T) for the last T of N tokens, with the log-probabilities
        of the tokens before each as evidence. PartError if it does not give weights that sum to 1."""
        evidence_TKE = evidence_of(log_probs_KN, targets, self.evidence)
        scores_K = readings.scores_K
        return np.stack([self._log_weights(scores_K, evidence_KE) for evidence_KE in evidence_TKE], axis=1)

    def next_token(self, readings: Readings, log_probs_KV: FloatArray) -> FloatArray:
        """Return the contrasted log-probabilities (float32, V) of the next token; the last of the K predictions is the
        one without a passage. PartError if they are no distribution."""
        assert isinstance(self.mixer, DistributionMixer), "only contrast makes distributions"
        average_V = mix(log_probs_KV, readings.log_weights_K)
        log_probs_V = np.asarray(self.mixer.log_probs(average_V, log_probs_KV[-1].astype(np.float64)))
        if log_probs_V.shape != average_V.shape:
            self._reject(f"log-probabilities of shape {log_probs_V.shape} for a vocabulary of {len(average_V)}")
        total = float(np.exp(log_probs_V.astype(np.float64)).sum())
        if not abs(total - 1) < _ROUNDING:
            self._reject(f"probabilities that sum to {total:g}, not 1")
        return log_probs_V.astype(np.float32)

    def _log_weights(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:
        assert isinstance(self.mixer, Mixer), "contrast has no weights"
        log_weights_K = np.asarray(self.mixer(scores_K, evidence_KE))
        if log_weights_K.shape != scores_K.shape or log_weights_K.dtype.kind != "f":
            self._reject(f"{log_weights_K.dtype} values of shape {log_weights_K.shape} for {len(scores_K)} readings")
        total = float(np.exp(log_weights_K).sum())
        if not abs(total - 1) < _ROUNDING:
            self._reject(f"weights that sum to {total:g}, not 1")
        return log_weights_K.astype(np.float64, copy=False)

    def require_average(self, what: str) -> None:
        """Raise UsageError if the mixer makes distributions of the next token, which `what` does not use."""
        if self.contrasts:
            raise UsageError(
                f"the mixer {self._name} makes the distribution of the next token to generate text, and {what} reads "
                "given tokens: choose another mixer."
            )

    def require_every_token(self, model: WritingModel) -> None:
        """Raise UsageError if the mixer needs log-probabilities of generated tokens that the model may not give."""
        self.require_exact(model)
        if self.contrasts and model.tier != "all":
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {self._name} needs whole distributions: "
                "choose another mixer, or a model that runs in this process."
            )
        if self.evidence and model.tier not in ("all", "chosen"):
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {self._name} needs the log-probability "
                "of each generated token after every passage: choose another mixer."
            )

    def require_exact(self, model: LanguageModel) -> None:
        """Raise UsageError if the weights depend on log-probabilities that the model does not return."""
        if (self.evidence or self.contrasts) and (traits_of(model).bound or not scores_given_texts(model)):
            raise UsageError(
                f"{model.name} does not return log-probabilities of given texts, which are the evidence of the mixer "
                f"{self._name}: choose another mixer, or use a server that returns them."
            )

    def _reject(self, fault: str) -> NoReturn:
        protocol = "DistributionMixer" if self.contrasts else "Mixer"
        raise PartError(f"the mixer {self._name} gives {fault}; see `{protocol}` for what it should give.")


@dataclass(slots=True, eq=False)
class Evidence:
    """The last log-probabilities (float32, K x N) after the prompt prefixes of a text that is being continued."""

    mixer: CheckedMixer
    log_probs_KN: FloatArray

    def weighed(self, readings: Readings) -> Readings:
        """The readings with their weights for the next token."""
        next_KN = np.hstack([self.log_probs_KN, np.zeros((len(readings), 1), dtype=np.float32)])
        log_weights_K1 = self.mixer.weights_by_evidence(readings, next_KN, 1)
        return replace(readings, log_weights_K=log_weights_K1[:, 0])

    def add(self, log_probs_K: FloatArray) -> None:
        """Add the token that was drawn."""
        kept_KN = self.log_probs_KN[:, max(0, self.log_probs_KN.shape[1] + 1 - self.mixer.evidence) :]
        self.log_probs_KN = np.hstack([kept_KN, log_probs_K.astype(np.float32)[:, None]])


def evidence_of(log_probs_KN: FloatArray, targets: int, count: int) -> FloatArray:
    """The log-probabilities (float32, T x K x E) of the `count` tokens before each of the last `targets` of N tokens;
    0 before the first of the N."""
    before = np.zeros((len(log_probs_KN), count), dtype=np.float32)
    padded_KN = np.hstack([before, log_probs_KN])[:, -(targets + count) : -1]
    return np.lib.stride_tricks.sliding_window_view(padded_KN, count, axis=1).swapaxes(0, 1)
