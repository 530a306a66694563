"""The mixer of a reader where it is used: its needs and weights are checked, and its numbers asked for.

`CheckedMixer` wraps any mixer of `mixers.py`, `contrast.py` or your own. A mixer looks at the tokens before a target,
at summaries of its predictions, at whole distributions, or at none of them. Letters of shapes: K predictions of a row,
T targets, E tokens of evidence, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, cast

import numpy as np

from ralm.errors import MixerError, UsageError
from ralm.lm.scoring import RequestGroup, summary_of
from ralm.protocols import DistributionMixer, Documents, LanguageModel, Mixer, WritingModel, traits_of
from ralm.reading.mixers import EVIDENCE, overlap_of
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray, MixerNeeds, Predictions, PromptPrefix, Request
from ralm.validation import config_of, scores_given_texts

_ROUNDING: Final = 1e-5
_DISTRIBUTION_ROUNDING: Final = 1e-3
"""How far the float32 probabilities of a vocabulary may be from a sum of 1."""
_NOTHING: Final = MixerNeeds()

TextBefore: TypeAlias = IntArray | Callable[[Sequence[PromptPrefix]], Sequence[int]]
"""The tokens before a row (int64), or, where a prompt prefix is a whole prompt, what counts the overlap of each."""


class CheckedMixer:
    """A mixer with its optional members, whose weights are checked."""

    def __init__(self, mixer: Mixer | DistributionMixer) -> None:
        self.mixer = mixer
        self.needs: MixerNeeds = getattr(mixer, "needs", _NOTHING)
        self.averages = hasattr(mixer, "log_weights")
        self._name = type(mixer).__name__
        if self.needs.next_tokens and (self.needs.evidence or (self.needs.summaries and self.needs.distributions)):
            raise UsageError(
                f"the mixer {self._name} needs more than one of evidence, summaries and distributions: set one of them "
                "in `MixerNeeds`."
            )
        if not self.averages and not self.needs.distributions:
            raise UsageError(
                f"the mixer {self._name} has neither `log_weights`, nor `log_probs` with "
                "`MixerNeeds(distributions=True)`: see `Mixer` and `DistributionMixer`."
            )

    def looks_at(self, prompt_prefixes: Sequence[PromptPrefix]) -> bool:
        """Whether the weights of these prompt prefixes depend on log-probabilities."""
        if self.needs.distributions:
            return any(one.passages for one in prompt_prefixes)
        return bool(self.needs.evidence or self.needs.summaries) and len(prompt_prefixes) > 1

    def begin(
        self,
        prompt_prefixes: Sequence[PromptPrefix],
        scores: dict[int, float],
        documents: Documents,
        before: TextBefore,
    ) -> list[PromptPrefix]:
        """The prompt prefixes of a row with the scores of their passages and, if it is needed, the overlap with the
        text `before` the row and the one without a passage. Their weights are final unless the mixer looks at
        log-probabilities."""
        given = [replace(one, score=scores.get(one.passage, 0.0)) for one in prompt_prefixes]
        if self.needs.plain:
            given.append(PromptPrefix(documents[NO_PASSAGE], log_weight=-np.inf, score=-np.inf))
        if self.needs.overlap:
            counts = (
                before(given) if callable(before) else [overlap_of(one.tokens, before[-EVIDENCE:]) for one in given]
            )
            given = [
                replace(one, overlap=count if one.passages else 0) for one, count in zip(given, counts, strict=True)
            ]
        if self.needs.evidence or self.needs.next_tokens:
            return given
        [log_weights_K] = self.log_weights(given, 1)
        return weighed(given, log_weights_K)

    def log_weights(self, prompt_prefixes: Sequence[PromptPrefix], targets: int, **known: Any) -> DoubleArray:
        """The logarithms of the weights (float64, T x K) for each of T targets, given the fields of `Predictions` that
        the mixer needs. MixerError if it does not give weights that sum to 1."""
        count = len(prompt_prefixes)
        given = np.asarray(cast("Mixer", self.mixer).log_weights(_predictions(prompt_prefixes, targets, known)))
        if given.shape not in ((count,), (targets, count)) or given.dtype.kind != "f":
            self._reject(f"{given.dtype} values of shape {given.shape} for {targets} targets and {count} predictions")
        total_T = np.exp(np.atleast_2d(given)).sum(axis=1)
        if not (abs(total_T - 1) < _ROUNDING).all():
            self._reject(f"weights that sum to {total_T[int(abs(total_T - 1).argmax())]:g}, not 1")
        return np.broadcast_to(given.astype(np.float64), (targets, count))

    def weights_by_evidence(
        self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KN: FloatArray, targets: int
    ) -> DoubleArray:
        """The logarithms of the weights (float64, T x K) for the last T of N tokens, with the log-probabilities of the
        tokens before each as evidence."""
        evidence_TKE = evidence_of(log_probs_KN, targets, self.needs.evidence)
        return self.log_weights(prompt_prefixes, targets, evidence_TKE=evidence_TKE)

    def group(self, prompt_prefixes: Sequence[PromptPrefix], requests: Sequence[Request]) -> RequestGroup:
        """The requests of a row whose distributions are mixed; the numbers of a target are the logarithms of K weights,
        or its mixed log-probability and the logarithm of the sum of all probabilities."""
        weights = [(one.log_weight, one.score, one.overlap) for one in prompt_prefixes]
        return RequestGroup(
            requests, f"{config_of(self.mixer, 'mixer')} {weights}", partial(self._reduce, prompt_prefixes)
        )

    def mixed(self, numbers_T2: FloatArray) -> FloatArray:
        """The mixed log-probability (float32, T) of each target; MixerError if they are no distributions."""
        worst = int(np.nan_to_num(abs(numbers_T2[:, 1]), nan=np.inf).argmax())
        if not abs(numbers_T2[worst, 1]) < _DISTRIBUTION_ROUNDING:
            self._reject(f"probabilities that sum to {np.exp(numbers_T2[worst, 1]):g}, not 1")
        return numbers_T2[:, 0]

    def next_token(
        self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KV: FloatArray
    ) -> tuple[Sequence[PromptPrefix], FloatArray | None]:
        """The prompt prefixes with their weights for the next token; and its mixed log-probabilities (float32, V) if
        these are no average."""
        from ralm.lm.local.grouped import as_tensor

        if self.needs.summaries:
            [log_weights_K] = self.log_weights(prompt_prefixes, 1, summaries_TK2=summary_of(log_probs_KV)[None])
            return weighed(prompt_prefixes, log_weights_K), None
        log_probs_KTV = as_tensor(log_probs_KV)[:, None]
        if self.averages:
            [log_weights_K] = self.log_weights(prompt_prefixes, 1, log_probs_KTV=log_probs_KTV)
            return weighed(prompt_prefixes, log_weights_K), None
        mixed_TV = self._log_probs(prompt_prefixes, log_probs_KTV)
        self.mixed(np.array([[0, float(mixed_TV.logsumexp(-1))]], dtype=np.float32))
        return prompt_prefixes, mixed_TV[0].numpy()

    def _log_probs(self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KTV: Any) -> Any:
        known = {"log_probs_KTV": log_probs_KTV}
        targets, vocabulary = log_probs_KTV.shape[1:]
        mixed_TV = cast("DistributionMixer", self.mixer).log_probs(_predictions(prompt_prefixes, targets, known))
        if getattr(mixed_TV, "shape", None) != (targets, vocabulary):
            self._reject(f"{type(mixed_TV).__name__} that is not a tensor of shape ({targets}, {vocabulary})")
        return mixed_TV

    def _reduce(self, prompt_prefixes: Sequence[PromptPrefix], log_probs_KTV: Any, targets_T: Any) -> Any:
        """The numbers of `group` for each target (a torch tensor)."""
        if self.averages:
            weights_TK = self.log_weights(prompt_prefixes, len(targets_T), log_probs_KTV=log_probs_KTV)
            return log_probs_KTV.new_tensor(weights_TK)
        mixed_TV = self._log_probs(prompt_prefixes, log_probs_KTV)
        numbers_T2 = mixed_TV.logsumexp(-1, keepdim=True).repeat(1, 2)
        numbers_T2[:, 0] = mixed_TV.gather(-1, targets_T[:, None])[:, 0]
        return numbers_T2

    def require_log_probs_alone(self, what: str) -> None:
        """Raise UsageError if the mixer looks at the predictions of each token, which `what` does not give it."""
        if self.needs.next_tokens:
            raise UsageError(
                f"the mixer {self._name} looks at all that is predicted for each token: choose another mixer for "
                f"{what}."
            )

    def require_every_token(self, model: WritingModel) -> None:
        """Raise UsageError if the weights depend on generated tokens whose log-probabilities the model may not give."""
        self.require_exact(model)
        if self.needs.next_tokens and model.tier != "all":
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {self._name} needs whole distributions: "
                "choose another mixer, or a model that runs in this process."
            )
        if self.needs.evidence and model.tier not in ("all", "chosen"):
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {self._name} needs the log-probability "
                "of each generated token after every passage: choose another mixer."
            )

    def require_exact(self, model: LanguageModel) -> None:
        """Raise UsageError if the weights depend on log-probabilities that the model does not return."""
        looks = self.needs.evidence or self.needs.next_tokens
        if looks and (traits_of(model).bound or not scores_given_texts(model)):
            raise UsageError(
                f"{model.name} does not return log-probabilities of given texts, which are the evidence of the mixer "
                f"{self._name}: choose another mixer, or use a server that returns them."
            )

    def require_distributions(self, model: LanguageModel) -> None:
        """Raise UsageError if the mixer looks at distributions of given tokens, which the model does not give."""
        traits = traits_of(model)
        own = traits.summaries if self.needs.summaries else traits.grouped
        if self.needs.next_tokens and own is None and traits.distributions is None:
            raise UsageError(
                f"{model.name} gives the log-probabilities of given tokens alone, and the mixer {self._name} needs "
                "whole distributions: choose another mixer, or a model that runs in this process."
            )

    def _reject(self, fault: str) -> NoReturn:
        protocol = "Mixer" if self.averages else "DistributionMixer"
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
        kept_KN = self.log_probs_KN[:, max(0, self.log_probs_KN.shape[1] + 1 - self.mixer.needs.evidence) :]
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


def _predictions(prompt_prefixes: Sequence[PromptPrefix], targets: int, known: dict[str, Any]) -> Predictions:
    of_prefixes = {
        "log_weights_K": np.array([one.log_weight for one in prompt_prefixes], dtype=np.float64),
        "scores_K": np.array([one.score for one in prompt_prefixes], dtype=np.float64),
        "evidence_TKE": np.zeros((targets, len(prompt_prefixes), 0), dtype=np.float32),
        "overlap_K": np.array([one.overlap for one in prompt_prefixes], dtype=np.int64),
    }
    return Predictions(**{**of_prefixes, **known})
