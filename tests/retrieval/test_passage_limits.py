"""How many passages an index for BM25 can have, however they are added."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ralm.errors import CorpusError
from ralm.records import Passage
from ralm.retrieval.bm25 import kernels
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.retrieval.update import update_index

MOST = 5
REFUSED = r"at most 5 passages, but this one would have 6, or more; make several indexes"


def passages(begin: int, end: int) -> list[Passage]:
    return [Passage(number - begin, f"d{number}", "", f"w{number}") for number in range(begin, end)]


def build(folder: Path, count: int) -> None:
    build_index(passages(0, count), folder / "index")


def add(folder: Path, count: int) -> None:
    build_index(passages(0, 4), folder / "index")
    update_index(folder / "index", passages(4, count))


def test_a_number_of_31_bits_names_the_last_passage_that_is_allowed() -> None:
    assert kernels.MAX_PASSAGES == 2_147_483_648
    last = kernels.MAX_PASSAGES - 1
    assert kernels.passage_of(1 << kernels.NUMBER_BITS | kernels.MAX_SCORE - last) == last


@pytest.mark.parametrize("way", [build, add])
def test_as_many_as_are_allowed_and_one_more(
    way: Callable[[Path, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    way(tmp_path / "allowed", MOST)
    with pytest.raises(CorpusError, match=REFUSED):
        way(tmp_path / "more", MOST + 1)


def test_an_index_with_too_many_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, MOST + 1)
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    with pytest.raises(CorpusError, match=REFUSED):
        open_index(tmp_path / "index").bm25  # noqa: B018 - it is opened on first use
