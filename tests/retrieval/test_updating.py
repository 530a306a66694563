"""An index that is updated: always the same as one built at once of what is left."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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

from ralm.records import Passage
from ralm.retrieval import merging
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.index import Index, build_index, check_index, open_index
from ralm.retrieval.merging import merge_index
from ralm.retrieval.updating import update_index

WORDS = [f"w{number}" for number in range(9)]
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
        found, expected = updated.bm25.retrieve(queries, k), at_once.bm25.retrieve(queries, k)
        np.testing.assert_array_equal(found.numbers_QK, expected.numbers_QK)
        np.testing.assert_array_equal(found.scores_QK, expected.scores_QK)
        streamed = [
            Stream(one.bm25.collection, k, 1024).search(
                [one.bm25.terms(query.split()) for query in queries], one.bm25._in_rows(len(queries), None)
            )
            for one in (updated, at_once)
        ]
        np.testing.assert_array_equal(updated.passages.numbering.numbers(streamed[0][0]), streamed[1][0])
        np.testing.assert_array_equal(streamed[0][1], streamed[1][1])


TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join)
DOCUMENT = st.lists(TEXT, min_size=1, max_size=4)


class Updates(RuleBasedStateMachine):
    """Adds, replacements, removals and merges in any order."""

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

    @rule()
    def merge(self) -> None:
        before = open_index(self.index).fingerprint
        merge_index(self.index)
        opened = open_index(self.index)
        assert opened.fingerprint == before
        assert len(opened.segments) == 1
        assert not len(opened.passages.numbering.removed)

    @invariant()
    def is_as_built_at_once(self) -> None:
        if self.index.exists():
            at_once = self.folder / "at-once"
            build_index(passages(self.texts.items()), at_once, force=True)
            updated = open_index(self.index)
            queries = [*WORDS, " ".join(WORDS), "w0 w1 w2", "w1 w2 w3 w3", "about d1 w2", "none"]
            same(updated, open_index(at_once), queries)
            assert updated.manifest.counts["documents"] == len(self.texts)
            assert check_index(self.index) == ([], [])
            assert not [*self.folder.glob(".*")]

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("times", [0, merging._TIMES])
def test_any_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Without merging on the way, and with it."""
    monkeypatch.setattr(merging, "_TIMES", times)
    monkeypatch.setattr(Updates, "root", str(tmp_path))
    run_state_machine_as_test(
        Updates,
        settings=settings(max_examples=15, stateful_step_count=8, deadline=None, suppress_health_check=[*HealthCheck]),
    )
