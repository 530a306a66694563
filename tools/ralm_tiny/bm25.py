"""Okapi BM25 over a list of passages, in plain numpy: enough to make training data.

The package has the real retriever. This one shares no code with it, so an error in one shows up against the other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

K1, B = 0.9, 0.4
PASSAGE_WORDS = 100


def passages_of(text: str) -> list[str]:
    """The text in pieces of 100 words; white space is kept inside and stripped at the ends."""
    words = re.findall(r"\S+\s*", text)
    return ["".join(words[start : start + PASSAGE_WORDS]).strip() for start in range(0, len(words), PASSAGE_WORDS)]


def terms_of(text: str) -> list[str]:
    """Lower-case words; names are split at underscores, since documentation spells them both ways."""
    return re.findall(r"[^\W_]+", text.lower())


@dataclass(frozen=True, eq=False)
class Bm25:
    """An inverted index: postings of term t are `documents[offsets[t]:offsets[t + 1]]`, with their weights."""

    vocabulary: dict[str, int]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int32]
    weights: NDArray[np.float32]
    size: int

    @classmethod
    def build(cls, texts: Sequence[str]) -> "Bm25":
        """Index the texts; a text's number is its position."""
        vocabulary: dict[str, int] = {}
        terms = [[vocabulary.setdefault(t, len(vocabulary)) for t in terms_of(text)] for text in texts]
        lengths = np.array([len(t) for t in terms])
        flat = np.array([t for row in terms for t in row], dtype=np.int64)
        owner = np.repeat(np.arange(len(texts)), lengths)
        pairs, frequency = np.unique(flat * len(texts) + owner, return_counts=True)
        term, document = np.divmod(pairs, len(texts))
        document_frequency = np.bincount(term, minlength=len(vocabulary))
        idf = np.log(1 + (len(texts) - document_frequency + 0.5) / (document_frequency + 0.5))
        norm = K1 * (1 - B + B * lengths[document] / lengths.mean())
        offsets = np.concatenate([[0], np.cumsum(document_frequency)])
        weights = (idf[term] * frequency / (frequency + norm)).astype(np.float32)
        return cls(vocabulary, offsets, document.astype(np.int32), weights, len(texts))

    def search(self, query: str, k: int, most_postings: int) -> NDArray[np.int64]:
        """The numbers of the k best texts, best first, by terms that are in at most so many texts."""
        scores = np.zeros(self.size, dtype=np.float32)
        for term in {self.vocabulary[t] for t in terms_of(query) if t in self.vocabulary}:
            start, stop = self.offsets[term], self.offsets[term + 1]
            if stop - start <= most_postings:
                scores[self.documents[start:stop]] += self.weights[start:stop]
        k = min(k, self.size)
        best = np.argpartition(-scores, k - 1)[:k]
        return best[np.lexsort((best, -scores[best]))]
