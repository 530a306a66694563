"""The small immutable records that stages pass to each other: passages, hits, requests, scores.

Letters for shapes, here and elsewhere: Q queries (rows of a plan), K hits per query, N tokens of a text, T target
tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import UsageError

BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float32]
DoubleArray: TypeAlias = NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float32)
Metadata: TypeAlias = Mapping[str, JsonValue]
"""The fields of a document besides its id, title and text, such as its url, page and date; never changed."""

ORIGIN: Final = "_origin"
"""The metadata with the path and line, or row, of a record whose id does not say them; filters do not know it."""
NO_PASSAGE = -1
"""The passage number that means no passage: a query with fewer hits than k, or a stride read without retrieval."""
NOT_LISTED = -1
"""The token id that means no token: padding of a text for which a model lists fewer next tokens than for others."""
LOWEST: Final = -1e4
"""A log-probability for impossible tokens of a prediction, whose logarithm would turn a sum into NaN."""
_TAIL_ROUNDING: Final = 1e-6
"""The error that float32 log-probabilities can cause in a sum of probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class SpecialTokens:
    """The special tokens (int64 ids) `before` and `after` every text; `begin` is the BOS, added or not, or None."""

    before: IntArray
    after: IntArray
    begin: int | None


class Heading(NamedTuple):
    """A heading in a text, from character `begin` to `end`, with its level (1 is the outermost) and its title."""

    begin: int
    end: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a corpus, before it is split into passages; `metadata` holds its other fields."""

    id: str
    title: str
    text: str
    metadata: Metadata = field(default_factory=dict, hash=False, kw_only=True)
    headings: tuple[Heading, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document: the unit that is indexed, retrieved and read before the model's input."""

    number: int
    """Its position in the corpus, from 0."""
    document_id: str
    title: str
    text: str
    metadata: Metadata = field(default_factory=dict, hash=False, kw_only=True)
    """The metadata of its document."""

    @property
    def contents(self) -> str:
        """The text that is indexed and read: title, newline, text; only the text if there is no title."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def place(self) -> str:
        """Where its document is, for a person: its id, and its path and line if the id does not say them."""
        origin = self.metadata.get(ORIGIN)
        return f"{self.document_id}, {origin}" if isinstance(origin, str) else self.document_id


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat: the role of who sent it, such as system, user or assistant, and its text."""

    role: str
    content: str


def padded(rows: Sequence[Sequence[float] | NDArray[Any]], fill: float, dtype: type[_Number]) -> NDArray[_Number]:
    """Return rows of different lengths as one array (R x K), padded on the right, with at least one column."""
    counts_R = np.array([len(row) for row in rows], dtype=np.int64)
    there_RK = np.arange(max(1, counts_R.max(initial=1))) < counts_R[:, None]
    padded_RK = np.full(there_RK.shape, fill, dtype=dtype)
    if len(rows):
        padded_RK[there_RK] = np.concatenate([np.asarray(row, dtype=dtype) for row in rows])
    return padded_RK


Passages: TypeAlias = Sequence[Passage]
"""Passages by number: a store on disk, or a list in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The passages found for Q queries, best first.

    `numbers_QK` (int64) holds passage numbers and `scores_QK` (float32) their scores. A row with fewer than K hits is
    padded with `NO_PASSAGE` and score 0. K may be less than requested if no query has more hits.
    """

    numbers_QK: IntArray
    scores_QK: FloatArray

    def __post_init__(self) -> None:
        numbers, scores = np.shape(self.numbers_QK), np.shape(self.scores_QK)
        if len(numbers) != 2 or numbers != scores:
            raise UsageError(f"`numbers_QK` and `scores_QK` must have one shape (Q, K), not {numbers} and {scores}.")

    @classmethod
    def none(cls, queries: int, k: int) -> Self:
        """Return `k` columns of `NO_PASSAGE` for each query."""
        return cls(np.full((queries, k), NO_PASSAGE, dtype=np.int64), np.zeros((queries, k), dtype=np.float32))

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Sequence[int] | IntArray, Sequence[float] | FloatArray]]) -> Self:
        """Return hits of the passage numbers and scores of each query, padded, with at least one column."""
        return cls(
            padded([numbers for numbers, _ in rows], NO_PASSAGE, np.int64),
            padded([scores for _, scores in rows], 0, np.float32),
        )

    @classmethod
    def from_pairs(cls, rows: Sequence[Sequence[tuple[int, float]]]) -> Self:
        """Return hits of each query's (passage number, score) pairs, best first; rows may be empty."""
        return cls.of_rows([([number for number, _ in row], [score for _, score in row]) for row in rows])

    def __len__(self) -> int:
        return len(self.numbers_QK)

    def spread(self, rows: IntArray, count: int) -> "Hits":
        """Return these hits as the given `rows` of `count` rows; the other rows have no hits."""
        spread = Hits.none(count, self.numbers_QK.shape[1])
        spread.numbers_QK[rows], spread.scores_QK[rows] = self.numbers_QK, self.scores_QK
        return spread

    def first(self, k: int) -> "Hits":
        """Return the first k hits of every query."""
        return Hits(numbers_QK=self.numbers_QK[:, :k], scores_QK=self.scores_QK[:, :k])

    def of(self, query: int) -> list[tuple[int, float]]:
        """Return the (passage number, score) pairs of the hits of one query, best first."""
        row = zip(self.numbers_QK[query].tolist(), self.scores_QK[query].tolist(), strict=True)
        return [(number, score) for number, score in row if number != NO_PASSAGE]


@dataclass(frozen=True, slots=True, eq=False)
class PromptPrefix:
    """The tokens before the context in one reading of a row: one passage, several joined, or none.

    `passages` are the numbers of the passages in `tokens` (int64), best first; the reading is credited to the first
    one. By default the weights of readings are the softmax of their scores (REPLUG, Eq. 3).
    """

    tokens: IntArray
    passages: tuple[int, ...] = ()
    score: float = 0.0

    @property
    def passage(self) -> int:
        """The passage credited with the reading, or `NO_PASSAGE`."""
        return self.passages[0] if self.passages else NO_PASSAGE


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """The K readings of a row, one after each prompt prefix; their predictions are averaged (REPLUG, Eq. 2).

    `log_weights_K` (float64) are the natural logarithms of their weights before any token of the row is known.
    """

    prompt_prefixes: Sequence[PromptPrefix]
    log_weights_K: DoubleArray

    @classmethod
    def single(cls, prompt_prefix: PromptPrefix) -> Self:
        """Return one reading, which has all the weight."""
        return cls([prompt_prefix], np.zeros(1))

    def __len__(self) -> int:
        return len(self.prompt_prefixes)

    def __iter__(self) -> Iterator[PromptPrefix]:
        return iter(self.prompt_prefixes)

    def __getitem__(self, number: int) -> PromptPrefix:
        return self.prompt_prefixes[number]

    @property
    def passages_K(self) -> IntArray:
        """The passage (int64, K) credited with each reading, or `NO_PASSAGE`."""
        return np.array([prefix.passage for prefix in self.prompt_prefixes], dtype=np.int64)

    @property
    def scores_K(self) -> DoubleArray:
        """The score (float64, K) of each reading."""
        return np.array([prefix.score for prefix in self.prompt_prefixes], dtype=np.float64)


NO_READINGS: Final = Readings((), np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Tokens to score: the model reads `[document; context; targets]` (int64); one of the first two may be empty."""

    document: IntArray
    context: IntArray
    targets: IntArray

    def __post_init__(self) -> None:
        assert len(self.targets) > 0, "a request without targets"
        assert len(self.document) + len(self.context) > 0, "a target with nothing before it"

    def __len__(self) -> int:
        """Return the number of tokens that the model reads, including the targets."""
        return len(self.document) + len(self.context) + len(self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class ScoringSequence:
    """Tokens (int64) that a model reads once, with the positions (int64, ascending, from 1) of P targets."""

    tokens_N: IntArray
    targets_P: IntArray

    def __len__(self) -> int:
        """Return the number of tokens that the model reads: all but the last, which is only predicted."""
        return len(self.tokens_N) - 1


@dataclass(frozen=True, slots=True, eq=False)
class NextTokens:
    """Predictions of the next token of B texts: the natural log-probabilities (float32) of C tokens each.

    `tokens_BC` (int64) are these tokens, padded with `NOT_LISTED`; None is the whole vocabulary. `rest_B` (float32) is
    an upper bound of the log-probability of any other token, by default the lowest one listed, or what these leave.
    """

    log_probs_BC: FloatArray
    tokens_BC: IntArray | None = None
    rest_B: FloatArray | None = None

    def __post_init__(self) -> None:
        assert self.log_probs_BC.ndim == 2
        assert self.rest_B is None or self.rest_B.shape == self.log_probs_BC.shape[:1]
        assert self.tokens_BC is None or self.tokens_BC.shape == self.log_probs_BC.shape

    @property
    def tail_bound_B(self) -> FloatArray:
        """An upper bound of the natural log-probability (float32, B) of any token that is not listed."""
        if self.rest_B is not None:
            return self.rest_B
        assert self.tokens_BC is not None
        listed_BC = self.tokens_BC != NOT_LISTED
        lowest_B = np.where(listed_BC, self.log_probs_BC, 0.0).min(axis=1)
        tail_B = log_tail_mass(np.where(listed_BC, self.log_probs_BC, -np.inf))
        return np.minimum(lowest_B, tail_B).astype(np.float32)

    def of(self, texts: slice | Sequence[int]) -> "NextTokens":
        """Return the predictions of some of the texts."""
        return NextTokens(
            self.log_probs_BC[texts],
            None if self.tokens_BC is None else self.tokens_BC[texts],
            None if self.rest_B is None else self.rest_B[texts],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """How the next token is drawn from the average of the predictions for K texts, of which `rows` are the numbers.

    `log_weights_K` (float64) are the natural logarithms of the weights of the average (REPLUG, Eq. 2). `temperature`,
    `top_k`, `top_p` and `top_logprobs` are as in `Sampling`; `number`, from 0 to below 1, decides a draw at random.
    Instead of from the average, the token may be drawn from what `distribution` makes (float32, V) of the predictions
    (float32, K x V). With `alpha` this is the contrast of the average and the last prediction, as `Contrast` makes it.
    """

    rows: Sequence[int]
    log_weights_K: DoubleArray
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    top_logprobs: int = 0
    number: float = 0.0
    distribution: Callable[[FloatArray], FloatArray] | None = None
    alpha: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A token that was drawn, its natural log-probability in the mixture, and in each of the K predictions (float32).

    `top_logprobs`, `bound_width` and `certified` are as in `GeneratedToken`.
    """

    token: int
    log_prob: float
    log_probs_K: FloatArray
    top_logprobs: tuple[tuple[int, float], ...] = ()
    bound_width: float = 0.0
    certified: bool = True


def log_tail_mass(log_probs_BC: FloatArray) -> DoubleArray:
    """Return the logarithm (float64, B) of the probability that listed tokens leave to all others, rounded up."""
    left_B = 1 - np.exp(log_probs_BC.astype(np.float64)).sum(axis=1)
    return np.asarray(np.log(np.clip(left_B, 0, 1) + _TAIL_ROUNDING))


@dataclass(frozen=True, slots=True, eq=False)
class TextsAhead:
    """Texts (B int64 vectors) whose predictions are averaged.

    Their last `written` tokens were generated, and at most `max_tokens` greedy ones follow before they change.
    """

    texts: Sequence[IntArray]
    max_tokens: int
    written: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """How much each of K passages contributed to each of T target tokens, one row per target.

    `passages_TK` (int64) is padded with `NO_PASSAGE`. `posteriors_TK` (float32) holds the share of the target's
    probability that came from each passage; NaN where the prediction is no average.
    """

    passages_TK: IntArray
    posteriors_TK: FloatArray

    def __post_init__(self) -> None:
        assert self.passages_TK.shape == self.posteriors_TK.shape

    @property
    def shared_T(self) -> NDArray[np.bool_]:
        """Whether each target has shares."""
        return ~np.isnan(self.posteriors_TK[:, 0])

    @property
    def passages_T(self) -> IntArray:
        """The passage (int64) with the largest share of each target; `NO_PASSAGE` if there is none, or no shares."""
        best_T = self.posteriors_TK.argmax(axis=1)
        return np.where(self.shared_T, self.passages_TK[np.arange(len(best_T)), best_T], NO_PASSAGE)

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[IntArray, FloatArray]]) -> Self:
        """Return the provenance of the passages and posteriors of each target, padded, with at least one column."""
        return cls(
            padded([passages for passages, _ in rows], NO_PASSAGE, np.int64),
            padded([posteriors for _, posteriors in rows], 0, np.float32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScoredTokens:
    """The scores of T target tokens: index in the text's tokens, token id (int64), log-probability (float32)."""

    positions_T: IntArray
    tokens_T: IntArray
    log_probs_T: FloatArray
    provenance: Provenance

    def __post_init__(self) -> None:
        assert self.positions_T.shape == self.tokens_T.shape == self.log_probs_T.shape
        assert len(self.positions_T) == len(self.provenance.passages_TK)

    def __len__(self) -> int:
        return len(self.positions_T)

    @property
    def passages_T(self) -> IntArray:
        """The passage (int64) that contributed most to each token, or `NO_PASSAGE`."""
        return self.provenance.passages_T

    @property
    def nll(self) -> float:
        """Total negative log-likelihood in nats, summed in double precision."""
        return -float(self.log_probs_T.sum(dtype=np.float64))
