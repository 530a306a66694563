"""`ralm sync` with sources and ids: documents are added, replaced and removed, and other sources are not read."""

from pathlib import Path

import pytest

import ralm
from tests.cli.program import done, failed, printed, ralm as program, write_rows

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


@pytest.fixture
def index(corpus: Path, tmp_path: Path) -> Path:
    done("index", corpus, "--out", tmp_path / "index")
    return tmp_path / "index"


def found(index: Path, query: str) -> list[str]:
    return sorted(hit["document_id"] for hit in printed("search", index, query)["hits"])


def counts(index: Path, *arguments: object) -> str:
    return done("sync", index, *arguments).out.splitlines()[0].removeprefix("documents: ")


def test_new_source_is_added_and_other_sources_are_not_read(index: Path, corpus: Path, tmp_path: Path) -> None:
    more = write_rows(tmp_path / "more.jsonl", [{"id": "fog", "text": "Fog over the sea."}])
    (corpus / "sea.txt").write_text("The sea is calm today.")
    assert counts(index, more) == "1 added, 0 replaced, 0 removed, 3 unchanged"
    assert found(index, "deep fog") == ["fog", "sea.txt"]
    corpus.rename(tmp_path / "away")
    write_rows(more, [{"id": "fog", "text": "The mist is gone."}, {"id": "rain", "text": "Rain falls."}])
    assert counts(index, more) == "1 added, 1 replaced, 0 removed, 3 unchanged"
    assert found(index, "fog") == []
    (tmp_path / "away").rename(corpus)
    assert counts(index) == "0 added, 1 replaced, 0 removed, 4 unchanged"
    assert found(index, "calm mist rain") == ["fog", "rain", "sea.txt"]
    done("check", index)


def test_a_document_of_a_named_source_replaces_that_of_another_one(tmp_path: Path) -> None:
    old = write_rows(tmp_path / "old.jsonl", [{"id": "a", "text": "An owl."}, {"id": "b", "text": "A bee."}])
    new = write_rows(tmp_path / "new.jsonl", [{"id": "a", "text": "An ape."}])
    index = tmp_path / "index"
    done("index", old, "--out", index)
    assert counts(index, new, "--dry-run") == "0 added, 1 replaced, 0 removed, 1 unchanged"
    assert counts(index, new) == "0 added, 1 replaced, 0 removed, 1 unchanged"
    write_rows(old, [{"id": "a", "text": "An owl."}, {"id": "b", "text": "A bat."}])
    assert counts(index) == "0 added, 1 replaced, 0 removed, 1 unchanged"
    assert found(index, "owl ape bat") == ["a", "b"]
    assert found(index, "owl") == [], "its line did not change after it was replaced"
    write_rows(old, [{"id": "a", "text": "An ox."}])
    assert counts(index) == "0 added, 1 replaced, 1 removed, 0 unchanged"
    assert found(index, "ox") == ["a"]


def test_documents_are_removed_without_their_sources(index: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_text("hill.md\n\nsea.txt\n")
    corpus.rename(tmp_path / "away")
    removal = ("--remove", tmp_path / "gone.txt", "--remove-id", "town.html")
    failed(program("sync", index, *removal), 2, "nothing would be left of")
    assert counts(index, *removal[:2], "--dry-run") == "0 added, 0 replaced, 2 removed, 1 unchanged"
    assert found(index, "sea hill market") == sorted(STORIES)
    removed = done("sync", index, *removal[:2]).out
    assert removed.startswith("documents: 0 added, 0 replaced, 2 removed, 1 unchanged\n")
    assert "1 passages of 1 documents" in removed
    assert found(index, "sea hill market") == ["town.html"]
    (tmp_path / "away").rename(corpus)
    assert counts(index) == "0 added, 0 replaced, 0 removed, 1 unchanged", "files that did not change stay removed"
    (corpus / "sea.txt").write_text("The sea is calm today.")
    assert counts(index) == "1 added, 0 replaced, 0 removed, 1 unchanged"


def test_documents_are_removed_from_an_index_that_a_program_built(tmp_path: Path) -> None:
    index = tmp_path / "index"
    ralm.build_index([ralm.Passage(0, "a", "", "The sea."), ralm.Passage(1, "b", "", "The hill.")], index)
    assert counts(index, "--remove-id", "a") == "0 added, 0 replaced, 1 removed, 1 unchanged"
    failed(program("sync", index), 2, "does not say how its documents were split")


def test_added_documents_are_split_as_the_others(tmp_path: Path) -> None:
    rows = [{"id": f"d{n}", "text": f"word{n} common", "url": f"https://host/{n}"} for n in range(45)]
    old, new = write_rows(tmp_path / "old.jsonl", rows[:40]), write_rows(tmp_path / "new.jsonl", rows[40:])
    index = tmp_path / "index"
    done("index", old, "--out", index, "--words", "1")
    synced = done("sync", index, new, "--remove-id", "d3").out
    assert "documents: 5 added, 0 replaced, 1 removed, 39 unchanged" in synced
    assert "88 passages of 44 documents" in synced, "split into words of one, as it was built"
    hit = printed("search", index, "word41")["hits"][0]
    assert hit["document_id"] == "d41"
    assert hit["metadata"] == {"url": "https://host/41", "_origin": f"{new}:2"}


def test_added_documents_are_decontaminated_as_the_index_was(corpus: Path, tmp_path: Path) -> None:
    index, titles = tmp_path / "index", tmp_path / "titles.txt"
    titles.write_text("The town\n")
    done("index", corpus, "--out", index, "--forbidden-titles", titles)
    rows = [{"id": "m", "title": "The town", "text": "Fish."}, {"id": "n", "text": "Bread."}]
    assert counts(index, write_rows(tmp_path / "more.jsonl", rows)).startswith("1 added")
    assert found(index, "bread fish") == ["n"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--remove-id", "nowhere"), 1, "the document 'nowhere' is not in"),
        (("--remove-id", "nowhere", "--dry-run"), 1, "the document 'nowhere' is not in"),
        (("none.jsonl", "--remove-id", "sea.txt"), 1, "none.jsonl does not exist"),
        (("--memory", "1e-300"), 2, "--memory must be at least 1 and at most 1.04858e+06, not 1e-300."),
    ],
)
def test_bad_input_changes_nothing(index: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    before = (index / "manifest.json").read_bytes()
    failed(program("sync", index, *arguments), status, message)
    assert (index / "manifest.json").read_bytes() == before
