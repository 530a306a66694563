"""Legible fakes of the seams: a tokenizer of words, a model that counts, a retriever that finds shared words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import JsonValue

from ralm.protocols import Tier
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, NextTokens, Passage, ScoringSequence, SpecialTokens
from ralm.terminal import Advance


class WordTokenizer:
    """A token a word; ids in the order in which words were first seen, shared by all instances of a test.

    With `begins`, the word <begin> is a BOS that stands before every text that is encoded with special tokens.
    """

    fingerprint = "words"
    end_token: int | None = 0
    unknown_token: int | None = None

    def __init__(self, words: Sequence[str] = (), *, begins: bool = False) -> None:
        self.words: list[str] = ["<end>", *(["<begin>"] if begins else []), *words]
        nothing = np.zeros(0, dtype=np.int64)
        self.special_tokens = SpecialTokens(np.array([1]) if begins else nothing, nothing, 1 if begins else None)

    def token_of(self, text: str) -> int | None:
        return self.words.index(text) if text in self.words else None

    def encode(self, text: str) -> IntArray:
        return np.array([self._id(word) for word in text.split()], dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        return self.encode(text), np.array(spans, dtype=np.int64).reshape(-1, 2)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        return np.concatenate([self.special_tokens.before, self.encode(text)])[:max_tokens]

    def decode(self, tokens: IntArray) -> str:
        return "".join(f"{self.words[token]} " for token in tokens)

    def _id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


@dataclass
class UnigramContinuations:
    """Distributions of `CountingModel`, which is told of every text that does not go on from one of the last call."""

    model: "CountingModel"
    before: list[list[int]] = field(default_factory=list)

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        self.model.reads += [text for text in texts if text[:-1].tolist() not in self.before]
        self.before = [text.tolist() for text in texts]
        return NextTokens(np.stack([self.model.next_log_probs_V(text) for text in texts]))


@dataclass
class CountingModel:
    """A model whose next token has probability (times it stands in what was read + 1) / (length read + vocabulary).

    So whatever stands in front of a text counts, and the numbers can be worked out by hand.
    """

    tokenizer: WordTokenizer
    vocabulary: int = 100
    max_length: int = 64
    name: str = "counting"
    end_tokens: frozenset[int] = frozenset({0})
    tier: Tier = "all"
    config: dict[str, JsonValue] = field(default_factory=lambda: {"name": "counting"})
    reads: list[IntArray] = field(default_factory=list)

    def score(self, passes: Sequence[ScoringSequence]) -> list[FloatArray]:
        return [self._score(one) for one in passes]

    def continuations(self) -> UnigramContinuations:
        return UnigramContinuations(self)

    def next_log_probs_V(self, tokens: IntArray) -> FloatArray:
        assert 0 < len(tokens) <= self.max_length
        counts_V = np.bincount(tokens, minlength=self.vocabulary) + 1.0
        return np.asarray(np.log(counts_V / counts_V.sum()), dtype=np.float32)

    def _score(self, one: ScoringSequence) -> FloatArray:
        self.reads.append(one.tokens_N[: one.targets_P[0]])
        log_probs = [self.next_log_probs_V(one.tokens_N[:place])[one.tokens_N[place]] for place in one.targets_P]
        return np.array(log_probs, dtype=np.float32)


class SharedWordsRetriever:
    """Ranks passages by the number of distinct words they share with the query; ties by lower number."""

    config: dict[str, JsonValue] = {"retriever": "shared words"}  # noqa: RUF012

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.queries: list[str] = []

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        self.queries.extend(queries)
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        scores_QK = np.zeros((len(queries), k), dtype=np.float32)
        for row, query in enumerate(queries):
            scores = [len(set(query.split()) & set(passage.contents.split())) for passage in self.passages]
            ranked = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
            for column, number in enumerate([number for number in ranked if scores[number] > 0][:k]):
                numbers_QK[row, column] = number
                scores_QK[row, column] = scores[number]
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)


class LetterEncoder:
    """Counts letters, weighted so that vectors differ: what it gives can be worked out by hand."""

    query_fingerprint = "letters"

    def __init__(self, dimension: int = 8) -> None:
        self.dimension = dimension
        self.config: dict[str, JsonValue] = {"name": "letters", "query_fingerprint": "letters"}
        self.query_config: dict[str, JsonValue] = {"fingerprint": "letters", "reading": {"letters": 8}}
        self.encoded: list[str] = []

    def passage_text(self, passage: Passage) -> str:
        return passage.text

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        self.encoded += [passage.text for passage in passages]
        return self.encode_queries([passage.text for passage in passages])

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        rows = [[text.count(chr(ord("a") + d)) + d * len(text) % 7 for d in range(self.dimension)] for text in queries]
        return np.array(rows, dtype=np.float32).reshape(len(queries), self.dimension)


def chosen_hits(numbers_R: IntArray) -> Hits:
    """One passage, or none, for each row."""
    numbers_R1 = numbers_R.astype(np.int64).reshape(-1, 1)
    return Hits(numbers_QK=numbers_R1, scores_QK=np.zeros(numbers_R1.shape, dtype=np.float32))


def passages_of(*texts: str) -> list[Passage]:
    """Untitled passages numbered from 0."""
    return [Passage(number=n, document_id=f"d{n}", title="", text=text) for n, text in enumerate(texts)]
