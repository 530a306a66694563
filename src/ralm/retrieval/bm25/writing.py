"""Writes the arrays of a BM25 index (`ralm.retrieval.bm25.arrays` lists them) into a folder, in bounded memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ralm.retrieval.bm25.arrays import narrow
from ralm.retrieval.bm25.codes import ESCAPE
from ralm.terminal import progress_bar


def write_totals(folder: Path, tokens: int, with_terms: int) -> None:
    """Write the number of terms in all passages, and the number of passages with any term."""
    np.save(folder / "totals.npy", np.array([tokens, with_terms], np.int64))


def write_vocabulary(folder: Path, vocabulary: Sequence[str]) -> None:
    """Write the terms, given in the order of their numbers.

    They are written in byte order, which equals the order of their characters, for binary search on disk.
    """
    order = sorted(range(len(vocabulary)), key=vocabulary.__getitem__)
    spelt = [vocabulary[number].encode("utf-8", "surrogatepass") for number in order]
    sizes = np.fromiter(map(len, spelt), np.int64, len(spelt))
    np.save(folder / "term_sizes.npy", narrow(sizes))
    np.save(folder / "term_ids.npy", np.array(order, np.int32))
    with (folder / "vocabulary.npy").open("wb") as stream:
        _begin_array(stream, np.uint8, int(sizes.sum()))
        stream.writelines(spelt)


def write_postings(
    folder: Path,
    offsets: NDArray[np.int64],
    code_table: NDArray[np.int32],
    postings: Iterable[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> None:
    """Write where the postings of each term begin and the last ones end (`offsets`), the table of codes, and all
    postings: their passages and rows of that table, some at a time, in the order of the terms."""
    total = int(offsets[-1])
    np.save(folder / "offsets.npy", narrow(offsets))
    np.save(folder / "code_table.npy", code_table)
    escaped, escaped_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    written = 0
    with (
        (folder / "passages.npy").open("wb") as passages_file,
        (folder / "codes.npy").open("wb") as codes_file,
        progress_bar("Merging postings", total) as advance,
    ):
        _begin_array(passages_file, np.int32, total)
        _begin_array(codes_file, np.uint8, total)
        for passages, rows in postings:
            passages_file.write(passages.data)
            codes_file.write(np.minimum(rows, ESCAPE).astype(np.uint8).data)
            places = np.flatnonzero(rows > ESCAPE)
            escaped.append(places + written)
            escaped_rows.append(rows[places])
            written += len(passages)
            advance(len(passages))
    np.save(folder / "escaped.npy", np.concatenate(escaped))
    np.save(folder / "escaped_rows.npy", np.concatenate(escaped_rows))


def _begin_array(stream: BinaryIO, dtype: DTypeLike, length: int) -> None:
    """Write the head of an .npy file; the numbers are written after it, piece by piece."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": (length,)})
