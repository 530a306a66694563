"""An index that is updated: always the same as one built at once of what is left."""

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ralm.errors import (
    CorpusError,
    DamagedFolderError,
    FolderError,
    FolderExistsError,
    StorageError,
    UsageError,
)
from ralm.records import FloatArray, Hits, Passage
from ralm.retrieval import writer
from ralm.retrieval.allowed import mask_without
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import DenseSearchOptions, VectorOptions
from ralm.retrieval.index import Index, check_index, open_index
from ralm.retrieval.update import add_vectors, update_index
from ralm.retrieval.writer import plan_merges
from tests.campaign import campaign
from tests.fakes import LetterEncoder
from tests.fuzz.mutations import mend
from tests.retrieval.searching import assert_equal, streamed

WORDS = [f"w{number}" for number in range(9)]
ALWAYS = 10**9
"""In place of `writer._MIN_RATIO`: an update merges all segments."""
Texts = list[tuple[str, list[str]]]
"""Documents: their ids, and the texts of their passages."""


def passages(documents: Iterable[tuple[str, Sequence[str]]]) -> Iterator[Passage]:
    number = 0
    for document, texts in documents:
        for text in texts:
            yield Passage(number, document, f"about {document}", text)
            number += 1


def same(updated: Index, at_once: Index, queries: Sequence[str]) -> None:
    """The passages and the hits, in every way of searching."""
    assert list(updated.passages) == list(at_once.passages)
    assert [*updated.passages.origins()] == [*at_once.passages.origins()]
    for k in (1, 4):
        assert_equal(updated.bm25.retrieve(queries, k), at_once.bm25.retrieve(queries, k))
        found, expected = (
            streamed(one.bm25, queries, k, forbidden=one.bm25._in_rows(len(queries), None))
            for one in (updated, at_once)
        )
        assert_equal(Hits(updated.passages.numbering.numbers(found.numbers_QK), found.scores_QK), expected)


TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join)
DOCUMENT = st.lists(TEXT, min_size=1, max_size=4)


class Updates(RuleBasedStateMachine):
    """Adds, replacements and removals in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(Updates.root) / str(len(list(Path(Updates.root).iterdir())))
        self.folder.mkdir()
        self.index = self.folder / "index"
        self.texts: dict[str, list[str]] = {}
        self.names = iter(range(10**6))

    root = ""

    def named(self, documents: list[list[str]]) -> dict[str, list[str]]:
        return {f"d{next(self.names)}": texts for texts in documents}

    @initialize(documents=st.lists(DOCUMENT, min_size=1, max_size=8))
    def build(self, documents: list[list[str]]) -> None:
        self.texts = self.named(documents)
        build_index(passages(self.texts.items()), self.index)

    @rule(documents=st.lists(DOCUMENT, min_size=1, max_size=4), data=st.data(), removed=st.integers(0, 3))
    def update(self, documents: list[list[str]], data: st.DataObject, removed: int) -> None:
        added = self.named(documents)
        gone = (
            data.draw(st.lists(st.sampled_from(list(self.texts)), max_size=removed, unique=True)) if self.texts else []
        )
        update_index(self.index, passages(added.items()), remove=gone)
        self.texts = {name: texts for name, texts in self.texts.items() if name not in gone} | added

    @rule(text=DOCUMENT, data=st.data())
    def replace(self, text: list[str], data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.texts)))
        update_index(self.index, passages([(name, text)]), replace=True)
        del self.texts[name]
        self.texts[name] = text

    @precondition(lambda self: len(self.texts) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(list(self.texts)), min_size=1, unique=True))
        if len(gone) < len(self.texts):
            update_index(self.index, remove=gone)
            self.texts = {name: texts for name, texts in self.texts.items() if name not in gone}

    @invariant()
    def is_as_built_at_once(self) -> None:
        if self.index.exists():
            at_once = self.folder / "at-once"
            build_index(passages(self.texts.items()), at_once, force=True)
            updated = open_index(self.index)
            queries = [*WORDS, " ".join(WORDS), "w0 w1 w2", "w1 w2 w3 w3", "about d1 w2", "none"]
            same(updated, open_index(at_once), queries)
            assert updated.manifest.counts["documents"] == len(self.texts)
            assert check_index(self.index) == []
            assert not [*self.folder.glob(".*")]

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("times", [campaign(0), writer._MIN_RATIO, campaign(ALWAYS)])
def test_any_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Without merging on the way, and with it."""
    monkeypatch.setattr(writer, "_MIN_RATIO", times)
    monkeypatch.setattr(Updates, "root", str(tmp_path))
    run_state_machine_as_test(
        Updates,
        settings=settings(max_examples=15, stateful_step_count=8, suppress_health_check=[*HealthCheck]),
    )


def some(count: int, first: int = 0) -> dict[str, list[str]]:
    """Documents of one to three passages."""
    drawn = np.random.default_rng(first)
    return {
        f"d{first + number}": [" ".join(drawn.choice(WORDS, 6)) for _ in range(1 + number % 3)]
        for number in range(count)
    }


def built(folder: Path, documents: dict[str, list[str]], **options: Any) -> Path:
    build_index(passages(documents.items()), folder, **options)
    return folder


class DistinctEncoder(LetterEncoder):
    """No two passages score the same: of equal ones FAISS keeps any."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        return super().encode_queries(queries) * np.sqrt(np.arange(2, 2 + self.dimension, dtype=np.float32))


def alike(found: Hits, expected: Hits, *, exact: bool) -> None:
    """The same hits, or nearly: the graph of HNSW may miss a neighbour."""
    if exact:
        np.testing.assert_array_equal(found.numbers_QK, expected.numbers_QK)
        np.testing.assert_allclose(found.scores_QK, expected.scores_QK, rtol=1e-6)
    for row, others in zip(found.numbers_QK.tolist(), expected.numbers_QK.tolist(), strict=True):
        assert len({*row} & {*others}) >= len(row) - 2


@pytest.mark.parametrize("string", ["Flat", "SQfp16", "IVF4,Flat", "HNSW32"])
def test_vectors_are_updated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, string: str) -> None:
    encoder = DistinctEncoder()
    letters = np.random.default_rng(5)  # no two of the best twelve scores of a query are equal
    documents = {name: ["".join(letters.choice([*"abcdefgh"], 40)) for _ in texts] for name, texts in some(60).items()}
    stored = VectorOptions(faiss=string)
    kept = {name: texts for name, texts in documents.items() if int(name[1:]) < 50}
    index = built(tmp_path / "index", kept, encoder=encoder, vectors=stored)
    merged = Path(shutil.copytree(index, tmp_path / "merged"))
    added = {name: documents[name] for name in documents if name not in kept}
    for path, ratio in ((index, writer._MIN_RATIO), (merged, ALWAYS)):
        monkeypatch.setattr(writer, "_MIN_RATIO", ratio)
        encoder.encoded.clear()
        update_index(path, passages(added.items()), remove=["d3", "d7"], encoders={"main": encoder})
        assert encoder.encoded == [text for texts in added.values() for text in texts], "the others stay encoded"
    left = {name: texts for name, texts in documents.items() if name not in ("d3", "d7")}
    at_once = open_index(built(tmp_path / "at-once", left, encoder=encoder, vectors=stored))
    search = {"IVF4,Flat": DenseSearchOptions(nprobe=4), "HNSW32": DenseSearchOptions(ef_search=200)}.get(string)
    queries = ["abba", "hhgah", "ccfed"]
    expected = at_once.dense(search, encoder=encoder).retrieve(queries, 9)
    fingerprints = {open_index(path).vector_sets.sets["main"].fingerprint for path in (index, merged)}
    assert (len(fingerprints) == 1) == (string in ("Flat", "SQfp16")), "merging makes approximate vectors anew"
    for path, segments in ((index, 2), (merged, 1)):
        opened = open_index(path)
        assert len(opened.segments) == segments
        found = opened.dense(search, encoder=encoder).retrieve(queries, 9)
        alike(found, expected, exact=search is None or search.ef_search is None)
        mask_N = mask_without(len(opened.passages), [0, 55])
        without = opened.dense(search, encoder=encoder).only(mask_N).retrieve(queries, 9)
        others = at_once.dense(search, encoder=encoder).only(mask_N).retrieve(queries, 9)
        alike(without, others, exact=search is None or search.ef_search is None)
        assert check_index(path) == []


def test_vectors_that_lose_when_merged_stay_apart(tmp_path: Path) -> None:
    encoder, documents = LetterEncoder(), some(400)
    index = built(tmp_path / "index", documents, encoder=encoder, vectors=VectorOptions(faiss="PQ4x4"))
    update_index(index, passages(some(300, 400).items()), remove=["d3"], encoders={"main": encoder})
    opened = open_index(index)
    assert len(opened.segments) == 2, "though the second is large"
    assert opened.dense(encoder=encoder).retrieve(["w1 w2"], 600).numbers_QK.max() == len(opened.passages) - 1
    file = index / opened.vector_sets.sets["main"].file
    stored = file.read_bytes()
    update_index(index, remove=[f"d{number}" for number in range(4, 300)])
    assert file.read_bytes() == stored, "though most of it is gone"
    update_index(index, remove=[f"d{number}" for number in range(400) if number not in range(3, 300)])
    assert not file.exists(), "nothing is left of it"
    assert len(open_index(index).dense(encoder=encoder).retrieve(["w1 w2"], 600).of(0)) == len(
        [*passages(some(300, 400).items())]
    )
    assert check_index(index) == []


def test_too_few_vectors_to_train_on_are_all_compared(tmp_path: Path) -> None:
    encoder, documents = DistinctEncoder(), some(90)
    index = built(tmp_path / "index", documents, encoder=encoder, vectors=VectorOptions(faiss="IVF30,Flat"))
    update_index(index, remove=[name for name in documents if int(name[1:]) > 5])
    left = {name: texts for name, texts in documents.items() if int(name[1:]) <= 5}
    at_once = open_index(built(tmp_path / "at-once", left, encoder=encoder)).dense(encoder=encoder)
    found = open_index(index).dense(encoder=encoder).retrieve(WORDS, 20)
    alike(found, at_once.retrieve(WORDS, 20), exact=True)
    update_index(index, passages(some(90, 100).items()), encoders={"main": encoder})
    assert "nprobe" in open_index(index).dense(encoder=encoder).config, "there are enough again"


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    index = built(tmp_path / "index", some(9), encoder=LetterEncoder())
    other = LetterEncoder()
    other.config = {**other.config, "query_fingerprint": "other"}
    with pytest.raises(FolderError, match="were made with another encoder than this one: query_fingerprint is 'o"):
        update_index(index, passages(some(2, 20).items()), encoders={"main": other})
    other.config = {**LetterEncoder().config, "encoder": "/moved/elsewhere", "option_of_a_later_version": 1}
    update_index(index, passages(some(2, 20).items()), encoders={"main": other})


def test_no_vectors_are_added_once_passages_were_removed(tmp_path: Path) -> None:
    index = built(tmp_path / "index", some(30))
    update_index(index, remove=["d3"])
    with pytest.raises(UsageError, match="passages were removed from .* build it again with `ralm index`"):
        add_vectors(index, LetterEncoder())


@pytest.mark.parametrize("kind", ["Flat", "SQfp16", "IVF8,Flat"])
def test_vectors_of_several_segments_are_those_of_one(tmp_path: Path, kind: str) -> None:
    encoder, options, letters = DistinctEncoder(), VectorOptions(faiss=kind), np.random.default_rng(0)
    documents = {name: ["".join(letters.choice([*"abcdefgh"], 40)) for _ in texts] for name, texts in some(440).items()}
    queries = ["".join(letters.choice([*"abcdefgh"], 9)) for _ in range(9)]
    index = built(tmp_path / "index", {name: texts for name, texts in documents.items() if int(name[1:]) < 400})
    update_index(index, passages((name, texts) for name, texts in documents.items() if int(name[1:]) >= 400))
    for path in (index, at_once := built(tmp_path / "at-once", documents)):
        add_vectors(path, encoder, options, name="v")
    opened = open_index(index)
    assert len(opened.segments) == len(opened.vector_sets.sets["v"].files) == 2
    assert check_index(index) == []
    for effort in (DenseSearchOptions(), DenseSearchOptions(nprobe=2)) if "IVF" in kind else (DenseSearchOptions(),):
        assert_equal(
            *(open_index(path).dense(effort, encoder=encoder).retrieve(queries, 1000) for path in (index, at_once))
        )
    add_vectors(index, encoder, options, name="v", force=True)
    sets = [one.vector_sets.sets["v"] for one in (open_index(index), opened)]
    assert (sets[0].files, sets[0].fingerprint) == (sets[1].files, sets[1].fingerprint), "they replace the same ones"
    update_index(index, remove=["d3"])
    assert len(open_index(index).dense(encoder=encoder).retrieve(["w1"], 5).of(0)) == 5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"remove": ["d1", "x", "y"]}, CorpusError, r"2 documents \('x', 'y'\) are not in .*; nothing was changed"),
        ({"remove": ["\ud800"]}, CorpusError, r"the document '\\ud800' is not in"),
        ({"added": {"d2": ["w1"]}}, CorpusError, "the document 'd2' is already in .*`replace=True`"),
        (
            {"added": {"a": ["w1"], "b": ["w2"]}, "then": {"a": ["w3"]}},
            CorpusError,
            "'a' is given twice among the added",
        ),
        ({"remove": ["twice"]}, CorpusError, "the id 'twice' is shared by several documents"),
        ({"added": {"twice": ["w1"]}, "replace": True}, CorpusError, "so which to remove is unclear"),
        ({}, UsageError, "there is nothing to update"),
        ({"remove": ["d0", "d1", "d2", "d3"]}, UsageError, "nothing would be left of"),
    ],
)
def test_bad_updates_change_nothing(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    documents = [*some(4).items(), ("twice", ["w1"]), ("between", ["w2"]), ("twice", ["w3"])]
    build_index(passages(documents), tmp_path / "index")
    before = (tmp_path / "index" / "manifest.json").read_bytes()
    added = [*change.get("added", {}).items(), *change.get("then", {}).items()]
    remove = change.get("remove", [])
    if "d3" in remove:
        build_index(passages(some(4).items()), tmp_path / "index", force=True)
        before = (tmp_path / "index" / "manifest.json").read_bytes()
        error, message = UsageError, "nothing would be left of"
    with pytest.raises(error, match=message):
        update_index(tmp_path / "index", passages(added), remove=remove, replace=change.get("replace", False))
    assert (tmp_path / "index" / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert check_index(tmp_path / "index") == []


def wrong_counts(removed: Path) -> None:
    """Fewer postings would be left than there are."""
    counts = np.load(removed / "counts.npy")
    np.save(removed / "counts.npy", counts + 1)


def wrong_terms(removed: Path) -> None:
    terms = np.load(removed / "terms.npy")
    np.save(removed / "terms.npy", terms + 1000)


@pytest.mark.parametrize("alter", [wrong_counts, wrong_terms])
def test_removals_that_do_not_fit_the_index(tmp_path: Path, alter: Callable[[Path], None]) -> None:
    """Though the checksums fit: the kernels that merge check no bounds."""
    index = built(tmp_path / "index", some(30))
    update_index(index, remove=["d3", "d4"])
    alter(next((index / "removed").iterdir()))
    mend(index)
    with pytest.raises(DamagedFolderError, match=r"its list of removed passages does not fit it"):
        update_index(index, remove=[f"d{number}" for number in range(5, 20)])
    assert "does not fit it" in check_index(index)[0]


def test_a_reader_keeps_what_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(tmp_path / "index", some(30))
    opened = open_index(index)
    expected = opened.bm25.retrieve(WORDS, 5)
    fresh = open_index(index)
    monkeypatch.setattr(writer, "_MIN_RATIO", ALWAYS)
    update_index(index, passages(some(3, 40).items()), remove=["d0", "d1"])
    for reader in (opened, fresh):
        np.testing.assert_array_equal(reader.bm25.retrieve(WORDS, 5).numbers_QK, expected.numbers_QK)
        assert reader.passages[0].document_id == "d0"
    with pytest.raises(DamagedFolderError, match="built again"):
        pickle.loads(pickle.dumps(opened))
    now = open_index(index)
    same(pickle.loads(pickle.dumps(now)), now, WORDS)


def test_two_updates_at_once(tmp_path: Path) -> None:
    """The second is refused, and the first goes on."""
    index = built(tmp_path / "index", some(9))

    def more() -> Iterator[Passage]:
        yield from passages(some(2, 20).items())
        with pytest.raises(FolderExistsError, match="another process is writing"):
            update_index(index, remove=["d1"])

    update_index(index, more())
    assert len(open_index(index).passages) == len(list(passages({**some(9), **some(2, 20)}.items())))


def test_an_update_of_what_has_just_been_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that finished after the index was opened and before it was locked."""
    index = built(tmp_path / "index", some(9))

    def opened_late(path: Path) -> Index:
        opened = open_index(path)
        monkeypatch.undo()
        update_index(index, remove=["d1"])
        return opened

    monkeypatch.setattr("ralm.retrieval.update.open_index", opened_late)
    with pytest.raises(FolderExistsError, match="another process has just changed"):
        update_index(index, remove=["d2"])
    assert len(open_index(index).segments) == 1
    assert open_index(index).manifest.counts["documents"] == 8


def test_ids_are_looked_up_before_anything_is_encoded(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    index = built(tmp_path / "index", some(9), encoder=encoder)
    encoder.encoded.clear()
    with pytest.raises(CorpusError, match="'x' is not in"):
        update_index(index, passages(some(2, 20).items()), remove=["x"], encoders={"main": encoder})
    assert encoder.encoded == []


def test_a_full_disk(tmp_path: Path) -> None:
    index = built(tmp_path / "index", some(9))
    before = (index / "manifest.json").read_bytes()

    def more() -> Iterator[Passage]:
        yield from passages(some(2, 20).items())
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="no space left on the disk while writing"):
        update_index(index, more())
    assert (index / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_an_index_that_is_a_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(tmp_path / "index", some(9))
    stat = Path.stat

    def on_another_device(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if path == index else found

    monkeypatch.setattr(Path, "stat", on_another_device)
    with pytest.raises(StorageError, match="is a disk of its own"):
        update_index(index, remove=["d1"])
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_fingerprint_says_what_is_in_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = []
    for name, ratio in (("one", 0), ("other", ALWAYS)):
        monkeypatch.setattr(writer, "_MIN_RATIO", ratio)
        index = built(tmp_path / name, some(30))
        update_index(index, remove=["d4"])
        update_index(index, passages(some(1, 50).items()), remove=["d9"])
        fingerprints.append(open_index(index).fingerprint)
    assert fingerprints[0] == fingerprints[1], "whether it was merged does not matter"
    update_index(tmp_path / "one", remove=["d5"])
    update_index(tmp_path / "other", remove=["d6"])
    assert len({*fingerprints, *(open_index(tmp_path / name).fingerprint for name in ("one", "other"))}) == 3


def test_other_analysers(tmp_path: Path) -> None:
    german = {"a": ["die Katzen schlafen"], "b": ["ein Hund bellt", "noch eine Katze"]}
    index = built(tmp_path / "index", german, analyser="german")
    update_index(index, passages([("c", ["viele Katzen"])]), remove=["a"])
    at_once = built(tmp_path / "at-once", {"b": german["b"], "c": ["viele Katzen"]}, analyser="german")
    same(open_index(index), open_index(at_once), ["Katze", "Hunde", "schlafen"])
    assert open_index(index).bm25.retrieve(["Katze"], 3).of(0), "stemmed as German"


def test_an_update_with_another_stemmer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(tmp_path / "index", {"a": ["die Katzen"], "b": ["ein Hund"]}, analyser="german")
    opened = open_index(index)
    assert opened.analysis
    other = replace(opened.analysis, stemmer=lambda: "PyStemmer 99")
    monkeypatch.setattr("ralm.retrieval.index.analysis_as_recorded", lambda recorded: other)
    with pytest.raises(FolderError, match=r"built with PyStemmer .*, and PyStemmer 99 is installed"):
        update_index(index, remove=["a"])


def test_only_small_and_sparse_segments_are_merged() -> None:
    whole = [1000]
    assert plan_merges([*whole, 10]) == [[0], [1]]
    assert plan_merges([*whole, 10, 5]) == [[0], [1, 2]]
    assert plan_merges([*whole, 40, 5]) == [[0], [1], [2]]
    assert plan_merges([*whole, 240, 60]) == [[0], [1], [2]]
    assert plan_merges([*whole, 240, 61]) == [[0, 1, 2]], "then 301 beside 1,000"
    assert plan_merges([*whole, 0, 5]) == [[0], [2]], "nothing is left of one"
    groups: list[int] = []
    for _ in range(500):
        groups = [*groups, 1]
        groups = [sum(groups[place] for place in group) for group in plan_merges(groups)]
    assert len(groups) <= 5
