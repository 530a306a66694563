"""The metadata of documents end to end: from a corpus to filters, hits, sources, runs and reports."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ralm.corpus.documents import metadata_to_json
from ralm.records import ORIGIN
from ralm.retrieval.index import open_index
from ralm.runs.run import open_run
from tests.cli.program import MODEL_LENGTH, done, failed, printed, ralm, write_rows, write_stories

METADATA: dict[str, dict[str, Any]] = {
    "sea": {"url": "https://example.org/sea?a=1&b=2", "page": 3, "tags": ["deep", {"blue": True}]},
    "hill": {"url": "javascript:alert(1)", "note": "\x1b[31m<b>red</b>\n\u202e"},
    "town": {},
}


KEPT = {name: {**given, ORIGIN: f"corpus.jsonl:{line}"} for line, (name, given) in enumerate(METADATA.items(), 1)}
"""The same with the places of the records."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """An index of documents with metadata, and a run that read them."""
    folder = tmp_path_factory.mktemp("metadata")
    write_stories(folder, METADATA)
    done("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10)
    done("eval", folder / "text.txt", *reading(folder, tiny_folders), "--baseline", "--out", folder / "run")
    return folder


def reading(folder: Path, tiny_folders: dict[str, Path]) -> list[object]:
    return ["--lm", tiny_folders["llama"], "--index", folder / "index", *MODEL_LENGTH]


def test_hits(work: Path) -> None:
    answer = ralm("search", work / "index", "sea hill town sheep whales", "--json")
    hits = json.loads(answer.out)["hits"]
    assert {hit["document_id"] for hit in hits} == set(METADATA)
    assert all(hit["metadata"] == KEPT[hit["document_id"]] for hit in hits)
    for_people = ralm("search", work / "index", "whales").out
    assert '     url: https://example.org/sea?a=1&b=2, page: 3, tags: ["deep", {"blue": true}]\n' in for_people


def test_the_file_of_retrieved_passages(work: Path, tiny_folders: dict[str, Path]) -> None:
    common = ["--lm", tiny_folders["llama"], "--max-length", 64]
    file = work / "retrieved.json"
    done("retrieve", work / "text.txt", "--index", work / "index", *common, "--out", file)
    found = [passage for stride in json.loads(file.read_text()) for passage in stride["retrieved_docs"]]
    assert {passage["id"] for passage in found} == set(METADATA)
    for passage in found:
        assert passage.get("metadata") == KEPT[passage["id"]]
    read = ["--retrieved", file, "--document-tokens", 24, "--baseline"]
    done("eval", work / "text.txt", *common, *read, "--out", work / "from-file")
    passages = open_run(work / "from-file").text.passages.values()
    assert {passage.document_id: passage.metadata for passage in passages}.items() <= KEPT.items()


def test_sources_of_generated_text(work: Path, tiny_folders: dict[str, Path]) -> None:
    arguments = ["generate", "The whales sing in the deep", *reading(work, tiny_folders), "--new-tokens", 4]
    answer = ralm(*arguments)
    assert (
        "<- The Sea (passage 1; sea, corpus.jsonl:1; url: https://example.org/sea?a=1&b=2, page: 3, tags:" in answer.out
    )
    written = json.loads(ralm(*arguments, "--json", "--baseline").out)
    for part in (*written["spans"], *written["gain"]["passages"]):
        assert part["metadata"] == KEPT[part["document_id"]]
    without = printed(*arguments[:4], *MODEL_LENGTH, "--new-tokens", 4)
    assert without["spans"][0]["metadata"] == {}


def test_runs_and_reports(work: Path, tmp_path: Path) -> None:
    table = pq.read_table(work / "run" / "passages.parquet")
    for document, metadata in zip(*(table[name].to_pylist() for name in ("document_id", "metadata")), strict=True):
        assert json.loads(metadata) == KEPT[document]
    shown = ralm("report", work / "run").out
    assert re.search(
        r"The Sea \(passage \d; sea, corpus.jsonl:1; url: https://example.org/sea\?a=1&b=2, page: 3", shown
    )
    report = printed("report", work / "run")
    assert all(row["metadata"] == KEPT[row["document_id"]] for row in report["passages"])
    done("report", work / "run", "--html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<b>red" not in page
    assert "\x1b" not in page
    assert "\\u003cb>red\\u003c/b>" in page


def test_the_fields_that_are_kept(work: Path, tmp_path: Path) -> None:
    def kept(fields: str) -> list[str]:
        out = tmp_path / "index"
        done("index", work / "corpus.jsonl", "--out", out, "--force", "--fields", fields)
        return [metadata_to_json(passage.metadata) for passage in open_index(out).passages]

    assert kept('metadata="page,note"') == [
        '{"page":3,"_origin":"corpus.jsonl:1"}',
        metadata_to_json({"note": KEPT["hill"]["note"], ORIGIN: "corpus.jsonl:2"}),
        '{"_origin":"corpus.jsonl:3"}',
    ]
    assert kept("metadata=") == ["{}"] * 3
    assert kept("metadata=title,title=note")[0] == '{"title":"The Sea","_origin":"corpus.jsonl:1"}'


LETTERS = "abcdefghijkl"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six documents of four passages each, of even and odd years, two of them without a language."""
    folder = tmp_path_factory.mktemp("filters")
    rows: list[dict[str, Any]] = [
        {
            "id": f"d{number}",
            "title": f"Story {number % 2}",
            "text": " ".join(f"fox{number} {letter}{letter}{number} hen" for letter in LETTERS[:4]),
            "year": 2019 + number % 3,
            **({"lang": "en" if number % 2 else "de", "tags": ["x", f"t{number}"]} if number > 1 else {}),
        }
        for number in range(6)
    ]
    done("index", write_rows(folder / "x.jsonl", rows), "--out", folder / "index", "--words", 3)
    return folder / "index"


def found(index: Path, *more: object) -> set[str]:
    return {hit["document_id"] for hit in printed("search", index, "hen", "-k", 100, *more)["hits"]}


def test_hits_pass_the_filter(index: Path) -> None:
    assert found(index, "--where", "year >= 2020 and lang in ('en', 'de')") == {"d2", "d4", "d5"}
    assert found(index, "--where", "lang is None or 't5' in tags") == {"d0", "d1", "d5"}
    assert found(index, "--where", "id == 'd3' or title.endswith(' 0')") == {"d0", "d2", "d3", "d4"}
    assert found(index, "--where", "'t' in tags or 'n' in lang") == {"d3", "d5"}, "a whole item, or a part of a text"
    assert found(index, "--where", "year == 2020", "--distinct", "document") == {"d1", "d4"}
    assert found(index, "--where", "year == 2020", "--retriever", "random") == {"d1", "d4"}
    nothing = ralm("search", index, "hen", "--where", "year == 1999")
    assert "no passage was found" in nothing.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--where", "yaer == 2020"], "has the key 'yaer'; the keys are lang, tags, year, id, title."),
        (["--where", "year == 'y2020'"], "holds numbers, which cannot be compared with 'y2020'."),
        (["--where", "lang < 3"], "holds text, which cannot be compared with 3; put it in quotes"),
        (["--where", "year >= "], "the filter cannot be read (invalid syntax): "),
        (["--expand", "0"], "--expand must be a number of neighbours from 1 on, or document, not '0'."),
        (["-k", "0"], "-k must be at least 1"),
    ],
)
def test_wrong_input_is_one_sentence(index: Path, flags: list[str], message: str) -> None:
    failed(ralm("search", index, "hen", *flags), 2, message)
