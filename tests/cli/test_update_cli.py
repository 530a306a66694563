"""`ralm update` and `ralm merge` on real folders."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.program import done, printed, ralm

STORIES = {
    "sea.txt": "The sea is deep and blue. Ships cross the sea by night.",
    "hill.md": "# The hill\nSheep graze on the hill in spring.",
    "town.html": "<title>The town</title><p>The market sells fish and bread.",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in STORIES.items():
        (folder / name).write_text(text)
    return folder


def found(index: Path, query: str) -> list[str]:
    hits = printed("search", index, query)["hits"]
    return [hit["document_id"] for hit in hits]


def test_a_folder_that_changes(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("index", corpus, "--out", index)
    (corpus / "new.txt").write_text("A dog barks in the market.")
    (corpus / "sea.txt").write_text("The sea is calm today.")
    small = ralm("update", index, corpus, "--replace", "--memory", "1e-300")
    assert (small.status, small.err) == (2, "ralm: --memory must be at least 1 and at most 1.04858e+06, not 1e-300.\n")
    refused = ralm("update", index, corpus)
    assert refused.status == 1
    assert "3 documents ('hill.md', 'sea.txt', 'town.html') are already in" in refused.err
    assert "Replace such documents with --replace" in refused.err
    assert found(index, "deep") == ["sea.txt"]

    updated = done("update", index, corpus, "--replace")
    assert "documents: 1 added, 3 replaced, 0 removed" in updated.out
    assert "4 passages of 4 documents in 1 segment" in updated.out
    assert found(index, "deep") == []
    assert found(index, "calm") == ["sea.txt"]
    assert sorted(found(index, "market")) == ["new.txt", "town.html"]

    (tmp_path / "gone.txt").write_text("new.txt\nhill.md\n")
    done("update", index, "--remove", tmp_path / "gone.txt", "--remove-id", "sea.txt")
    assert found(index, "market hill sea") == ["town.html"]
    done("check", index)
    done("merge", index)
    assert found(index, "market hill sea") == ["town.html"]


def test_documents_keep_their_ids_however_many_sources_are_read(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "fog.txt").write_text("Fog over the sea.")
    one, two = tmp_path / "one", tmp_path / "two"
    done("index", corpus, "--out", one)
    assert "4 passages of 4 documents" in ralm("update", one, corpus, tmp_path / "more", "--replace").out
    assert found(one, "fog") == ["fog.txt"]
    done("index", corpus, tmp_path / "more", "--out", two)
    (tmp_path / "more" / "fog.txt").write_text("The fog has gone.")
    assert "4 passages of 4 documents" in ralm("update", two, tmp_path / "more", "--replace").out


@pytest.mark.parametrize("more", [[], ["more"]])
def test_a_part_of_a_source_replaces_the_documents_that_it_holds(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Also named by another path, and by a link."""
    (corpus / "low" / "bay").mkdir(parents=True)
    (corpus / "low" / "bay" / "fog.txt").write_text("Fog over the bay.")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "rain.txt").write_text("Rain on the hill.")
    (tmp_path / "link").symlink_to(corpus / "low")
    index, begin = tmp_path / "index", "corpus/" if more else ""
    monkeypatch.chdir(tmp_path)
    done("index", corpus.name, *more, "--out", index)
    for number, part in enumerate(("corpus/low", corpus / "low" / "bay" / "fog.txt", "./link/bay", f"{corpus}/")):
        (corpus / "low" / "bay" / "fog.txt").write_text(f"Fog number{number}.")
        updated = done("update", index, part, "--replace")
        assert f"documents: 0 added, {4 if number == 3 else 1} replaced, 0 removed" in updated.out
        assert found(index, f"number{number}") == [f"{begin}low/bay/fog.txt"]


def test_a_large_index_keeps_its_segment(tmp_path: Path) -> None:
    rows = [{"id": f"d{n}", "text": f"word{n} common", "url": f"https://host/{n}"} for n in range(50)]
    for name, some in (("old", rows[:40]), ("new", rows[40:45]), ("newest", rows[45:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    index = tmp_path / "index"
    ralm("index", tmp_path / "old.jsonl", "--out", index, "--words", "1")
    first = ralm("update", index, tmp_path / "new.jsonl", "--remove-id", "d3")
    assert "88 passages of 44 documents in 2 segments" in first.out, "split into words of one, as it was built"
    assert found(index, "word41") == ["d41"]
    hit = printed("search", index, "word41")["hits"][0]
    assert hit["metadata"] == {"url": "https://host/41"}
    assert "in 1 segment" in ralm("merge", index).out


def test_records_are_read_with_the_fields_of_the_index(tmp_path: Path) -> None:
    for name, number in (("old", 1), ("new", 2)):
        row = {"key": f"k{number}", "name": f"Name {number}", "body": f"word{number}", "url": "u"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    index = tmp_path / "index"
    fields = ("--id-field", "key", "--title-field", "name", "--text-field", "body", "--no-metadata")
    done("index", tmp_path / "old.jsonl", "--out", index, *fields)
    done("update", index, tmp_path / "new.jsonl")
    hit = printed("search", index, "word2")["hits"][0]
    assert (hit["document_id"], hit["title"], hit.get("metadata", {})) == ("k2", "Name 2", {})
    done("update", index, tmp_path / "new.jsonl", "--id-field", "url", "--text-field", "body", "--replace")
    assert sorted(found(index, "word1 word2")) == ["k1", "k2", "u"]


def test_what_an_update_refuses(corpus: Path, tmp_path: Path) -> None:
    index, titles = tmp_path / "index", tmp_path / "titles.txt"
    titles.write_text("The town\n")
    ralm("index", corpus, "--out", index, "--forbidden-titles", titles)
    rows = [{"id": "m", "title": "The town", "text": "Fish."}, {"id": "n", "text": "Bread."}]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for arguments, said in (
        ([tmp_path / "more.jsonl"], r"was decontaminated \(1 titles, .* give the same --forbidden-titles"),
        ([], "there is nothing to update"),
        (["--remove-id", "nowhere"], "the document 'nowhere' is not in"),
        (["--remove-id", "sea.txt", "--replace"], "--replace has no effect without a SOURCE"),
        (["--remove-id", "sea.txt", "--title-field", "name"], "--title-field has no effect"),
        (
            [tmp_path / "more.jsonl", "--device", "cpu"],
            "--device has no effect without a SOURCE and an index with vectors",
        ),
        ([tmp_path / "none.jsonl", "--forbidden-titles", titles], "none.jsonl does not exist"),
    ):
        refused = ralm("update", index, *arguments)
        assert refused.status != 0
        assert re.search(said, " ".join(refused.err.split())), refused.err
        assert "Traceback" not in refused.err
    updated = ralm("update", index, tmp_path / "more.jsonl", "--forbidden-titles", titles)
    assert "left out for forbidden title: 1 passages" in updated.out
    assert found(index, "bread") == ["n"]
    assert ralm("update", tmp_path, tmp_path / "more.jsonl").status == 1
