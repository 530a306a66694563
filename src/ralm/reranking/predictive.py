"""Predictive reranking (In-Context RALM, Eq. 7 and 8): the passage that a cross-encoder f scores highest.

    p_rank(d_i | x) = exp(f(x, d_i)) / sum over i' of exp(f(x, d_i'))                 Eq. 7
    i^ = argmax over i of  p_rank(d_i | x)                                            Eq. 8

`ralm train reranker` trains f on a language model's likelihoods (In-Context RALM, Eq. 9; `ralm.training.losses`); any
other cross-encoder serves too. Each distinct pair of the end of a prefix and a passage is scored once. Letters of
shapes: P pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.errors import PartError, extra
from ralm.protocols import Rows
from ralm.records import FloatArray, Hits, Passages
from ralm.reranking.oracle import best_hits, contested
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
        """Return everything that decides the scores."""

    def end(self, prefix: str) -> str:
        """Return the end of a prefix that it reads."""

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return the scores (float32, P) of pairs of such an end and a passage; better passages have higher ones."""


class PairScorer:
    """A cross-encoder that keeps its scores, with a store for later processes too."""

    def __init__(self, cross_encoder: CrossEncoder, store: Store | None = None) -> None:
        self.cross_encoder = cross_encoder
        self.rank_weight = float(getattr(cross_encoder, "rank_weight", 0.0))
        self._store = store
        self._kept: dict[bytes, float] = {}

    @classmethod
    def of(cls, cross_encoder: "CrossEncoder | PairScorer") -> "PairScorer":
        """Return the cross-encoder, wrapped unless it is already."""
        return cross_encoder if isinstance(cross_encoder, PairScorer) else cls(cross_encoder)

    def with_store(self, store: Store) -> Self:
        """Return the same cross-encoder, which keeps its scores in a store."""
        return type(self)(self.cross_encoder, store)

    @property
    def config(self) -> Mapping[str, Any]:
        """Return everything that decides the scores."""
        return self.cross_encoder.config

    def end(self, prefix: str) -> str:
        """Return the end of a prefix that is read."""
        return self.cross_encoder.end(prefix)

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return the scores (float32, P) of pairs, read in groups that a killed run repeats."""
        keys = [_key(pair) for pair in pairs]
        distinct = dict(zip(keys, pairs, strict=True))
        order = list(distinct)
        with progress_bar("Reranking", len(order), shown=len(order) > _PAIRS_A_CALL) as advance:
            for begin in range(0, len(order), _PAIRS_A_CALL):
                group = order[begin : begin + _PAIRS_A_CALL]
                if self._store is not None:
                    stored = self._store.get([key for key in group if key not in self._kept])
                    self._kept.update((key, float(np.frombuffer(value, "<f4")[0])) for key, value in stored.items())
                if new := [key for key in group if key not in self._kept]:
                    scores_P = self._checked_scores([distinct[key] for key in new])
                    self._kept.update(zip(new, scores_P.tolist(), strict=True))
                    if self._store is not None:
                        values = (score.tobytes() for score in scores_P.astype("<f4"))
                        self._store.put(zip(new, values, strict=True))
                advance(len(group))
        return np.array([self._kept[key] for key in keys], dtype=np.float32)

    def _checked_scores(self, pairs: Sequence[Pair]) -> FloatArray:
        scores = np.asarray(self.cross_encoder.scores(pairs))
        name = type(self.cross_encoder).__name__
        is_number = scores.shape == (len(pairs),) and scores.dtype.kind in "fiu"
        if not (is_number and np.isfinite(scores.astype(np.float32)).all()):
            raise PartError(
                f"the cross-encoder {name} gives scores of shape {scores.shape} and type {scores.dtype} for "
                f"{len(pairs):,} pairs; it should give one finite number for each."
            )
        return scores.astype(np.float32)


def _key(pair: Pair) -> bytes:
    end, passage = (text.encode("utf-8", "surrogatepass") for text in pair)
    digest = blake2b(len(end).to_bytes(8, "little"), digest_size=_KEY_BYTES)
    digest.update(end)
    digest.update(passage)
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictive:
    """Reranking by a cross-encoder: the passages that it scores highest (In-Context RALM, section 6.2, Eq. 7 and 8).

    The argmax of Eq. 8 is that of the scores f, so the softmax of Eq. 7 is not computed here.

    Args:
        cross_encoder: From `load_cross_encoder`, or your own. If it has an attribute `rank_weight`, like one that was
            trained with a rank prior, the logarithm of a hit's rank times this weight is subtracted from its score.
        candidates: Passages to choose from.

    Raises:
        UsageError: If `candidates` is below 1.
    """

    cross_encoder: CrossEncoder
    candidates: int = 16

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)
        object.__setattr__(self, "cross_encoder", PairScorer.of(self.cross_encoder))

    @property
    def config(self) -> dict[str, JsonValue]:
        """Return the options, and the configuration of the cross-encoder."""
        scores = dict(self.cross_encoder.config)
        return {"reranker": "predictive", "candidates": self.candidates, "cross_encoder": scores}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """Return the k best of each row's hits by the cross-encoder's scores and the rank prior."""
        candidates, scorer = contested(hits), PairScorer.of(self.cross_encoder)
        ends = {row: scorer.end(rows.prefix(row)) for row in dict.fromkeys(row for row, _ in candidates)}
        contents = {number: passages[number].contents for number in {number for _, number in candidates}}
        scores_C = scorer.scores([(ends[row], contents[number]) for row, number in candidates])
        return best_hits(hits, scores_C, k, scorer.rank_weight)


def load_cross_encoder(name: str, tokens: int | None = None, *, device: str = "auto") -> CrossEncoder:
    """Load a cross-encoder of `ralm train reranker` or sentence-transformers.

    Args:
        name: Hub name or folder.
        tokens: How many tokens at the end of a prefix it reads; None is as in its training, or 64.
        device: cpu, cuda, cuda:N, or auto (a GPU if there is one).

    Raises:
        MissingExtraError: If the extra `dense` is not installed.
        ModelError: If there is no such cross-encoder.
        UsageError: If `tokens` leave no room for a passage.
    """
    with extra("dense", "cross-encoders need", ("sentence_transformers", "torch", "transformers")):
        from ralm.reranking.cross_encoder import load_pair_model
    return load_pair_model(name, tokens, device=device)
