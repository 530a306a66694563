"""Scores of pairs of texts by a cross-encoder; each distinct pair is scored once.

Knows pairs and scores; knows nothing of rows, hits or torch. Letters of shapes: P pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import RerankerError, extra
from ralm.protocols import Rows
from ralm.records import FloatArray, Hits, Passages
from ralm.storage.store import Store
from ralm.terminal import progress_bar
from ralm.validation import check_count

Pair: TypeAlias = tuple[str, str]
"""The end of a prefix and the contents of a passage."""

_KEY_BYTES: Final = 16
_PAIRS_A_CALL: Final = 1024


class CrossEncoder(Protocol):
    """A model that reads a prefix and a passage together and gives a score."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides the scores."""

    def end(self, prefix: str) -> str:
        """The end of a prefix that it reads."""

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """The scores (float32, P) of pairs of such an end and a passage; a better passage has a higher score."""


class PairScorer:
    """A cross-encoder that remembers what it has scored; with a store, so does a later process."""

    def __init__(self, cross_encoder: CrossEncoder, store: Store | None = None) -> None:
        self.cross_encoder = cross_encoder
        self._store = store
        self._known: dict[bytes, float] = {}

    @classmethod
    def of(cls, cross_encoder: "CrossEncoder | PairScorer") -> "PairScorer":
        """The cross-encoder itself if it remembers already, else one that does."""
        return cross_encoder if isinstance(cross_encoder, PairScorer) else cls(cross_encoder)

    def with_store(self, store: Store) -> Self:
        """The same cross-encoder, which remembers in a store."""
        return type(self)(self.cross_encoder, store)

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides the scores."""
        return self.cross_encoder.config

    @property
    def rank_weight(self) -> float:
        """How much a hit's rank counts beside its score; 0 if the cross-encoder does not say."""
        return float(getattr(self.cross_encoder, "rank_weight", 0.0))

    def end(self, prefix: str) -> str:
        """The end of a prefix that is read."""
        return self.cross_encoder.end(prefix)

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """The scores (float32, P) of pairs.

        Pairs are scored in groups that depend on the pairs alone, so that a run that was killed between two groups
        goes on with the very scores that it would have had.
        """
        keys = [_key(pair) for pair in pairs]
        distinct = dict(zip(keys, pairs, strict=True))
        order = list(distinct)
        with progress_bar("Reranking", len(order), shown=len(order) > _PAIRS_A_CALL) as advance:
            for begin in range(0, len(order), _PAIRS_A_CALL):
                group = order[begin : begin + _PAIRS_A_CALL]
                self._score_new({key: distinct[key] for key in group if key not in self._known})
                advance(len(group))
        return np.array([self._known[key] for key in keys], dtype=np.float32)

    def _score_new(self, pairs: Mapping[bytes, Pair]) -> None:
        """Look up or score pairs, by their keys."""
        if self._store is not None:
            found = self._store.get(pairs)
            self._known.update((key, float(np.frombuffer(value, "<f4")[0])) for key, value in found.items())
        new = [key for key in pairs if key not in self._known]
        if new:
            scores_P = self._asked([pairs[key] for key in new])
            if self._store is not None:
                self._store.put((key, score.tobytes()) for key, score in zip(new, scores_P.astype("<f4"), strict=True))
            self._known.update(zip(new, scores_P.tolist(), strict=True))

    def _asked(self, pairs: Sequence[Pair]) -> FloatArray:
        """The scores that the cross-encoder gives, checked before they are kept."""
        scores = np.asarray(self.cross_encoder.scores(pairs))
        name = type(self.cross_encoder).__name__
        if scores.shape != (len(pairs),) or scores.dtype.kind not in "fiu":
            raise RerankerError(
                f"the cross-encoder {name} gives scores of shape {scores.shape} and type {scores.dtype} for "
                f"{len(pairs):,} pairs; it should give one number for each."
            )
        scores = scores.astype(np.float32)
        if not np.isfinite(scores).all():
            end, passage = pairs[int(np.flatnonzero(~np.isfinite(scores))[0])]
            raise RerankerError(
                f"the cross-encoder {name} gives a score that is not finite for the passage {passage[:40]!r} behind "
                f"{end[-40:]!r}; its weights are damaged or overflow in their number format."
            )
        return scores


def _key(pair: Pair) -> bytes:
    """A hash of both texts."""
    end, passage = (text.encode("utf-8", "surrogatepass") for text in pair)
    digest = blake2b(len(end).to_bytes(8, "little"), digest_size=_KEY_BYTES)
    digest.update(end)
    digest.update(passage)
    return digest.digest()


def rank_prior(weight: float, count: int) -> FloatArray:
    """What the ranks of a retriever's hits, from 1, add to their scores (float32, `count`): -weight * log(rank)."""
    return (-weight * np.log(np.arange(1, count + 1))).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictive:
    """Chooses the passages that a cross-encoder scores highest (In-Context RALM, section 6.2, Eq. 7 and 8).

    `cross_encoder` comes from `load_cross_encoder`, or is your own. If it has an attribute `rank_weight`, as one has
    that was trained with a rank prior, the logarithm of a hit's rank times this weight is subtracted from its score.
    Raises UsageError if `candidates` is below 1.
    """

    cross_encoder: CrossEncoder
    candidates: int = 16

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)
        object.__setattr__(self, "cross_encoder", PairScorer.of(self.cross_encoder))

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options, and what decides the scores of the cross-encoder."""
        scores = dict(self.cross_encoder.config)
        return {"reranker": "predictive", "candidates": self.candidates, "cross_encoder": scores}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """The k best of each row's hits, with the cross-encoder's scores and the rank prior; of equal ones the first.

        A row with a single hit keeps it unread, with score 0.
        """
        found = [hits.of(row) for row in range(len(hits))]
        ends = {row: self.cross_encoder.end(rows.prefix(row)) for row, own in enumerate(found) if len(own) > 1}
        numbers = dict.fromkeys(number for row in ends for number, _ in found[row])
        read = {number: passages[number].contents for number in numbers}
        pairs = [(end, read[number]) for row, end in ends.items() for number, _ in found[row]]
        scores = iter(self.cross_encoder.scores(pairs).tolist())
        prior_K = rank_prior(PairScorer.of(self.cross_encoder).rank_weight, max(map(len, found), default=0))
        chosen = []
        for row, own in enumerate(found):
            given = np.array([next(scores) if row in ends else 0.0 for _ in own], dtype=np.float32)
            given += prior_K[: len(own)]
            best = np.argsort(-given, kind="stable")[:k]
            chosen.append((np.array([number for number, _ in own], dtype=np.int64)[best], given[best]))
        return Hits.of_rows(chosen)


def load_cross_encoder(name: str, tokens: int | None = None, *, device: str = "auto") -> CrossEncoder:
    """A cross-encoder by hub name or folder: one that `ralm train reranker` made, or any other of
    sentence-transformers.

    `tokens`: how many of its tokens at the end of a prefix it reads; None is what it was trained with, 64 if it does
    not say. `device`: cpu, cuda, cuda:N, or auto (a GPU if there is one). Raises MissingExtraError if the extra `dense`
    is not installed, ModelError if there is no such cross-encoder, UsageError if `tokens` leave no room for a passage.
    """
    with extra("dense", "cross-encoders need", ("sentence_transformers", "torch", "transformers")):
        from ralm.reranking.cross_encoder import load_pair_model
    return load_pair_model(name, tokens, device=device)
