"""Ids that several documents share are found, however many documents there are; parts of one document are none."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ralm.corpus import sources
from ralm.corpus.sources import SharedIds, Skipped, read_documents
from ralm.errors import RalmWarning
from ralm.records import Document


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(1, 9))
def test_shared_ids_are_those_of_a_plain_loop(names: Sequence[str], at_once: int) -> None:
    parts = [name for name, before in zip(names, ["", *names], strict=False) if name != before]
    expected = [name for place, name in enumerate(parts) if name in parts[:place]]
    shared = SharedIds()
    documents = [Document(id=name, title="", text="x") for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_IDS_AT_ONCE", at_once)
        assert list(shared.watched(documents)) == documents
    assert shared.count == len(expected)
    assert shared.examples == list(dict.fromkeys(expected))[:3]


def test_beyond_millions_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_IDS_AT_ONCE", 10)
    monkeypatch.setattr(sources, "_MAX_IDS", 30)
    shared = SharedIds()
    list(shared.watched(Document(id=str(number % 60), title="", text="x") for number in range(1000)))
    assert (shared.count, len(shared._seen)) == (0, 30)


def test_two_files_with_the_same_ids_are_kept_and_said(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        rows = [{"id": number, "text": f"{name} {number}"} for number in range(4)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = read_documents(str(tmp_path), skipped=Skipped())
    with pytest.warns(RalmWarning, match="share an id, such as 0, 1, 2 .4 have that of an earlier document."):
        assert [document.id for document in documents] == ["0", "1", "2", "3"] * 2
