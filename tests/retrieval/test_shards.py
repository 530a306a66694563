"""Parts that are joined are, byte for byte, what building at once writes; shards have the scores of the whole index."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.corpus.numbering import StoredPassages
from ralm.corpus.store import PassageStore, write_passages
from ralm.distributed.search import merge_hits
from ralm.errors import CorpusError
from ralm.records import Passage
from ralm.retrieval import update
from ralm.retrieval.analysis import ENGLISH
from ralm.retrieval.bm25 import kernels, search
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.bm25.scan import Forbidden
from ralm.retrieval.bm25.search import BM25
from ralm.retrieval.build import PartCounts, ShardFolder, build_index, documents_of, join_parts, write_index, write_part
from ralm.retrieval.index import Index, check_index, open_index
from ralm.retrieval.update import update_index
from tests.retrieval.searching import assert_equal, pieces, strides, words

TEXTS = st.lists(st.lists(st.sampled_from([f"w{number}" for number in range(9)]), max_size=7).map(" ".join), max_size=9)


def passages_of(texts: Sequence[str], first: int = 0) -> list[Passage]:
    return [
        Passage(number, f"d{(first + number) // 3}", "", text, metadata={"n": (first + number) // 4} if number else {})
        for number, text in enumerate(texts)
    ]


def parts_of(folder: Path, several: Sequence[Sequence[Passage]]) -> list[tuple[Path, PartCounts]]:
    parts = []
    for number, passages in enumerate(several):
        part = folder / f"part-{number}"
        part.mkdir(parents=True)
        parts.append((part, write_part(part, passages, ENGLISH, BuildOptions())))
    return parts


def shards_of(folder: Path, shares: Sequence[Sequence[tuple[Path, PartCounts]]]) -> list[ShardFolder]:
    placed = []
    for number, share in enumerate(shares):
        shard = folder / f"shard-{number}"
        shard.mkdir()
        full = [(part, held.passages) for part, held in share if held.passages]
        if full:
            placed.append(ShardFolder(shard, join_parts(full, shard, BuildOptions())))
    return placed


def at_once(several: Sequence[Sequence[Passage]]) -> list[Passage]:
    return [replace(one, number=number) for number, one in enumerate(one for part in several for one in part)]


def written(folder: Path, shards: Sequence[ShardFolder], documents: int) -> Index:
    write_index(folder, shards, documents, BM25Options(), ENGLISH, {}, force=False)
    assert check_index(folder) == []
    return open_index(folder)


@settings(max_examples=40)
@given(several=st.lists(TEXTS, min_size=1, max_size=5))
def test_one_shard_is_the_index_that_is_built_at_once(
    tmp_path_factory: pytest.TempPathFactory, several: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    firsts = [0, *accumulate(map(len, several))]
    passages = [passages_of(texts, first) for texts, first in zip(several, firsts, strict=False)]
    parts = parts_of(folder, passages)
    shards = shards_of(folder, [parts])
    documents = documents_of(held for _, held in parts)
    if not any(several):
        with pytest.raises(CorpusError, match="no passages"):
            written(folder / "joined", shards, documents)
        return
    plain = build_index(at_once(passages), folder / "plain")
    joined = written(folder / "joined", shards, documents).manifest
    assert (joined.files, joined.counts, joined.settings) == (plain.files, plain.counts, plain.settings)
    assert list(joined.files) == list(plain.files)


@settings(max_examples=40)
@given(several=st.lists(TEXTS, min_size=2, max_size=5), queries=TEXTS, k=st.integers(1, 9), data=st.data())
def test_shards_have_the_hits_of_the_whole_index(
    tmp_path_factory: pytest.TempPathFactory, several: list[list[str]], queries: list[str], k: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    passages = [passages_of(texts) for texts in several]
    if not any(several) or not queries:
        return
    shards = shards_of(folder, [[part] for part in parts_of(folder, passages)])
    index = written(folder / "sharded", shards, 1)
    build_index(at_once(passages), folder / "plain")
    plain = open_index(folder / "plain").bm25
    total = len(index.passages)
    lists = [data.draw(st.lists(st.integers(0, total - 1), max_size=3)) for _ in range(2)]
    forbidden = Forbidden.of(lists, np.arange(len(queries)) % 3 - 1)
    expected = plain.retrieve(queries, k, forbidden)
    whole = index.bm25.retrieve(queries, k, forbidden)
    assert_equal(whole, expected)
    assert [one.text for one in index.passages] == [text for texts in several for text in texts]

    border = data.draw(st.integers(0, len(shards)))
    found: list[tuple[int, float]] = []
    for only in (slice(border), slice(border, None)):
        numbers_QK, scores_QK = index.bm25_of(only).retrieve_exactly(queries[:1], k, forbidden.for_queries(0, 1))
        found += [(-score, number) for number, score in zip(numbers_QK[0], scores_QK[0], strict=True) if number >= 0]
    assert [(number, float(np.float32(-score))) for score, number in sorted(found)[:k]] == expected.of(0)


def test_streams_of_shards_have_the_hits_of_the_whole_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = words(0, 9000, 400)
    passages = passages_of(pieces(text, 9))
    some = [passages_of([one.text for one in part]) for part in (passages[:300], passages[300:500], passages[500:])]
    shards = shards_of(tmp_path, [[part] for part in parts_of(tmp_path, some)])
    index = written(tmp_path / "sharded", shards, 1)
    queries = strides(text[:600], 12, 2)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 10**9)
    expected = index.bm25.retrieve_exactly(queries, 4)
    monkeypatch.setattr(search, "STREAM_PASSAGES", 0)
    monkeypatch.setattr(BM25, "_scan", None)
    parts = [index.bm25_of(slice(place, place + 1)).retrieve_exactly(queries, 4) for place in range(3)]
    assert_equal(merge_hits(parts), merge_hits([expected]))


@pytest.mark.parametrize("with_metadata", [(), (1,), (0, 1, 2)])
def test_joined_passages_are_those_that_are_written_at_once(tmp_path: Path, with_metadata: tuple[int, ...]) -> None:
    several = []
    for place, count in enumerate((9000, 1, 16384, 5)):
        some = passages_of(["x" * (number % 7) for number in range(count)])
        several.append(some if place in with_metadata else [replace(one, metadata={}) for one in some])
        list(write_passages(tmp_path / f"{place}", several[-1]))
    list(write_passages(tmp_path / "at-once", at_once(several)))
    joined = StoredPassages([PassageStore(tmp_path / f"{place}") for place in range(4)])
    assert len([*write_passages(tmp_path / "joined", joined)]) == 25390
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "at-once").read_bytes()


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
        patch.setattr(update, "merge_small_segments", lambda *_: None)
        add(folder, count)
    assert len(open_index(folder / "index").segments) == 2


WAYS = [build, join, put_together, add, add_apart]


def test_a_number_of_31_bits_names_the_last_passage_that_is_allowed() -> None:
    assert kernels.MAX_PASSAGES == 2_147_483_648
    last = kernels.MAX_PASSAGES - 1
    assert kernels.passage_of(1 << kernels.NUMBER_BITS | kernels.MAX_SCORE - last) == last


@pytest.mark.parametrize("way", WAYS)
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
