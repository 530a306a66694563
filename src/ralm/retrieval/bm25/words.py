"""Finds the words of texts and their term ids, without Python for words that are known.

A word is a run of characters without white space, and most words repeat. Texts are read as UTF-8: a kernel cuts them
into words and looks each one up in a hash table. Only new words are analysed. Terms get their ids in the order of the
texts in which they occur first, and those of one text in byte order, so the ids follow from the postings alone.

Letters of shapes: B bytes of the texts, W words of them, N numbers of words, H places of the hash table, T texts, K
bytes of the words that are kept: of each its number (4), its size (1), and its letters.
"""

from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.retrieval.analysis import Analysis
from ralm.retrieval.bm25.kernels import kernel

Ids: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The term ids of some texts, one after the other, and how many each text has."""

_MAX_WORDS: Final = 1 << 20
"""Words that are kept at most, in a table that is then half full."""
_MAX_BYTES: Final = 1 << 24
"""Bytes of the words that are kept at most."""
_FULL: Final = 0.75
"""All words are forgotten before the next texts if so much of either is used."""
_LONGEST: Final = 255
"""Bytes of the longest word that is kept: longer ones rarely repeat."""
_HEAD: Final = 5
_END: Final = 0xFF
"""Ends a text; no byte of UTF-8 has this value."""
_SEED: Final = np.uint64(0xCBF29CE484222325)
_PRIME: Final = np.uint64(0x100000001B3)
"""FNV-1a's, for 64 bits."""


class WordIds:
    """The term ids of words; new terms enter the vocabulary, with the next ids. Only one thread may use it."""

    def __init__(self, vocabulary: dict[str, int], analysis: Analysis) -> None:
        self._vocabulary = vocabulary
        self._terms_of_word = analysis.prepare()
        self._kept_K = np.empty(_MAX_BYTES, np.uint8)
        self.clear()

    def clear(self) -> None:
        """Forget all words."""
        self._table_H = np.zeros(2 * _MAX_WORDS, np.uint64)
        self._kept = 0
        self._ids = array("i")
        self._id_begins = array("q", [0])

    def of_texts(self, texts: Sequence[str]) -> Ids:
        """Return the ids of some texts."""
        end = bytes([_END])
        data = b"".join(part for text in texts for part in (text.encode("utf-8", "surrogatepass"), end))
        if max(2 * len(self._id_begins) / len(self._table_H), self._kept / len(self._kept_K)) > _FULL:
            self.clear()
        most = len(data) // 2 + 1
        word_W, new_N2, end_T = np.empty(most, np.int32), np.empty((most, 2), np.int64), np.empty(len(texts), np.int64)
        new, self._kept = find_words(
            np.frombuffer(data, np.uint8), self._table_H, self._kept_K, self._kept, len(self._id_begins) - 1, word_W,
            new_N2, end_T,
        )  # fmt: skip
        self._learn(data, new_N2[:new])
        ids = np.frombuffer(self._ids, np.int32) if self._ids else np.zeros(0, np.int32)
        gathered: Ids = gather_ids(word_W, end_T, np.frombuffer(self._id_begins, np.int64), ids)
        return gathered

    def _learn(self, data: bytes, new_N2: NDArray[np.int64]) -> None:
        """Add new words, given where each begins and ends in the texts, and their new terms."""
        vocabulary, terms_of_word = self._vocabulary, self._terms_of_word
        terms = [terms_of_word(data[begin:end].decode("utf-8", "surrogatepass")) for begin, end in new_N2.tolist()]
        text_ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _END)
        last = 0
        for end in np.unique(np.searchsorted(new_N2[:, 0], text_ends)).tolist():
            new = {term for word_terms in terms[last:end] for term in word_terms if term not in vocabulary}
            last = end
            for term in sorted(new):
                vocabulary[term] = len(vocabulary)
        ids, id_begins = self._ids, self._id_begins
        for word_terms in terms:
            for term in word_terms:
                ids.append(vocabulary[term])
            id_begins.append(len(ids))


@kernel
def find_words(
    data_B: NDArray[np.uint8],
    table_H: NDArray[np.uint64],
    kept_K: NDArray[np.uint8],
    kept: int,
    next_number: int,
    word_W: NDArray[np.int32],
    new_N2: NDArray[np.int64],
    end_T: NDArray[np.int64],
) -> tuple[int, int]:
    """Write the numbers of the words of the texts, the bounds of new ones, and the number of words up to each end.

    Return how many new words there are, and how many bytes are then kept. New words get the numbers from `next_number`
    on, and stay as long as there is room. A place of the table has half of the hash of a word, and one more than where
    its bytes begin; 0 if it is empty.
    """
    place = word = text = new = 0
    while place < len(data_B):
        if data_B[place] == _END:
            end_T[text] = word
            text += 1
            place += 1
            continue
        space = white_space(data_B, place)
        if space:
            place += space
            continue
        begin = place
        hashed, place = _hashed(data_B, begin)
        slot, at = _look_up(table_H, kept_K, hashed, data_B, begin, place - begin)
        if at >= 0:
            word_W[word] = kept_K[at] | kept_K[at + 1] << 8 | kept_K[at + 2] << 16 | kept_K[at + 3] << 24
        else:
            word_W[word] = next_number + new
            new_N2[new, 0], new_N2[new, 1] = begin, place
            room = min(len(kept_K) - kept - _HEAD, _LONGEST) if 2 * (next_number + new) < len(table_H) else 0
            if place - begin <= room:
                table_H[slot] = hashed >> np.uint64(32) << np.uint64(32) | np.uint64(kept + 1)
                kept = _keep(kept_K, kept, next_number + new, data_B, begin, place - begin)
            new += 1
        word += 1
    return new, kept


@kernel
def _hashed(data_B: NDArray[np.uint8], place: int) -> tuple[np.uint64, int]:
    """Return the hash of the word at a place, and where it ends."""
    hashed, byte = _SEED, data_B[place]
    while 0x20 < byte < 0xC2 or (byte != _END and not white_space(data_B, place)):
        hashed = (hashed ^ np.uint64(byte)) * _PRIME
        place += 1
        byte = data_B[place]
    return hashed, place


@kernel
def _look_up(
    table_H: NDArray[np.uint64],
    kept_K: NDArray[np.uint8],
    hashed: np.uint64,
    data_B: NDArray[np.uint8],
    begin: int,
    size: int,
) -> tuple[np.uint64, np.int64]:
    """Return the place of a word in the table, and where its bytes begin; the empty place for it, and -1."""
    mask = np.uint64(len(table_H) - 1)
    tag = hashed >> np.uint64(32)
    slot = (hashed ^ tag) & mask
    while table_H[slot]:
        at = np.int64(table_H[slot] & np.uint64(0xFFFFFFFF)) - 1
        if table_H[slot] >> np.uint64(32) == tag and kept_K[at + 4] == size:
            same = 0
            while same < size and kept_K[at + _HEAD + same] == data_B[begin + same]:
                same += 1
            if same == size:
                return slot, at
        slot = (slot + np.uint64(1)) & mask
    return slot, np.int64(-1)


@kernel
def _keep(kept_K: NDArray[np.uint8], kept: int, number: int, data_B: NDArray[np.uint8], begin: int, size: int) -> int:
    """Append a word; return how many bytes are then kept."""
    for i in range(4):
        kept_K[kept + i] = number >> 8 * i & 0xFF
    kept_K[kept + 4] = size
    for i in range(size):
        kept_K[kept + _HEAD + i] = data_B[begin + i]
    return kept + _HEAD + size


@kernel
def white_space(data_B: NDArray[np.uint8], place: int) -> int:
    """Return how many bytes the character at a place has if it is white space, as for `str.split`; otherwise 0."""
    # comparisons one by one: numba takes a second to compile a set
    first = data_B[place]
    if first <= 0x20:
        return int(first == 0x20 or 0x09 <= first <= 0x0D or first >= 0x1C)
    if first < 0xC2 or first > 0xE3 or 0xC2 < first < 0xE1:
        return 0
    second = data_B[place + 1]
    if first == 0xC2:
        return 2 if second == 0x85 or second == 0xA0 else 0
    third = data_B[place + 2]
    if first == 0xE1:
        is_space = second == 0x9A and third == 0x80
    elif first == 0xE3:
        is_space = second == 0x80 and third == 0x80
    elif second == 0x80:
        is_space = third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF
    else:
        is_space = second == 0x81 and third == 0x9F
    return 3 if is_space else 0


@kernel
def gather_ids(
    word_W: NDArray[np.int32], end_T: NDArray[np.int64], begin_N: NDArray[np.int64], ids: NDArray[np.int32]
) -> Ids:
    """Return the ids of the words of texts; those of word n begin at `begin_N[n]`."""
    sizes_T, word = np.zeros(len(end_T), np.int64), 0
    for text in range(len(end_T)):
        while word < end_T[text]:
            sizes_T[text] += begin_N[word_W[word] + 1] - begin_N[word_W[word]]
            word += 1
    gathered, place = np.empty(sizes_T.sum(), np.int32), 0
    for number in word_W[:word]:
        for i in range(begin_N[number], begin_N[number + 1]):
            gathered[place] = ids[i]
            place += 1
    return gathered, sizes_T
