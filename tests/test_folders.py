"""Folders come to be whole or not at all, and a damaged one says so."""

import errno
import json
from pathlib import Path

import pytest

from ralm import folders
from ralm.errors import (
    DamagedFolderError,
    FolderExistsError,
    NewerFormatError,
    NotAFolderOfThisKindError,
    StorageError,
    UsageError,
)
from ralm.folders import MANIFEST, new_folder, read_manifest, replaced_file, write_manifest


def write(path: Path, content: str = "some content", *, force: bool = False, format_version: int = 1) -> None:
    with new_folder(path, force=force) as folder:
        (folder / "data").mkdir()
        (folder / "data" / "numbers.npy").write_text(content)
        write_manifest(
            folder, kind="index", format_version=format_version, settings={"k1": 0.9}, counts={"passages": 3}
        )


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path / "out" / "index")
    manifest = read_manifest(tmp_path / "out" / "index", kind="index", format_version=1)
    assert manifest.settings == {"k1": 0.9}
    assert manifest.counts == {"passages": 3}
    assert list(manifest.files) == ["data/numbers.npy"]
    assert names(tmp_path / "out") == ["index"]


def test_an_existing_folder_is_kept_unless_forced(tmp_path: Path) -> None:
    write(tmp_path / "index", "old")
    with pytest.raises(FolderExistsError, match="already exists and is kept; choose another output, or .* --force"):
        write(tmp_path / "index", "new")
    assert (tmp_path / "index/data/numbers.npy").read_text() == "old"
    write(tmp_path / "index", "new", force=True)
    assert (tmp_path / "index/data/numbers.npy").read_text() == "new"
    assert names(tmp_path) == ["index"]


def test_force_never_replaces_what_ralm_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(UsageError, match="was not written by ralm"):
        write(tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interruption_leaves_nothing_new_and_the_old_intact(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "index", "old")
    with pytest.raises(type(error)), new_folder(tmp_path / "index", force=True) as folder:
        (folder / "half").write_text("half")
        raise error
    assert names(tmp_path) == ["index"]
    assert (tmp_path / "index/data/numbers.npy").read_text() == "old"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no space left on the disk"), new_folder(tmp_path / "x", force=False):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    leftover = tmp_path / ".index.partial-999999999"
    leftover.mkdir()
    (leftover / "half").write_text("half")
    write(tmp_path / "index")
    assert names(tmp_path) == ["index"]


def damage(folder: Path, what: str) -> None:
    data = folder / "data" / "numbers.npy"
    match what:
        case "missing":
            data.unlink()
        case "truncated":
            data.write_text(data.read_text()[:-1])
        case "altered":
            data.write_text(data.read_text().upper())
        case "manifest":
            (folder / MANIFEST).write_text("{")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "data/numbers.npy is missing"),
        ("truncated", "has 11 bytes where its manifest says 12"),
        ("altered", "was altered since it was written"),
        ("manifest", "is damaged or not a ralm manifest"),
    ],
)
def test_damage_is_named(tmp_path: Path, what: str, message: str) -> None:
    write(tmp_path / "index")
    damage(tmp_path / "index", what)
    with pytest.raises(DamagedFolderError, match=message):
        read_manifest(tmp_path / "index", kind="index", format_version=1)


def test_damage_shows_in_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_BLOCK_BYTES", 4)
    content = "0123456789" * 100
    write(tmp_path / "index", content)
    read_manifest(tmp_path / "index", kind="index", format_version=1)
    (tmp_path / "index/data/numbers.npy").write_text("9" + content[1:])
    with pytest.raises(DamagedFolderError, match="was altered"):
        read_manifest(tmp_path / "index", kind="index", format_version=1)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    write(tmp_path / "index", format_version=2)
    with pytest.raises(NewerFormatError, match="has format 2, .* reads up to format 1. Upgrade ralm"):
        read_manifest(tmp_path / "index", kind="index", format_version=1)


def test_other_things_are_no_index(tmp_path: Path) -> None:
    with pytest.raises(NotAFolderOfThisKindError, match="it does not exist"):
        read_manifest(tmp_path / "nowhere", kind="index", format_version=1)
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAFolderOfThisKindError, match="it is a file"):
        read_manifest(tmp_path / "file", kind="index", format_version=1)
    with pytest.raises(NotAFolderOfThisKindError, match=r"it has no manifest\.json"):
        read_manifest(tmp_path, kind="index", format_version=1)
    write(tmp_path / "index")
    with pytest.raises(NotAFolderOfThisKindError, match="is a ralm index, not a ralm run"):
        read_manifest(tmp_path / "index", kind="run", format_version=1)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "retrieved.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as stream:
        stream.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with replaced_file(path) as stream:
        stream.write("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["retrieved.json"]


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    write(tmp_path / "index")
    content = json.loads((tmp_path / "index" / MANIFEST).read_text())
    assert content["kind"] == "index"
    assert content["files"]["data/numbers.npy"]["bytes"] == 12
