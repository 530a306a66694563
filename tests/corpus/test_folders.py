"""Folders and Hugging Face datasets: the files that are chosen are read, in order; skipped ones are named."""

import os
import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from ralm.corpus.documents import BROKEN_LINES, EMPTY_FILES, HIDDEN, LINKS, NO_TEXT, UNKNOWN, UNMATCHED
from ralm.corpus.folder import FileSelection
from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.errors import CorpusError, MissingExtraError, UsageError
from ralm.records import ORIGIN, Document
from tests.cli.program import done


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_CACHE_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setattr(f"datasets.config.{name}", tmp_path / "cache")
    for package in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{package}.HF_HUB_OFFLINE", True)


def ids(*sources: Path | str, skipped: Skipped | None = None) -> list[str]:
    documents = read_documents([*map(str, sources)], skipped=Skipped() if skipped is None else skipped)
    return [document.id for document in documents]


@pytest.mark.parametrize("source", ["folder", "folder/", "./folder"])
def test_ids_of_several_sources_begin_with_the_tidy_name_of_the_source(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "a").mkdir(parents=True)
    for name in ("a.txt", "a/b.txt"):
        (tmp_path / "folder" / name).write_text("text")
    (tmp_path / "x.jsonl").write_text('{"text": "one"}\n')
    assert ids(source, "./x.jsonl") == ["folder/a/b.txt", "folder/a.txt", "x.jsonl:1"]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    for name, content in {
        "a.txt": "text",
        "blank.txt": " \n",
        "broken.jsonl": '{"text": "one"}\nbroken\n{"text": "three"}\n',
        "empty.csv": "",
        "none.json": "[]",
        "no-suffix": "x\0",
        "x.png": "x",
        "y.PNG": "x",
        ".hidden.txt": "x",
        ".git/config.txt": "x",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    skipped = Skipped()
    assert ids(tmp_path, skipped=skipped) == ["a.txt", "broken.jsonl:1", "broken.jsonl:3"]
    [broken] = skipped.examples[BROKEN_LINES]
    assert broken.startswith(f"{tmp_path}/broken.jsonl, line 2 is not JSON")
    assert skipped.examples == {
        BROKEN_LINES: [broken],
        HIDDEN: [f"{tmp_path}/.git", f"{tmp_path}/.hidden.txt"],
        NO_TEXT: ["blank.txt"],
        EMPTY_FILES: [f"{tmp_path}/empty.csv", f"{tmp_path}/none.json"],
        UNKNOWN: [f"{tmp_path}/no-suffix", f"{tmp_path}/x.png", f"{tmp_path}/y.PNG"],
    }
    assert f"files of an unknown kind: 3 (.png 2, without suffix 1), such as {tmp_path}/no-suffix;" in "\n".join(
        skipped.lines()
    )


def test_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.corpus.documents._EXAMPLES_KEPT", 100)
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for path in ("sub/a.txt", ".store/d.txt", "left.bin", "../outside/b.txt", "../outside/deeper/c.txt"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("text")
    for name, target in {
        "1-outside": outside,
        "2-again": outside,
        "3-up": tmp_path,
        "4-self": folder,
        "5-sub": folder / "sub",
        "6-nothing": tmp_path / "gone",
        "7-hidden": folder / ".store",
        "8-deeper": outside / "deeper",
        "9-file.txt": outside / "b.txt",
        "9-same.txt": outside / "b.txt",
        "9-within.txt": folder / "sub" / "a.txt",
        "9-hidden.txt": folder / ".store" / "d.txt",
        "loop.txt": folder / "loop.txt",
        "sub/up": folder,
    }.items():
        (folder / name).symlink_to(target)
    (outside / "back").symlink_to(folder)
    (tmp_path / "link").symlink_to(folder)
    skipped = Skipped()
    read = ["1-outside/b.txt", "1-outside/deeper/c.txt", "7-hidden/d.txt", "9-file.txt", "9-hidden.txt", "sub/a.txt"]
    assert ids(tmp_path / "link") == read
    assert ids(folder, skipped=skipped) == read
    assert skipped.counts == {HIDDEN: 1, LINKS: 11, UNKNOWN: 1}
    assert skipped.examples[LINKS] == [
        f"{folder}/1-outside/back (leads to what is read anyway)",
        f"{folder}/2-again (was read already)",
        f"{folder}/3-up (leads to a folder that contains it)",
        f"{folder}/4-self (leads to what is read anyway)",
        f"{folder}/5-sub (leads to what is read anyway)",
        f"{folder}/6-nothing (a link to nothing)",
        f"{folder}/8-deeper (was read already)",
        f"{folder}/9-same.txt (was read already)",
        f"{folder}/9-within.txt (leads to what is read anyway)",
        f"{folder}/loop.txt (a link to itself)",
        f"{folder}/sub/up (leads to what is read anyway)",
    ]


def test_every_source_is_looked_for_before_the_first_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("broken\n")
    with pytest.raises(CorpusError, match="gone does not exist"):
        ids(tmp_path / "a.jsonl", tmp_path / "gone")
    (tmp_path / "x.png").touch()
    with pytest.raises(CorpusError, match="x.png is of an unknown type"):
        ids(tmp_path / "a.jsonl", tmp_path / "x.png")


def test_pipes_in_a_folder_are_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "pipe")
    skipped = Skipped()
    assert ids(tmp_path, skipped=skipped) == ["a.txt"]
    assert "b.txt is a pipe or a device, not a file" in "\n".join(skipped.lines())
    assert skipped.counts[UNKNOWN] == 1


@pytest.mark.parametrize(
    ("suffix", "module", "package"),
    [("html", "html", "turbohtml"), ("pdf", "pdf", "pypdf"), ("docx", "office", "lxml")],
)
def test_a_missing_package_is_said_before_anything_is_read(
    suffix: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / f"x.{suffix}").write_text("x")
    monkeypatch.delitem(sys.modules, f"ralm.corpus.formats.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    says = rf"reading .{suffix} files needs the package {package}: pip install 'ralm\[files\]'"
    for source in (tmp_path, tmp_path / f"x.{suffix}"):
        with pytest.raises(MissingExtraError, match=says):
            next(read_documents(str(source)))


def dataset(*texts: str) -> Dataset:
    return Dataset.from_dict({"title": [text.upper() for text in texts], "text": list(texts)})


def test_a_saved_dataset(tmp_path: Path) -> None:
    dataset("one", "two").save_to_disk(tmp_path / "saved")
    for name in (f"{tmp_path}/saved", f"hf:{tmp_path}/saved"):
        origin = name if name.startswith("hf:") else "saved"
        assert list(read_documents(name)) == [
            Document(id="0", title="ONE", text="one", metadata={ORIGIN: f"{origin}:0"}),
            Document(id="1", title="TWO", text="two", metadata={ORIGIN: f"{origin}:1"}),
        ]
    with pytest.raises(CorpusError, match="has no field 'body'; its fields are title, text"):
        next(read_documents(str(tmp_path / "saved"), Fields(text="body")))
    with pytest.raises(CorpusError, match="no split 'test'"):
        next(read_documents(f"hf:{tmp_path / 'saved'}:test"))


def test_a_saved_dataset_with_splits(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    DatasetDict({"train": dataset("one"), "test": dataset("two")}).save_to_disk(folder)
    with pytest.raises(CorpusError, match="holds the splits train, test; choose one with hf:"):
        next(read_documents(str(folder)))
    assert [document.text for document in read_documents(f"hf:{folder}:test")] == ["two"]
    assert [document.text for document in read_documents(str(folder / "train"))] == ["one"]
    DatasetDict({"only": dataset("one")}).save_to_disk(tmp_path / "single")
    assert [document.text for document in read_documents(str(tmp_path / "single"))] == ["one"]


def test_a_folder_that_datasets_loads(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f'{{"text": "of {split}"}}\n')
    assert [document.text for document in read_documents(f"hf:{tmp_path}")] == ["of train"]
    assert [document.text for document in read_documents(f"hf:{tmp_path}:test")] == ["of test"]
    assert [document.text for document in read_documents(f"hf:{tmp_path}:default:test")] == ["of test"]
    assert [document.text for document in read_documents(f"hf:{tmp_path}:default")] == ["of train"]
    with pytest.raises(CorpusError, match="cannot read the dataset .*nosuch"):
        next(read_documents(f"hf:{tmp_path}:nosuch"))


def test_datasets_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in ("hf:", "hf::x", "hf:a:b:c:d"):
        with pytest.raises(CorpusError, match="names no dataset; write hf:NAME"):
            next(read_documents(source))
    with pytest.raises(CorpusError, match="cannot read the dataset no-one/nothing: "):
        next(read_documents("hf:no-one/nothing"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ralm\[datasets\]'"):
        next(read_documents("hf:x"))


# ---- which files are read, and how


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "notes.log", "README", "docs/b.md", "docs/build/c.html", "docs/build/d.md"):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The whales sing in {name}.")
    return tmp_path / "folder"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (FileSelection(), ["a.txt", "docs/b.md", "docs/build/c.html", "docs/build/d.md"]),
        (FileSelection(include=("*.md",)), ["docs/b.md", "docs/build/d.md"]),
        (FileSelection(include=("*.md", "/a.txt"), exclude=("build/",)), ["a.txt", "docs/b.md"]),
        (FileSelection(exclude=("*", "!*.html")), ["docs/build/c.html"]),
        (
            FileSelection(include=("/*",), exclude=("docs",), read_as=(".log=.txt", "=.txt")),
            ["README", "a.txt", "notes.log"],
        ),
    ],
)
def test_patterns(folder: Path, selection: FileSelection, expected: list[str]) -> None:
    assert [one.id for one in read_documents(str(folder), skipped=Skipped(), selection=selection)] == expected


def test_a_link_to_a_file_that_is_not_chosen_is_followed(folder: Path) -> None:
    (folder / "docs" / "linked.md").symlink_to("../a.txt")
    (folder / "docs" / "notes.txt").symlink_to("../notes.log")
    selection = FileSelection(include=("docs/",), exclude=("build/",))
    documents = read_documents(str(folder), skipped=Skipped(), selection=selection)
    assert [document.id for document in documents] == ["docs/b.md", "docs/linked.md", "docs/notes.txt"]


def test_patterns_for_which_no_file_is_read_are_named(folder: Path) -> None:
    skipped, selection = Skipped(), FileSelection(include=("*.md", "*.log", "!b.md", "nothing/"))
    assert len([*read_documents(str(folder), skipped=skipped, selection=selection)]) == 1
    assert skipped.examples[UNMATCHED] == [f"*.log in {folder}", f"nothing/ in {folder}"]


def test_bad_selections() -> None:
    for bad in (".log", ".log=.exe", "log=.txt"):
        with pytest.raises(UsageError, match="`read_as` must be like .log=.txt"):
            FileSelection(read_as=(bad,))
    for bad in ("\\", "!", "docs/\\"):
        with pytest.raises(UsageError, match=r"patterns of .gitignore; correct this one: Invalid git pattern: '.+'\."):
            FileSelection(exclude=(bad,))


def test_sync_keeps_to_what_was_selected(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("index", folder, "--include", "docs/", "--include", "*.log", "--read-as", ".log=.txt", "--out", index)
    (folder / "more.log").write_text("Ducks swim.")
    (folder / "more.txt").write_text("Geese fly.")
    (folder / "notes.log").write_text("The whales dive.")
    assert "1 added, 1 replaced, 0 removed, 3 unchanged" in done("sync", index).out
