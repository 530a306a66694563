"""The parts that decide what a model reads: a reranker chooses passages, a reader lays them out, a mixer weighs them.

`Parts` is where they are used: it checks what each gives, so that a part of your own that breaks its contract is named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, cast

import numpy as np
from pydantic import JsonValue

from ralm.errors import PartError, UsageError
from ralm.protocols import (
    DistributionMixer,
    Documents,
    LanguageModel,
    Mixer,
    Reader,
    Reranker,
    Rows,
    WritingModel,
)
from ralm.reading.mixture import Contrast, SimilarityWeights, mix, similarity_log_weights
from ralm.reading.readers import Ensemble, InContext
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, Hits, Passages, PromptPrefix, Readings
from ralm.validation import check_count, check_scores, config_of, fault_of_hits

_ROUNDING: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """A reader, the mixer of its readings, and the reranker of its passages; None keeps the order of the retriever.

    Raises:
        UsageError: The reranker has fewer candidates than the reader reads, or the mixer looks at evidence and the
            reader reads one passage.
    """

    reader: Reader = field(default_factory=InContext)
    mixer: Mixer | DistributionMixer = field(default_factory=SimilarityWeights)
    reranker: Reranker | None = None
    evidence: int = field(init=False, repr=False)
    """How many tokens before each target the mixer looks at."""
    contrasts: bool = field(init=False, repr=False)
    """Whether the mixer makes the distribution of the next token, which is no average."""

    def __post_init__(self) -> None:
        check_count("hits", self.reader.hits)
        if not isinstance(self.mixer, Mixer | DistributionMixer):
            raise UsageError(
                f"the mixer {_name(self.mixer)} has neither `__call__` nor `log_probs`, or no `config` or `evidence`: "
                "see `Mixer` and `DistributionMixer`."
            )
        # known once: asking whether an object keeps a protocol computes its properties, and rows and tokens are many
        object.__setattr__(self, "contrasts", isinstance(self.mixer, DistributionMixer))
        object.__setattr__(self, "evidence", self.mixer.evidence if isinstance(self.mixer, Mixer) else 0)
        if self.evidence and self.reader.hits == 1:
            raise UsageError(f"the mixer {_name(self.mixer)} weighs several passages: set `documents` to 2 or more.")
        if self.reranker is not None:
            check_count("candidates", self.reranker.candidates)
            if self.reranker.candidates < self.reader.hits:
                raise UsageError(
                    f"the reader reads {self.reader.hits} passages and the reranker chooses from "
                    f"{self.reranker.candidates} `candidates`: raise them."
                )

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return everything about the parts that affects figures; the mixer stands with its reader."""
        reader = config_of(self.reader, "reader")
        if isinstance(self.reader, Ensemble) or not isinstance(self.mixer, SimilarityWeights):
            reader["mixer"] = config_of(self.mixer, "mixer")
        return {"reranker": None if self.reranker is None else config_of(self.reranker, "reranker"), "reader": reader}

    @property
    def hits(self) -> int:
        """The number of passages to retrieve for a row."""
        return self.reader.hits if self.reranker is None else self.reranker.candidates

    @property
    def joined(self) -> int:
        """The largest number of passages in one prompt prefix."""
        return getattr(self.reader, "joined", 1)

    @property
    def ranking_model(self) -> LanguageModel | None:
        """The language model that the reranker ranks with, if it has its own."""
        return getattr(self.reranker, "model", None)

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int | None = None) -> Hits:
        """Return the k hits of each row that the reranker chooses, by default as many as the reader reads."""
        k = self.reader.hits if k is None else k
        if self.reranker is None:
            return hits
        hits = hits.first(self.reranker.candidates)
        best = self.reranker.choose(rows, hits, passages, k)
        fault = fault_of_hits(best, len(hits), k, None)
        if not fault:
            among_QK = (best.numbers_QK[:, :, None] == hits.numbers_QK[:, None, :]).any(axis=2)
            foreign = best.numbers_QK[(best.numbers_QK != NO_PASSAGE) & ~among_QK]
            fault = f"gives passage {foreign[0]}, which is not among the hits of its row" if len(foreign) else ""
        if fault:
            _reject("reranker", self.reranker, fault, "Reranker")
        return Hits(best.numbers_QK.astype(np.int64, copy=False), best.scores_QK.astype(np.float32, copy=False))

    def readings(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Readings:
        """Return the readings of a row with their weights before any evidence; without hits, the one without passage.

        A mixer that contrasts adds the reading without a passage, which has no weight.
        """
        if not hits:
            return Readings.single(PromptPrefix(documents[NO_PASSAGE]))
        prompt_prefixes = self.reader.prompt_prefixes(hits, documents)
        if fault := _fault_of(prompt_prefixes, {number for number, _ in hits}):
            _reject("reader", self.reader, f"gives {fault}", "Reader")
        if self.contrasts:
            prompt_prefixes = [*prompt_prefixes, PromptPrefix(documents[NO_PASSAGE], score=-np.inf)]
        readings = Readings(prompt_prefixes, np.zeros(len(prompt_prefixes)))
        if self.contrasts:
            return replace(readings, log_weights_K=similarity_log_weights(readings.scores_K))
        return replace(readings, log_weights_K=self._weigh(readings, np.zeros((len(readings), 0), dtype=np.float32)))

    def looks_at(self, readings: Readings) -> bool:
        """Return whether the prediction of a row depends on more than the weights of its readings."""
        if self.contrasts:
            return any(prefix.passages for prefix in readings)
        return self.evidence > 0 and len(readings) > 1

    def log_weights(self, readings: Readings, log_probs_KN: FloatArray, targets: int) -> DoubleArray:
        """Return the logarithms of the weights (float64, K x T) for the last T of N tokens, by those before each."""
        if not self.looks_at(readings):
            return np.tile(readings.log_weights_K[:, None], targets)
        padded_KN = np.pad(log_probs_KN, ((0, 0), (self.evidence, 0)))[:, -(targets + self.evidence) : -1]
        evidence_KTE = np.lib.stride_tricks.sliding_window_view(padded_KN, self.evidence, axis=1)
        return np.stack([self._weigh(readings, evidence_KTE[:, target]) for target in range(targets)], axis=1)

    def next_token(self, readings: Readings, log_probs_KV: FloatArray) -> FloatArray:
        """Return the contrasted log-probabilities (float32, V) of the next token; the last of the K has no passage."""
        contrast = cast("DistributionMixer", self.mixer)
        average_V = mix(log_probs_KV, readings.log_weights_K)
        log_probs_V = np.asarray(contrast.log_probs(average_V, log_probs_KV[-1].astype(np.float64)))
        if log_probs_V.shape != average_V.shape:
            shape = f"gives log-probabilities of shape {log_probs_V.shape} for a vocabulary of {len(average_V)}"
            _reject("mixer", self.mixer, shape, "DistributionMixer")
        self._check_sum(log_probs_V, "probabilities", "DistributionMixer")
        return log_probs_V.astype(np.float32)

    @property
    def alpha(self) -> float | None:
        """The alpha of `Contrast`; None for other mixers."""
        return self.mixer.alpha if type(self.mixer) is Contrast else None

    def _weigh(self, readings: Readings, evidence_KE: FloatArray) -> DoubleArray:
        log_weights_K = np.asarray(cast("Mixer", self.mixer)(readings.scores_K, evidence_KE))
        if log_weights_K.shape != (len(readings),) or log_weights_K.dtype.kind != "f":
            shape = f"{log_weights_K.dtype} values of shape {log_weights_K.shape}"
            _reject("mixer", self.mixer, f"gives {shape} for {len(readings)} readings", "Mixer")
        self._check_sum(log_weights_K, "weights", "Mixer")
        return log_weights_K.astype(np.float64, copy=False)

    def _check_sum(self, log_probs: FloatArray | DoubleArray, what: str, protocol: str) -> None:
        total = float(np.exp(log_probs.astype(np.float64)).sum())
        if not abs(total - 1) < _ROUNDING:
            _reject("mixer", self.mixer, f"gives {what} that sum to {total:g}, not 1", protocol)

    def check_room(self, prompt_prefixes: Iterable[PromptPrefix], after: int, max_length: int) -> None:
        """Raise UsageError if the longest prompt prefix leaves no room for the `after` tokens that must follow it."""
        longest = max((len(prefix.tokens) for prefix in prompt_prefixes), default=0)
        if longest + after > max_length:
            raise UsageError(
                f"the reader {_name(self.reader)} puts {longest} tokens before the context, and the {after} that must "
                f"follow them do not fit into `max_length` {max_length} as well: lower `document_tokens` or raise "
                "`max_length`."
            )

    def check_scoring(self, model: LanguageModel, what: str) -> None:
        """Raise UsageError if `what` cannot be scored with this mixer and model."""
        self.require_average(what)
        check_scores(model, what)

    def check_vote(self, model: LanguageModel) -> None:
        """Raise UsageError if written answers cannot be weighed with this mixer and model."""
        self.require_average('a vote of `join="answers"`')
        self._require_evidence(model)

    def check_generation(self, model: WritingModel) -> None:
        """Raise UsageError if text cannot be generated with this reranker, mixer and model."""
        if getattr(self.reranker, "needs_targets", False):
            raise UsageError(
                f"the reranker {_name(self.reranker)} looks at the text to be predicted, which generation does not "
                "have: choose another one."
            )
        self._require_evidence(model)
        if self.contrasts and model.tier != "all":
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {_name(self.mixer)} needs whole "
                "distributions: choose another mixer, or a model that runs in this process."
            )
        if self.evidence and model.tier not in ("all", "chosen"):
            raise UsageError(
                f"{model.name} gives its top next tokens alone, and the mixer {_name(self.mixer)} needs the "
                "log-probability of each generated token after every passage: choose another mixer."
            )

    def require_average(self, what: str) -> None:
        """Raise UsageError if the mixer makes distributions of the next token, which `what` does not use."""
        if self.contrasts:
            raise UsageError(
                f"the mixer {_name(self.mixer)} makes the distribution of the next token to generate text, and {what} "
                "reads given tokens: choose another mixer."
            )

    def _require_evidence(self, model: LanguageModel) -> None:
        if self.evidence or self.contrasts:
            check_scores(model, f"the mixer {_name(self.mixer)}")


IN_CONTEXT: Final = Parts()
"""The best passage alone."""


@dataclass(slots=True, eq=False)
class Evidence:
    """The last log-probabilities (float32, K x N) of the readings of an unfinished text."""

    parts: Parts
    log_probs_KN: FloatArray

    def weighed(self, readings: Readings) -> Readings:
        """Return the readings with their weights for the next token, which a contrast leaves as they are."""
        if self.parts.contrasts:
            return readings
        next_KN = np.pad(self.log_probs_KN, ((0, 0), (0, 1)))
        return replace(readings, log_weights_K=self.parts.log_weights(readings, next_KN, 1)[:, 0])

    def add(self, log_probs_K: FloatArray) -> None:
        """Add the token that was drawn."""
        kept_KN = self.log_probs_KN[:, max(0, self.log_probs_KN.shape[1] + 1 - self.parts.evidence) :]
        self.log_probs_KN = np.hstack([kept_KN, log_probs_K.astype(np.float32)[:, None]])


def _fault_of(prompt_prefixes: Sequence[PromptPrefix], numbers: set[int]) -> str:
    """Return what is wrong with the prompt prefixes of a row with the passages `numbers`; empty if nothing is."""
    if not isinstance(prompt_prefixes, Sequence):
        return f"{type(prompt_prefixes).__name__} instead of prompt prefixes"
    for prefix in prompt_prefixes:
        if not isinstance(prefix, PromptPrefix):
            return f"{type(prefix).__name__} instead of a PromptPrefix"
        if not isinstance(prefix.tokens, np.ndarray) or prefix.tokens.ndim != 1 or prefix.tokens.dtype != np.int64:
            return "a prompt prefix whose tokens are not an int64 vector"
        if foreign := [number for number in prefix.passages if number not in numbers]:
            return f"a prompt prefix of passage {foreign[0]}, which is not among the hits of its row"
    return "" if len(prompt_prefixes) else "no prompt prefix"


def _name(part: object) -> str:
    return type(part).__name__


def _reject(kind: str, part: Any, fault: str, protocol: str) -> NoReturn:
    raise PartError(f"the {kind} {_name(part)} {fault}; see `{protocol}` for what it should give.")
