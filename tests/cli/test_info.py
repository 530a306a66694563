"""`ralm info`: what an index is, and its documents."""

from pathlib import Path

import pytest

import ralm
from ralm.retrieval.index import corpus_title
from tests.cli.program import done, printed

FILES = {
    "guide/start.md": "# Guide\n\nSee the sea.\n\n## Ships\n\nShips sail.\n\n## Whales\n\nWhales sing.\n",
    "guide/end.txt": "The end.",
    "notes.txt": "Sheep graze. " * 30,
}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of a folder that also has a file of an unknown kind."""
    for name, text in FILES.items():
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(text)
    (tmp_path / "corpus" / "image.xyz").write_text("x")
    done("index", tmp_path / "corpus", "--out", tmp_path / "index", "--split", "structure", "--words", 10)
    return tmp_path / "index"


def test_what_an_index_is(index: Path) -> None:
    found = printed("info", index)
    opened = ralm.open_index(index)
    assert found["counts"] == opened.manifest.counts
    assert found["bytes"] == sum(one.stat().st_size for one in index.rglob("*.*") if one.name != "manifest.json")
    corpus = index.parent / "corpus"
    assert found["sources"] == [{"name": str(corpus), "path": str(corpus), "found": True}]
    assert found["splitting"] == {"words": 10, "split": "structure", "overlap_words": 0}
    assert found["bm25"] == {"analyser": "english", "stemmer": None, "k1": 0.9, "b": 0.4}
    assert found["can_sync"]
    assert list(found["skipped"].values()) == [1]
    skipped = {"count": 1, "examples": [str(corpus / "image.xyz")], "kinds": {".xyz": 1}}
    assert opened.manifest.settings["skipped"] == {"files of an unknown kind": skipped}
    shown = done("info", index).out
    for line in ("documents   3", "ralm sync   possible", f"source      {corpus}: {corpus}"):
        assert f"\n  {line}\n" in shown


def test_an_index_that_changed(index: Path) -> None:
    (index.parent / "corpus" / "notes.txt").unlink()
    (index.parent / "corpus" / "new.txt").write_text("New.")
    done("sync", index)
    (index.parent / "corpus").rename(index.parent / "moved")
    assert printed("info", index)["sources"][0]["found"] is False
    assert "corpus (not found)\n" in done("info", index).out


def test_an_index_that_a_program_built(tmp_path: Path) -> None:
    ralm.build_index([ralm.Passage(0, "a", "A", "The sea.")], tmp_path / "index")
    found = printed("info", tmp_path / "index")
    assert (found["sources"], found["can_sync"], found["splitting"]) == ([], False, None)
    assert "ralm sync   not possible" in done("info", tmp_path / "index").out


def test_the_documents_of_an_index(index: Path) -> None:
    passages = ralm.open_index(index).passages
    rows = printed("info", index, "--documents")["documents"]
    assert [row["document_id"] for row in rows] == sorted(FILES)
    for row in rows:
        texts = [passage.text for passage in passages if passage.document_id == row["document_id"]]
        assert (row["passages"], row["characters"]) == (len(texts), sum(map(len, texts)))
    lines = done("info", index, "--documents").out.splitlines()
    assert [line.split()[2] for line in lines] == sorted(FILES)


def test_the_title_of_a_document_is_without_headings(index: Path) -> None:
    [row] = [row for row in printed("info", index, "--documents")["documents"] if row["document_id"].endswith(".md")]
    assert row["passages"] > 1
    assert row["title"] == "Guide"
    assert "  guide/start.md  Guide\n" in done("info", index, "--documents").out


@pytest.mark.parametrize("name", ["corpus", "corpus/", "./corpus", "corpus/../corpus"])
def test_a_title_names_the_sources_and_not_the_index(name: str, index: Path, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"text": "text"}\n')
    out = tmp_path / "ix"
    done("index", f"{index.parent}/{name}", tmp_path / "other.jsonl", "--out", out)
    assert corpus_title(ralm.open_index(out)) == "corpus, other.jsonl"


def test_a_title_of_an_index_of_a_program(tmp_path: Path) -> None:
    ralm.build_index([ralm.Passage(0, "a", "", "text")], tmp_path / "ix")
    assert corpus_title(ralm.open_index(tmp_path / "ix")) == ""
