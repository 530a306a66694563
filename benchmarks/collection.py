"""The data that retrieval is measured on: passages and stride queries as term numbers, the same for every engine."""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import DATA
from ralm.corpus.splitting import split_by_words
from ralm.demo import standard_library_documentation
from ralm.retrieval.analysis import ENGLISH, Analyser

_CORPORA: Final = ("britannica/edition4", "wikipedia_passages/passages", "medquad/corpus")
_WORDS, _WINDOW, _STRIDE = 100, 24, 3
_WORDS_OF_A_TEXT: Final = 6000


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """`terms` (int32): the terms of all passages, concatenated; the i-th passage ends at `ends[i]` (int64).

    `queries`: term numbers, repeats included, in the order of the text.
    """

    name: str
    terms: NDArray[np.int32]
    ends: NDArray[np.int64]
    queries: list[list[int]]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[list[int]]:
        """The passages, as lists of term numbers."""
        begin = 0
        for end in self.ends.tolist():
            yield self.terms[begin:end].tolist()
            begin = end

    def texts(self) -> Iterator[str]:
        """The passages as texts of words that analysis does not change."""
        return (" ".join([f"w{term}" for term in passage]) for passage in self)


def real_passages() -> Iterator[str]:
    """Yield passages of 100 words, from the corpora beside the checkout and Python's documentation."""
    for name in _CORPORA:
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
            for line in stream:
                yield from (piece.text for piece in split_by_words(json.loads(line)["text"], _WORDS))
    for document in standard_library_documentation():
        yield from (piece.text for piece in split_by_words(document.text, _WORDS))


def real_collection(texts: Iterable[str]) -> Collection:
    """Return passages with queries from held-out text: windows of 24 words, three words apart."""
    analyse = Analyser(ENGLISH)
    vocabulary: dict[str, int] = {}
    passages = [[vocabulary.setdefault(term, len(vocabulary)) for term in analyse(text)] for text in texts]
    queries = [
        [vocabulary.setdefault(term, len(vocabulary)) for term in analyse(" ".join(words[i : i + _WINDOW]))]
        for words in _held_out()
        for i in range(0, len(words) - _WINDOW, _STRIDE)
    ]
    terms = np.fromiter(chain.from_iterable(passages), np.int32)
    return Collection(name="real text", terms=terms, ends=np.cumsum([len(p) for p in passages]), queries=queries)


def _held_out() -> Iterator[list[str]]:
    """The beginnings of texts that are in no corpus."""
    yield (DATA / "wikitext_raw" / "test.txt").read_text(encoding="utf-8").split()[:_WORDS_OF_A_TEXT]
    lines = (DATA / "medquad" / "heldout_shared_topics.jsonl").read_text(encoding="utf-8").splitlines()
    yield " ".join(json.loads(line)["text"] for line in lines).split()[:_WORDS_OF_A_TEXT]
