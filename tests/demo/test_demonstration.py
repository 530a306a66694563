"""The demonstration as a user runs it: the gain that it promises, and the folder that it leaves or replaces."""

import json
from pathlib import Path

import pytest

from ralm import demo as demonstration
from ralm.demo import build_demo_folder
from ralm.errors import UsageError
from ralm.records import Document
from tests.cli.program import ralm


@pytest.mark.slow
def test_bm25_passages_help_and_random_ones_do_not(
    documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "standard_library_documentation", lambda: documents)
    answer = ralm("demo", "--folder", tmp_path / "demo", "--limit-tokens", 300, "--json")
    assert answer.status == 0, answer.err
    shown = json.loads(answer.out)
    assert list(shown) == ["none", "random", "bm25", "recommended"]
    perplexity = {name: measures["token_perplexity"] for name, measures in shown.items()}
    assert perplexity["bm25"] < 0.9 * perplexity["none"]
    assert perplexity["random"] > 0.95 * perplexity["none"]
    assert perplexity["recommended"] < perplexity["bm25"]
    found = ralm("search", tmp_path / "demo" / "index", "open a file for writing", "-k", 3, "--json")
    assert len(json.loads(found.out)["hits"]) == 3


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo of two documents, with a report as the program leaves it there afterwards."""
    documents = [Document(id=str(number), title="", text=f"some words and {number}") for number in range(2)]
    monkeypatch.setattr(demonstration, "standard_library_documentation", list)
    monkeypatch.setattr(demonstration, "split_held_out", lambda _: (documents[:1], documents[1:]))
    build_demo_folder(tmp_path / "demo")
    (tmp_path / "demo" / "report.html").write_text("report")
    return tmp_path / "demo"


def test_an_older_demo_is_replaced(demo: Path) -> None:
    build_demo_folder(demo)
    assert sorted(path.name for path in demo.iterdir()) == ["corpus.jsonl", "heldout.txt", "index", "manifest.json"]
    assert [path.name for path in demo.parent.iterdir()] == ["demo"]


@pytest.mark.parametrize("name", ["notes.txt", "index/notes.txt", "run/tokens.parquet"])
def test_files_of_the_user_are_kept(demo: Path, name: str) -> None:
    (demo / name).parent.mkdir(exist_ok=True)
    (demo / name).write_text("years of work")
    with pytest.raises(UsageError, match=f"ralm did not write {name}, which is in it; move that elsewhere first"):
        build_demo_folder(demo)
    assert (demo / name).read_text() == "years of work"


def test_what_the_user_has_changed_is_kept(demo: Path) -> None:
    (demo / "heldout.txt").write_text("a text of mine")
    with pytest.raises(UsageError, match="is not an unchanged demo .* Choose another `folder`"):
        build_demo_folder(demo)
    assert (demo / "heldout.txt").read_text() == "a text of mine"


@pytest.mark.parametrize("file", ["manifest.json", "notes.txt"])
def test_folders_of_others_are_kept(demo: Path, file: str) -> None:
    theirs = demo.parent / "site"
    theirs.mkdir()
    (theirs / file).write_text('{"name": "a web page"}')
    with pytest.raises(UsageError, match="was not written by ralm"):
        build_demo_folder(theirs)
    assert [path.name for path in theirs.iterdir()] == [file]
