"""An index that is updated: always the same as one built at once of what is left."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
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

from ralm.errors import CorpusError, FolderError, FolderExistsError, UsageError
from ralm.records import FloatArray, Passage
from ralm.retrieval.analysis import Analysis
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import DenseSearchOptions, VectorOptions
from ralm.retrieval.index import Index, check_index, open_index
from ralm.retrieval.update import update_index
from tests.campaign import examples
from tests.fakes import LetterEncoder

WORDS = [f"w{number}" for number in range(9)]
FAISS_FILE = "vectors/main/vectors.faiss"


def passages(documents: Iterable[tuple[str, Sequence[str]]]) -> Iterator[Passage]:
    number = 0
    for document, texts in documents:
        for text in texts:
            yield Passage(number, document, f"about {document}", text)
            number += 1


def assert_same_index(updated: Path, at_once: Path) -> None:
    """The same bytes, but for the manifest and the FAISS index."""
    names = [
        sorted(f.relative_to(root).as_posix() for f in root.rglob("*") if f.is_file()) for root in (updated, at_once)
    ]
    assert names[0] == names[1]
    for name in names[0]:
        if name != "manifest.json" and not name.endswith(".faiss"):
            assert (updated / name).read_bytes() == (at_once / name).read_bytes(), name
    indexes = [open_index(updated), open_index(at_once)]
    assert indexes[0].fingerprint == indexes[1].fingerprint
    assert indexes[0].manifest.counts == indexes[1].manifest.counts
    assert check_index(updated) == []


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
            assert_same_index(self.index, at_once)
            assert not [*self.folder.glob(".*")]

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


def test_any_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Updates, "root", str(tmp_path))
    run_state_machine_as_test(
        Updates,
        settings=settings(max_examples=examples(15), stateful_step_count=8, suppress_health_check=[*HealthCheck]),
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


@pytest.mark.parametrize("string", ["Flat", "SQfp16", "IVF4,Flat", "HNSW32", "PQ4x4", "SQ8"])
def test_vectors_are_updated_too(tmp_path: Path, string: str) -> None:
    """Approximate ones are made anew of the vectors as they were encoded; a text that occurs twice is encoded once."""
    encoder = DistinctEncoder()
    letters = np.random.default_rng(5)  # no two of the best twelve scores of a query are equal
    documents = {name: ["".join(letters.choice([*"abcdefgh"], 40)) for _ in texts] for name, texts in some(60).items()}
    stored = VectorOptions(faiss=string)
    kept = {name: texts for name, texts in documents.items() if int(name[1:]) < 50}
    index = built(tmp_path / "index", kept, encoder=encoder, vectors=stored)
    added = {name: documents[name] for name in documents if name not in kept}
    added["twice"] = [*documents["d3"], *documents["d55"], "new " * 3]
    encoder.encoded.clear()
    update_index(index, passages(added.items()), remove=["d3", "d7"], encoders={"main": encoder})
    new = [text for texts in added.values() for text in texts if text not in documents["d3"]]
    assert encoder.encoded == [*dict.fromkeys(new)]
    left = {name: texts for name, texts in {**kept, **added}.items() if name not in ("d3", "d7")}
    at_once = built(tmp_path / "at-once", left, encoder=encoder, vectors=stored)
    if string == "HNSW32":  # FAISS makes its graph with several threads
        search = DenseSearchOptions(ef_search=200)
        found, expected = (
            open_index(path).dense(search, encoder=encoder).retrieve(["abba", "hhgah", "ccfed"], 9).numbers_QK.tolist()
            for path in (index, at_once)
        )
        assert all(len({*row} & {*others}) >= 7 for row, others in zip(found, expected, strict=True))
    else:
        assert (index / FAISS_FILE).read_bytes() == (at_once / FAISS_FILE).read_bytes()
    assert_same_index(index, at_once)


def test_too_few_vectors_are_left_to_train_on(tmp_path: Path) -> None:
    encoder, documents = DistinctEncoder(), some(90)
    index = built(tmp_path / "index", documents, encoder=encoder, vectors=VectorOptions(faiss="IVF30,Flat"))
    with pytest.raises(UsageError, match="'IVF30,Flat' cannot be trained on 12 vectors"):
        update_index(index, remove=[name for name in documents if int(name[1:]) > 5])
    assert open_index(index).manifest.counts["documents"] == 90


def test_another_stemmer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    german = {"a": ["die Katzen schlafen"], "b": ["ein Hund bellt", "noch eine Katze"]}
    index = built(tmp_path / "index", german, analyser="german")
    update_index(index, passages([("c", ["viele Katzen"])]), remove=["a"])
    at_once = built(tmp_path / "at-once", {"b": german["b"], "c": ["viele Katzen"]}, analyser="german")
    assert_same_index(index, at_once)
    monkeypatch.setattr(Analysis, "stemmer", "PyStemmer 99")
    with pytest.raises(FolderError, match=r"built with PyStemmer .*, and PyStemmer 99 is installed"):
        update_index(index, passages([("d", ["viele Katzen"])]))


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    index = built(tmp_path / "index", some(9), encoder=LetterEncoder())
    other = LetterEncoder()
    other.config = {**other.config, "query_fingerprint": "other"}
    with pytest.raises(FolderError, match="were made with another encoder than this one: query_fingerprint is 'o"):
        update_index(index, passages(some(2, 20).items()), encoders={"main": other})
    other.config = {**LetterEncoder().config, "encoder": "/moved/elsewhere", "option_of_a_later_version": 1}
    update_index(index, passages(some(2, 20).items()), encoders={"main": other})
    update_index(index, remove=["d3", "d20", "d21"])  # without an encoder
    left = {name: texts for name, texts in some(9).items() if name != "d3"}
    assert_same_index(index, built(tmp_path / "at-once", left, encoder=LetterEncoder()))


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
    assert open_index(index).manifest.counts["documents"] == 8


def test_ids_are_looked_up_before_anything_is_encoded(tmp_path: Path) -> None:
    encoder = LetterEncoder()
    index = built(tmp_path / "index", some(9), encoder=encoder)
    encoder.encoded.clear()
    with pytest.raises(CorpusError, match="'x' is not in"):
        update_index(index, passages(some(2, 20).items()), remove=["x"], encoders={"main": encoder})
    assert encoder.encoded == []
