"""Gates: passages are read only for the strides that they are expected to help.

A gate sees the plain model's prediction of a stride's first token, how well it predicted the tokens before, and, if it
looks at hits, the scores of the retriever. None of it depends on the text to be predicted.

Letters of shapes: R strides, F features.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Tokenizer, traits_of
from ralm.reading.sources import FromRetriever, PassageSource
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import NO_PASSAGE, DoubleArray, Hits, IntArray, Passages, Request
from ralm.storage.manifest import open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.validation import check_number, retrieve_checked

GATE_KIND: Final = FolderKind("gate")
FEATURES: Final = ("entropy", "top", "surprise", "score", "lead")
"""Entropy and highest log-probability of the next token, mean negative log-probability of the last 32 tokens, score of
the first hit, and how much higher it is than that of the second."""
_PLAIN_FEATURES: Final = 3
"""The number of features that are known before retrieval."""
_BEFORE: Final = 32
_CONFIDENCE: Final = "confidence"

Open: TypeAlias = NDArray[np.bool_]


class Gate(Protocol):
    """Decides for which strides passages are read. `uses_hits`: it sees all `FEATURES`, after retrieval, else the first
    three alone, before it."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything that decides what it opens."""

    @property
    def uses_hits(self) -> bool:
        """Whether it decides after retrieval."""

    def opens(self, features_RF: DoubleArray) -> Open:
        """Whether each stride is read with passages."""


@dataclass(frozen=True, slots=True)
class ConfidenceGate:
    """Retrieves where the plain model gives its most likely next token a probability below `threshold` (FLARE, Jiang et
    al., 2023). Raises UsageError if it is not from 0 to 1."""

    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, minimum=0, maximum=1)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The threshold."""
        return {"gate": _CONFIDENCE, "threshold": self.threshold}

    @property
    def uses_hits(self) -> bool:
        """It decides before retrieval."""
        return False

    def opens(self, features_RF: DoubleArray) -> Open:
        """Where the highest probability is below the threshold."""
        return np.asarray(np.exp(features_RF[:, 1]) < self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedGate:
    """Reads passages where bias + weights . features is above `threshold`, as `ralm train gate` fitted them; weights of
    `FEATURES`."""

    bias: float
    weights: Sequence[float]
    threshold: float

    def __post_init__(self) -> None:
        if len(self.weights) not in (_PLAIN_FEATURES, len(FEATURES)):
            raise UsageError(f"a gate has {_PLAIN_FEATURES} or {len(FEATURES)} weights, not {len(self.weights)}.")
        if not all(map(math.isfinite, (self.bias, self.threshold, *self.weights))):
            raise UsageError("a gate has weights that are not numbers.")

    @property
    def config(self) -> dict[str, JsonValue]:
        """All weights."""
        return {"gate": "learned", **asdict(self)}

    @property
    def uses_hits(self) -> bool:
        """Whether there are weights for hits."""
        return len(self.weights) > _PLAIN_FEATURES

    def opens(self, features_RF: DoubleArray) -> Open:
        """Where the weighted sum is above the threshold."""
        sums_R = features_RF[:, : len(self.weights)] @ np.array(self.weights) + self.bias
        return np.asarray(sums_R > self.threshold)


def open_gate(name: str) -> Gate:
    """The gate of a name: confidence, confidence:THRESHOLD, or a folder that `ralm train gate` wrote.

    Raises UsageError for a bad threshold, NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    kind, _, threshold = name.partition(":")
    if kind == _CONFIDENCE:
        try:
            return ConfidenceGate(float(threshold)) if threshold else ConfidenceGate()
        except ValueError:
            raise UsageError(
                f"`gate` {name}: {threshold!r} is no number from 0 to 1, such as {_CONFIDENCE}:0.5."
            ) from None
    path = Path(name)
    manifest = open_consistently(path, lambda: read_manifest(path, kind=GATE_KIND))
    try:
        recorded: Any = manifest.settings[GATE_KIND.name]
        return LearnedGate(**recorded)
    except (KeyError, TypeError, UsageError) as error:
        raise DamagedFolderError(
            f"{path} is damaged: its manifest does not record the weights; train it again."
        ) from error


def check_gate(model: LanguageModel) -> None:
    """Raise UsageError if a model does not give what a gate looks at."""
    traits = traits_of(model)
    if traits.summaries is None and traits.distributions is None:
        raise UsageError(
            f"{model.name} gives the log-probabilities of given tokens alone, and a `gate` needs whole distributions: "
            "leave it out, or give a model that runs in this process."
        )


def plain_features(first: IntArray, contexts: Sequence[IntArray], scorer: Scorer) -> DoubleArray:
    """The features that are known before retrieval (R x 3), of contexts (int64) that follow the special tokens
    `first`. No context is empty."""
    requests, places = [], []
    for context in contexts:
        begin = max(len(context) - _BEFORE, 0 if len(first) else 1)
        targets = np.append(context[begin:], context[-1])  # any token: only the prediction in its place counts
        requests.append(Request(document=first, context=context[:begin], targets=targets))
        places.append(len(targets) - 1)
    features_RF = np.zeros((len(contexts), _PLAIN_FEATURES))
    for row, (summaries_T3, last) in enumerate(zip(scorer.summaries(requests), places, strict=True)):
        known = summaries_T3[:last, 0].astype(np.float64)
        surprise = -float(np.maximum(known, -100.0).mean()) if last else 0.0
        features_RF[row] = (summaries_T3[last, 1], summaries_T3[last, 2], surprise)
    return features_RF


def hit_features(scores_RK: DoubleArray, there_RK: NDArray[np.bool_]) -> DoubleArray:
    """The features that hits add (R x 2): the first score, and its lead over the second; 0 for a hit that is not
    there."""
    first_R = np.where(there_RK[:, 0], scores_RK[:, 0], 0.0)
    second_R = np.where(there_RK[:, 1], scores_RK[:, 1], 0.0) if scores_RK.shape[1] > 1 else np.zeros(len(first_R))
    return np.stack([first_R, first_R - second_R], axis=1)


@dataclass(slots=True)
class GateCounts:
    """How many strides would retrieve, how many of them did, and how many were read with passages; for many threads."""

    strides: int = 0
    retrieved: int = 0
    read: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, retrieves_R: Open, reads_R: Open) -> None:
        """Count some strides."""
        with self._lock:
            self.strides += len(retrieves_R)
            self.retrieved += int(retrieves_R.sum())
            self.read += int(reads_R.sum())


class OpenedGate:
    """A gate with the model that it looks at; `counts` may be those of other gates too. Raises UsageError if the model
    does not give what a gate looks at."""

    def __init__(self, gate: Gate, model: LanguageModel, counts: GateCounts | None = None) -> None:
        check_gate(model)
        self.gate, self.scorer = gate, Scorer.of(model)
        self.counts = GateCounts() if counts is None else counts

    @property
    def saved(self) -> dict[str, JsonValue]:
        """The shares of retrievals and of readings with passages that the gate saved."""
        counts = self.counts
        every = max(1, counts.strides)
        return {
            "strides": counts.strides,
            "retrievals_saved": 1 - counts.retrieved / every,
            "readings_saved": 1 - counts.read / every,
        }

    def hits(self, first: IntArray, contexts: Sequence[IntArray], k: int, find: Callable[[Open, int], Hits]) -> Hits:
        """The k best hits of each context that the gate opens; `find` gives those of the contexts that may retrieve."""
        features_RF, uses_hits = plain_features(first, contexts, self.scorer), self.gate.uses_hits
        retrieves_R = np.ones(len(contexts), dtype=np.bool_) if uses_hits else self.gate.opens(features_RF)
        reads_R, hits = retrieves_R, find(retrieves_R, max(k, 2) if uses_hits else k)
        if uses_hits:
            more_RF = hit_features(hits.scores_QK.astype(np.float64), hits.numbers_QK != NO_PASSAGE)
            reads_R = self.gate.opens(np.hstack([features_RF, more_RF]))
            hits = replace(hits, numbers_QK=np.where(reads_R[:, None], hits.numbers_QK, NO_PASSAGE)).first(k)
        self.counts.add(retrieves_R, reads_R)
        return hits

    def retrieve(
        self, source: FromRetriever, queries: Sequence[str], first: IntArray, contexts: Sequence[IntArray], k: int
    ) -> Hits:
        """The k best hits of the queries of the contexts that the gate opens."""

        def find(retrieves_R: Open, k: int) -> Hits:
            rows = np.flatnonzero(retrieves_R)
            if not len(rows):
                return Hits.none(len(queries), k)
            found = retrieve_checked(source.retriever, [queries[row] for row in rows.tolist()], k, len(source.passages))
            return found.spread(rows, len(queries))

        return self.hits(first, contexts, k, find)


class GatedSource:
    """The passages of another source for the strides that a gate opens; `saved` is known after `find`."""

    def __init__(
        self, source: PassageSource, gate: Gate, model: LanguageModel, counts: GateCounts | None = None
    ) -> None:
        self._source, self._gate, self.opened = source, gate, OpenedGate(gate, model, counts)

    @property
    def config(self) -> dict[str, JsonValue]:
        """That of the source, and of the gate."""
        return {**self._source.config, "gate": self._gate.config}

    def find(self, prepared: PreparedText, tokenizer: Tokenizer, k: int) -> tuple[Hits, Passages]:
        """The hits of the strides that the gate opens."""
        plan = prepared.plan
        rows = np.flatnonzero(plan.retrieves_R)
        first = PassageDocuments.planned((), tokenizer, plan.options).first
        contexts = [
            prepared.tokens[plan.context_begins(row, len(first)) : int(plan.begin_R[row])] for row in rows.tolist()
        ]
        passages: Passages = ()

        def find(opens_R: Open, k: int) -> Hits:
            nonlocal passages
            retrieves_R = np.zeros(len(plan), dtype=np.bool_)
            retrieves_R[rows] = opens_R
            gated = replace(prepared, plan=replace(plan, retrieves_R=retrieves_R))
            hits, passages = self._source.find(gated, tokenizer, k)
            return Hits(numbers_QK=hits.numbers_QK[rows], scores_QK=hits.scores_QK[rows])

        hits = self.opened.hits(first, contexts, k, find)
        return hits.spread(rows, len(plan)), passages
