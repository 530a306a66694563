"""Spans: together they are the corpus, wherever it is cut, and each says if it was changed."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ralm.corpus.documents import DocumentBuilder, Fields, Skipped
from ralm.corpus.sources import read_documents
from ralm.corpus.spans import CorpusSpan, cut_span, group_files, list_files, read_span
from ralm.errors import CorpusError, UsageError
from ralm.records import Document

LINES = st.lists(
    st.one_of(
        st.text("ab \u00e4", max_size=30).map(lambda text: json.dumps({"text": f"x{text}"})),
        st.just(json.dumps({"text": ""})),
        st.sampled_from(["", "{broken", "[1]"]),
    ),
    min_size=1,
    max_size=30,
)


def spans_of(sources: list[str], span_bytes: int, *, named: bool = False) -> list[CorpusSpan]:
    files = list_files(sources, Skipped(), source_in_ids=named)
    return [span for group in group_files(files, span_bytes) for span in cut_span(group, span_bytes)]


def read(spans: list[CorpusSpan]) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    builder = DocumentBuilder(Fields(), skipped, skip_bad=True)
    return [document for span in spans for document in read_span(span, builder)], skipped


@settings(max_examples=40)
@given(lines=LINES, end=st.sampled_from(["", "\n", "\r\n"]), span_bytes=st.integers(1, 200), bom=st.booleans())
def test_lines_are_those_of_the_file_wherever_it_is_cut(
    tmp_path: Path, lines: list[str], end: str, span_bytes: int, bom: bool
) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(("\ufeff" if bom else "") + (end or "\n").join([json.dumps({"text": "first"}), *lines]) + end)
    skipped = Skipped()
    expected = list(read_documents(str(file), skipped=skipped, skip_bad=True))
    spans = spans_of([str(file)], span_bytes)
    assert read(spans) == (expected, skipped)

    pieces = spans
    while any(span.halves() for span in pieces):
        pieces = [half for span in pieces for half in span.halves() or (span,)]
    assert read(pieces)[0] == expected
    assert all(span.files[0].lines is None or span.files[0].lines.count == 1 for span in pieces)


def test_files_of_a_folder_are_read_together_and_halved(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"text {number} " * 10)
    (tmp_path / "4.txt").write_bytes(b"\xff\xff")
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as stream:
        stream.write("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(50)))
    skipped = Skipped()
    expected = list(read_documents(str(tmp_path), skipped=skipped))
    spans = spans_of([str(tmp_path)], 300)
    assert [len(span.files) for span in spans] == [5, 4, 1]
    documents, lacking = read(spans)
    assert documents == expected
    assert lacking.counts == skipped.counts
    one, other = spans[0].halves() or (spans[0], spans[0])
    assert read([one, other])[0] == expected[:4]
    assert spans[-1].halves() is None, "what is packed is not cut"


def test_ids_begin_with_their_sources(tmp_path: Path) -> None:
    sources = [str(tmp_path / "a.jsonl"), str(tmp_path / "texts")]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_text("three")
    assert read(spans_of(sources, 20, named=True))[0] == list(read_documents(sources))


def test_a_span_that_was_changed_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    spans = spans_of([str(file)], 10)
    file.write_text('{"text": "one"}\n{"text": "six"}\n')
    assert len(read(spans[:1])[0]) == 1
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 2 was changed since it was first read; run this again\.$"):
        read(spans[1:])
    file.unlink()
    with pytest.raises(CorpusError, match=r"a\.jsonl does not exist\.$"):
        read(spans[:1])


def test_the_hash_of_equal_bytes_is_the_same_however_they_were_cut(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    by_cutting = spans_of([str(file)], 10)
    (whole,) = spans_of([str(file)], 1000)
    assert whole.halves() == tuple(by_cutting)
    assert replace(by_cutting[0], sha256="") != by_cutting[0]


@pytest.mark.parametrize("source", ["hf:some/corpus", "saved"])
def test_datasets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saved").mkdir()
    Path("saved/state.json").write_text("{}")
    with pytest.raises(UsageError, match=f"^{source} is a dataset, and several machines can only read files"):
        list_files([source], Skipped(), source_in_ids=False)
