"""The mixer of a reader where it is used: checks its weights, and keeps the evidence that it is given.

`CheckedMixer` wraps any mixer of `mixers.py`, `contrast.py` or your own. Letters of shapes: K predictions of a row, T
targets, E tokens of evidence, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np

from ralm.errors import MixerError, UsageError
from ralm.protocols import DistributionMixer, Documents, LanguageModel, Mixer, WritingModel, traits_of
from ralm.reading.ensemble import log_weights_of, mixture
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Predictions, PromptPrefix
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
                f"the mixer {self._name} has neither `log_weights` nor `log_probs`, or no `config` or `evidence`: see "
                "`Mixer` and `DistributionMixer`."
            )
        self.evidence = mixer.evidence if isinstance(mixer, Mixer) else 0

    def looks_at(self, prompt_prefixes: Sequence[PromptPrefix]) -> bool:
        """Return whether the prediction after these prompt prefixes depends on more than their weights."""
        if self.contrasts:
            return any(one.passages for one in prompt_prefixes)
        return self.evidence > 0 and len(prompt_prefixes) > 1

    def begin(
        self, prompt_prefixes: Sequence[PromptPrefix], scores: dict[int, float], documents: Documents
    ) -> list[PromptPrefix]:
        """Return the prompt prefixes of a row with the scores of their passages, and for contrast the one without a
        passage. Their weights are final unless the mixer needs evidence."""
        prompt_prefixes = [replace(one, score=scores.get(one.passage, 0.0)) for one in prompt_prefixes]
        if self.contrasts:
            return [*prompt_prefixes, PromptPrefix(documents[NO_PASSAGE], log_weight=-np.inf, score=-np.inf)]
        if self.evidence:
            return prompt_prefixes
        no_evidence_TKE = np.zeros((1, len(prompt_prefixes), 0), dtype=np.float32)
        [log_weights_K] = self._log_weights(prompt_prefixes, no_evidence_TKE)
        return weighed(prompt_prefixes, log_weights_K)

    def weights_by_evidence(
        self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KN: FloatArray, targets: int
    ) -> DoubleArray:
        """Return the logarithms of the weights (float64, T x K) for the last T of N tokens, with the log-probabilities
        of the tokens before each as evidence. MixerError if it does not give weights that sum to 1."""
        return self._log_weights(prompt_prefixes, evidence_of(log_probs_KN, targets, self.evidence))

    def next_token(self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KV: FloatArray) -> FloatArray:
        """Return the contrasted log-probabilities (float32, V) of the next token; the last of the K predictions is the
        one without a passage. MixerError if they are no distribution."""
        assert isinstance(self.mixer, DistributionMixer), "only contrast makes distributions"
        average_V = mixture(log_probs_KV, log_weights_of(prompt_prefixes)).astype(np.float64)
        log_probs_V = np.asarray(self.mixer.log_probs(average_V, log_probs_KV[-1].astype(np.float64)))
        if log_probs_V.shape != average_V.shape:
            self._reject(f"log-probabilities of shape {log_probs_V.shape} for a vocabulary of {len(average_V)}")
        total = float(np.exp(log_probs_V.astype(np.float64)).sum())
        if not abs(total - 1) < _ROUNDING:
            self._reject(f"probabilities that sum to {total:g}, not 1")
        return log_probs_V.astype(np.float32)

    def _log_weights(self, prompt_prefixes: Sequence[PromptPrefix], evidence_TKE: FloatArray) -> DoubleArray:
        assert isinstance(self.mixer, Mixer), "contrast has no weights"
        targets, count, _ = evidence_TKE.shape
        predictions = Predictions(
            log_weights_K=np.array([one.log_weight for one in prompt_prefixes], dtype=np.float64),
            scores_K=np.array([one.score for one in prompt_prefixes], dtype=np.float64),
            evidence_TKE=evidence_TKE,
        )
        log_weights = np.asarray(self.mixer.log_weights(predictions))
        if log_weights.shape not in ((count,), (targets, count)) or log_weights.dtype.kind != "f":
            self._reject(
                f"{log_weights.dtype} values of shape {log_weights.shape} for {targets} targets and {count} predictions"
            )
        total_T = np.exp(np.atleast_2d(log_weights)).sum(axis=1)
        if not (abs(total_T - 1) < _ROUNDING).all():
            self._reject(f"weights that sum to {total_T[int(abs(total_T - 1).argmax())]:g}, not 1")
        return np.broadcast_to(log_weights.astype(np.float64), (targets, count))

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
        raise MixerError(f"the mixer {self._name} gives {fault}; see `{protocol}` for what it should give.")


@dataclass(slots=True, eq=False)
class Evidence:
    """The last log-probabilities (float32, K x N) after the prompt prefixes of a text that is being continued."""

    mixer: CheckedMixer
    log_probs_KN: FloatArray

    def weighed(self, prompt_prefixes: Sequence[PromptPrefix]) -> Sequence[PromptPrefix]:
        """The prompt prefixes with their weights for the next token."""
        next_KN = np.hstack([self.log_probs_KN, np.zeros((len(prompt_prefixes), 1), dtype=np.float32)])
        [log_weights_K] = self.mixer.weights_by_evidence(prompt_prefixes, next_KN, 1)
        return weighed(prompt_prefixes, log_weights_K)

    def add(self, log_probs_K: FloatArray) -> None:
        """Add the token that was drawn."""
        kept_KN = self.log_probs_KN[:, max(0, self.log_probs_KN.shape[1] + 1 - self.mixer.evidence) :]
        self.log_probs_KN = np.hstack([kept_KN, log_probs_K.astype(np.float32)[:, None]])


def weighed(prompt_prefixes: Sequence[PromptPrefix], log_weights_K: DoubleArray) -> list[PromptPrefix]:
    """The prompt prefixes with these weights."""
    pairs = zip(prompt_prefixes, log_weights_K.tolist(), strict=True)
    return [replace(one, log_weight=weight) for one, weight in pairs]


def evidence_of(log_probs_KN: FloatArray, targets: int, count: int) -> FloatArray:
    """The log-probabilities (float32, T x K x E) of the `count` tokens before each of the last `targets` of N tokens;
    0 before the first of the N."""
    before = np.zeros((len(log_probs_KN), count), dtype=np.float32)
    padded_KN = np.hstack([before, log_probs_KN])[:, -(targets + count) : -1]
    return np.lib.stride_tricks.sliding_window_view(padded_KN, count, axis=1).swapaxes(0, 1)
