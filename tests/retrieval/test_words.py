"""Words and term ids of texts, found by a kernel, against `str.split` and the analyser."""

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from ralm.retrieval.analysis import ENGLISH, Analysis, analysis_by_name
from ralm.retrieval.bm25 import words
from ralm.retrieval.bm25.words import WordIds, white_space

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
WORDS = st.one_of(
    st.sampled_from(
        ["the", "Cats", "cat's", "running,", "na\u00efve", "\u6771\u4eac", "\u2003x", "l'avion", "x" * 300]
    ),
    st.text(max_size=6),
)
TEXTS = st.lists(
    st.lists(st.tuples(WORDS, st.sampled_from(SPACES)), max_size=12).map(lambda some: "".join(map("".join, some))),
    max_size=6,
)


def plainly(batches: Sequence[Sequence[str]], analysis: Analysis) -> tuple[dict[str, int], list[list[int]], list[int]]:
    """The vocabulary, the ids of each batch, and how many each text has, one text after the other."""
    vocabulary: dict[str, int] = {}
    terms = analysis.prepare()
    ids: list[list[int]] = []
    sizes: list[int] = []
    for batch in batches:
        ids.append([])
        for text in batch:
            found = [term for word in text.split() for term in terms(word)]
            for term in sorted({*found}):
                vocabulary.setdefault(term, len(vocabulary))
            ids[-1] += map(vocabulary.__getitem__, found)
            sizes.append(len(found))
    return vocabulary, ids, sizes


@given(batches=st.lists(TEXTS, max_size=4), name=st.sampled_from(["english", "cjk", "french"]), few=st.booleans())
def test_ids_are_those_of_a_plain_loop(batches: list[list[str]], name: str, few: bool) -> None:
    analysis = analysis_by_name(name)
    vocabulary, expected, sizes = plainly(batches, analysis)
    with pytest.MonkeyPatch.context() as patch:
        if few:  # so that words are forgotten, and some are not kept at all
            patch.setattr(words, "_MAX_WORDS", 8)
            patch.setattr(words, "_MAX_BYTES", 60)
        own: dict[str, int] = {}
        numbering = WordIds(own, analysis)
        found: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = [numbering.of_texts(batch) for batch in batches]
    assert [ids.tolist() for ids, _ in found] == expected
    assert [size for _, counts in found for size in counts.tolist()] == sizes
    assert list(own) == list(vocabulary)


def test_white_space_is_that_of_python() -> None:
    for code in range(sys.maxunicode + 1):
        data = (chr(code) + "a").encode("utf-8", "surrogatepass") + b"\xff"
        expected = len(data) - 2 if chr(code).isspace() else 0
        assert white_space(np.frombuffer(data, np.uint8), 0) == expected, hex(code)


def test_words_with_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million words, two that have the same half of the hash, and the same place in a table of two."""
    hash_N = np.full(1_000_000, words._SEED)
    for place in range(6):
        hash_N = hash_N ^ (
            np.arange(1_000_000, dtype=np.uint64) // np.uint64(10**place) % np.uint64(10) + np.uint64(48)
        )
        hash_N *= words._PRIME
    key_N = hash_N >> np.uint64(32) << np.uint64(1) | (hash_N ^ hash_N >> np.uint64(32)) & np.uint64(1)
    order_N = np.argsort(key_N, kind="stable")
    same = np.flatnonzero(np.diff(key_N[order_N]) == 0)[0]
    one, other = (f"{number:06}"[::-1] for number in order_N[same : same + 2].tolist())
    monkeypatch.setattr(words, "_MAX_WORDS", 1)
    ids = WordIds({}, ENGLISH).of_texts([f"{one} {other} {one} {other} {one}"])[0].tolist()
    assert ids == ([0, 1, 0, 1, 0] if one < other else [1, 0, 1, 0, 1])
    assert WordIds({}, ENGLISH).of_texts([one, other])[0].tolist() == [0, 1]


def test_halves_of_characters_and_no_texts() -> None:
    numbering = WordIds({}, ENGLISH)
    assert numbering.of_texts([])[1].tolist() == []
    assert numbering.of_texts(["", " \u3000"])[1].tolist() == [0, 0]
    assert numbering.of_texts(["green \ud800"])[0].tolist()[0] == 0
