"""Lexical reranking: the passage that shares most with the end of the prefix, by a linear model of a few features.

    f(x, d) = w_1 score + w_2 log(rank) + w_3 overlap + w_4 log(1 + overlap) + w_5 near + w_6 likelihood

overlap counts the last words of x that stand in d in a row; near is the sum of exp(-j / 8) over the last words of x, j
words before the end, that stand anywhere in d; likelihood is that of exp(-j / 8) log p(x_j | [d; x_<j]) over the last
32 tokens, which a language model reads only if w_6 is not 0. `ralm train reranker` fits w to signals (In-Context RALM,
Eq. 9).
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, UsageError
from ralm.protocols import Rows
from ralm.records import DoubleArray, Hits, Passages
from ralm.reranking.oracle import best_hits, contested
from ralm.reranking.zero_shot import decayed
from ralm.storage.manifest import open_consistently, read_manifest
from ralm.storage.outputs import FolderKind
from ralm.validation import check_count, check_number

LEXICAL_KIND: Final = FolderKind("lexical reranker")
LAST: Final = 32
"""Words, and tokens of the likelihood, at the end of a prefix."""
DECAY: Final = 8.0
_CHARACTERS: Final = 24 * LAST
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_PASSAGES_KEPT: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalWeights:
    """The weights of the features; those of `BUILT_IN` belong to scores of BM25.

    Raises UsageError if one is no finite number.
    """

    score: float
    rank: float
    overlap: float
    log_overlap: float
    near: float
    likelihood: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(name, value, minimum=-np.inf, maximum=np.inf)

    def scores(self, features: DoubleArray) -> DoubleArray:
        """f for features (float64, ... x 6)."""
        return features @ np.array([*asdict(self).values()])


BUILT_IN: Final = LexicalWeights(score=1.0, rank=0.0, overlap=2.0, log_overlap=0.0, near=0.0)


class PassageWords(NamedTuple):
    """The words of a passage: as a text with a space around each, and as a set in lower case."""

    text: str
    words: frozenset[str]


@lru_cache(_PASSAGES_KEPT)
def words_of_passage(contents: str) -> PassageWords:
    """The words of a passage; punctuation marks are words."""
    words = _WORD.findall(contents)
    return PassageWords(f" {' '.join(words)} ", frozenset(word.lower() for word in words))


class PrefixEnd:
    """The last words of a prefix; its last word may be unfinished."""

    def __init__(self, prefix: str) -> None:
        words = _WORD.findall(prefix[-_CHARACTERS:])[-LAST:]
        after = "" if prefix[-1:].isalnum() else " "
        self._ends = [f" {' '.join(words[-count:])}{after}" for count in range(1, len(words) + 1)]
        weights = np.exp(-np.arange(len(words), 0, -1) / DECAY)
        self._near = list(zip((word.lower() for word in words), weights.tolist(), strict=True))

    def overlap(self, passage: PassageWords) -> int:
        """How many of the last words stand in a passage in a row."""
        return bisect_left(self._ends, True, key=lambda end: end not in passage.text)

    def near(self, passage: PassageWords) -> float:
        """The sum of exp(-j / 8) over the last words that stand anywhere in a passage."""
        return sum(weight for word, weight in self._near if word in passage.words)


def lexical_features(prefix: str, contents: Sequence[str], scores: Sequence[float]) -> DoubleArray:
    """The features (float64, K x 6) of K passages in the order of the retriever, with its scores; the likelihood is
    0."""
    end = PrefixEnd(prefix)
    features_K6 = np.zeros((len(contents), 6))
    features_K6[:, 0] = scores
    features_K6[:, 1] = np.log(np.arange(1, len(contents) + 1))
    for row, text in enumerate(contents):
        passage = words_of_passage(text)
        overlap = end.overlap(passage)
        features_K6[row, 2:5] = overlap, np.log1p(overlap), end.near(passage)
    return features_K6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """Chooses the passages that a linear model of lexical features scores highest.

    `weights` are built in, or those of `open_lexical`. If the likelihood counts, the reading model reads the end of
    each prefix after each passage, as in zero-shot reranking. Raises UsageError if `candidates` is below 1.
    """

    candidates: int = 16
    weights: LexicalWeights = BUILT_IN

    def __post_init__(self) -> None:
        check_count("candidates", self.candidates)

    @property
    def config(self) -> dict[str, JsonValue]:
        """The options."""
        return {"reranker": "lexical", "candidates": self.candidates, "weights": asdict(self.weights)}

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """The k best of each row's hits, with f as scores; the first on a tie. A row with a single hit keeps it with
        score 0."""
        likelihoods: dict[tuple[int, int], float] = {}
        if self.weights.likelihood:
            pairs = contested(hits)
            found = rows.prefix_log_probs(pairs, LAST)
            likelihoods = {pair: decayed(one, DECAY) for pair, one in zip(pairs, found, strict=True)}
        scored: list[DoubleArray] = []
        for row in range(len(hits)):
            own = hits.of(row)
            if len(own) < 2:
                scored.append(np.zeros(len(own)))
                continue
            contents = [passages[number].contents for number, _ in own]
            features_K6 = lexical_features(rows.prefix(row), contents, [score for _, score in own])
            features_K6[:, 5] = [likelihoods.get((row, number), 0.0) for number, _ in own]
            scored.append(self.weights.scores(features_K6))
        return best_hits(hits, scored, k)


def open_lexical(path: Path | str) -> LexicalWeights:
    """Read the weights that `ralm train reranker` wrote.

    Raises NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    path = Path(path)
    manifest = open_consistently(path, lambda: read_manifest(path, kind=LEXICAL_KIND))
    weights: Any = manifest.settings.get("weights")
    try:
        return LexicalWeights(**weights)
    except (TypeError, UsageError) as error:
        raise DamagedFolderError(
            f"{path} is damaged: its manifest does not record the weights; train it again."
        ) from error
