"""An index for BM25 with more passages than a hit can name is refused, wherever it would come from."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ralm.errors import CorpusError
from ralm.records import Passage
from ralm.retrieval import update
from ralm.retrieval.analysis import ENGLISH
from ralm.retrieval.bm25 import kernels
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.build import ShardFolder, build_index, join_parts, write_index, write_part
from ralm.retrieval.index import open_index
from ralm.retrieval.update import update_index

MOST = 5
REFUSED = r"at most 5 passages, but this one would have 6, or more; make several indexes"


def passages(begin: int, end: int) -> list[Passage]:
    return [Passage(number - begin, f"d{number}", "", f"w{number}") for number in range(begin, end)]


def part(folder: Path, begin: int, end: int) -> tuple[Path, int]:
    folder.mkdir(parents=True)
    write_part(folder, passages(begin, end), ENGLISH, BuildOptions())
    return folder, end - begin


def shard(folder: Path, *parts: tuple[Path, int]) -> ShardFolder:
    folder.mkdir()
    return ShardFolder(folder, join_parts(parts, folder, BuildOptions()))


def build(folder: Path, count: int) -> None:
    build_index(passages(0, count), folder / "index")


def join(folder: Path, count: int) -> None:
    shard(folder / "shard", part(folder / "a", 0, 3), part(folder / "b", 3, count))


def put_together(folder: Path, count: int) -> None:
    shards = [shard(folder / "one", part(folder / "a", 0, 3)), shard(folder / "two", part(folder / "b", 3, count))]
    write_index(folder / "index", shards, count, BM25Options(), ENGLISH, {}, force=False)


def add(folder: Path, count: int) -> None:
    build_index(passages(0, 4), folder / "index")
    update_index(folder / "index", passages(4, count))


def add_apart(folder: Path, count: int) -> None:
    """What is added stays a segment of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "merge_some", lambda *_: None)
        add(folder, count)
    assert len(open_index(folder / "index").segments) == 2


WAYS = [build, join, put_together, add, add_apart]


def test_a_number_of_31_bits_names_the_last_passage_that_is_allowed() -> None:
    assert kernels.MAX_PASSAGES == 2_147_483_648
    last = kernels.MAX_PASSAGES - 1
    assert kernels.passage_of(1 << kernels.NUMBER_BITS | kernels.MAX_SCORE - last) == last


@pytest.mark.parametrize("way", WAYS)
def test_too_many_passages_are_refused(
    way: Callable[[Path, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    with pytest.raises(CorpusError, match=REFUSED):
        way(tmp_path, MOST + 1)


@pytest.mark.parametrize("way", WAYS)
def test_as_many_as_are_allowed_are_taken(
    way: Callable[[Path, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    way(tmp_path, MOST)


def test_an_index_with_too_many_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, MOST + 1)
    monkeypatch.setattr(kernels, "MAX_PASSAGES", MOST)
    with pytest.raises(CorpusError, match=REFUSED):
        open_index(tmp_path / "index").bm25  # noqa: B018 - it is opened on first use
