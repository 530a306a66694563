"""Folders and Hugging Face datasets: files of every kind are read, in order; skipped ones are named."""

import os
import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from ralm.corpus.documents import BROKEN_LINES, EMPTY_FILES, HIDDEN, LINKS, NO_TEXT, UNKNOWN
from ralm.corpus.sources import Fields, Skipped, read_documents
from ralm.errors import CorpusError, MissingExtraError
from ralm.records import ORIGIN, Document


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


def test_all_splits_of_a_saved_dataset_below_a_folder(tmp_path: Path) -> None:
    splits = {split: Dataset.from_dict({"text": [f"of {split}"]}) for split in ("train", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "folder" / "saved")
    skipped = Skipped()
    assert ids(tmp_path / "folder", skipped=skipped) == ["saved/test:0", "saved/train:0"]
    assert not skipped.counts


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


def test_kinds_and_examples_are_bounded() -> None:
    skipped = Skipped()
    for number in range(1000):
        skipped.add_unknown(f"x.{number}", f".{number}")
    assert skipped.counts == {UNKNOWN: 1000}
    assert len(skipped.examples[UNKNOWN]) == 5
    assert len(skipped.kinds) == 21
    assert skipped.kinds.total() == 1000


def test_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.corpus.documents._EXAMPLES_KEPT", 100)
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (outside / "deeper").mkdir(parents=True)
    (folder / ".store").mkdir()
    for path in (
        folder / "sub" / "a.txt",
        outside / "b.txt",
        outside / "deeper" / "c.txt",
        folder / ".store" / "d.txt",
        folder / "left.bin",
    ):
        path.write_text("text")
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
        "9-left.txt": folder / "left.bin",
        "9-hidden.txt": folder / ".store" / "d.txt",
        "loop.txt": folder / "loop.txt",
        "sub/up": folder,
    }.items():
        (folder / name).symlink_to(target)
    (outside / "back").symlink_to(folder)
    skipped = Skipped()
    assert ids(folder, skipped=skipped) == [
        "1-outside/b.txt",
        "1-outside/deeper/c.txt",
        "7-hidden/d.txt",
        "9-file.txt",
        "9-hidden.txt",
        "9-left.txt",
        "sub/a.txt",
    ]
    assert skipped.counts == {HIDDEN: 1, LINKS: 11, UNKNOWN: 1}
    assert skipped.examples[LINKS] == [
        f"{folder}/1-outside/back (leads to a folder that is read anyway)",
        f"{folder}/2-again (was read already)",
        f"{folder}/3-up (leads to a folder that contains it)",
        f"{folder}/4-self (leads to a folder that contains it)",
        f"{folder}/5-sub (leads to a folder that is read anyway)",
        f"{folder}/6-nothing (a link to nothing)",
        f"{folder}/8-deeper (was read already)",
        f"{folder}/9-same.txt (was read already)",
        f"{folder}/9-within.txt (leads to a file that is read anyway)",
        f"{folder}/loop.txt (a link to itself)",
        f"{folder}/sub/up (leads to a folder that contains it)",
    ]


def test_every_source_is_looked_for_before_the_first_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("broken\n")
    with pytest.raises(CorpusError, match="gone does not exist"):
        ids(tmp_path / "a.jsonl", tmp_path / "gone")
    (tmp_path / "x.png").touch()
    with pytest.raises(CorpusError, match="x.png is of an unknown type"):
        ids(tmp_path / "a.jsonl", tmp_path / "x.png")


def test_a_folder_given_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert ids(tmp_path / "link") == ["a.txt"]


def test_pipes_in_a_folder_are_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "pipe")
    skipped = Skipped()
    assert ids(tmp_path, skipped=skipped) == ["a.txt"]
    assert "b.txt is a pipe, not a file" in "\n".join(skipped.lines())
    assert skipped.counts[UNKNOWN] == 1


@pytest.mark.parametrize(
    ("suffix", "module", "package"),
    [("html", "turbohtml", "turbohtml"), ("pdf", "pypdf", "pypdf"), ("docx", "lxml", "lxml")],
)
def test_a_missing_package_is_said_before_anything_is_read(
    suffix: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / f"x.{suffix}").write_text("x")
    monkeypatch.delitem(sys.modules, f"ralm.corpus.formats.{suffix}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    says = rf"reading .{suffix} files needs the package {package}: pip install 'ralm\[files\]'"
    for source in (tmp_path, tmp_path / f"x.{suffix}"):
        with pytest.raises(MissingExtraError, match=says):
            next(read_documents(str(source)))


def test_a_saved_dataset_below_a_folder_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("text")
    Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "folder" / "saved")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"reading .*saved needs the package datasets: pip install"):
        next(read_documents(str(tmp_path / "folder")))


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


def test_a_name_that_is_none() -> None:
    for source in ("hf:", "hf::x", "hf:a:b:c:d"):
        with pytest.raises(CorpusError, match="names no dataset; write hf:NAME"):
            next(read_documents(source))


def test_a_dataset_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="cannot read the dataset no-one/nothing: "):
        next(read_documents("hf:no-one/nothing"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ralm\[datasets\]'"):
        next(read_documents("hf:x"))
