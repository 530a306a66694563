"""Hugging Face datasets from folders; and without the package a sentence that says what to install."""

import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from ralm.corpus.sources import Fields, read_documents
from ralm.errors import CorpusError, MissingExtraError
from ralm.records import Document


def dataset(*texts: str) -> Dataset:
    return Dataset.from_dict({"title": [text.upper() for text in texts], "text": list(texts)})


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_CACHE_HOME", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def test_a_saved_dataset(tmp_path: Path) -> None:
    dataset("one", "two").save_to_disk(tmp_path / "saved")
    expected = [Document(id="0", title="ONE", text="one"), Document(id="1", title="TWO", text="two")]
    assert list(read_documents(str(tmp_path / "saved"))) == expected
    assert list(read_documents(f"hf:{tmp_path / 'saved'}")) == expected
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
