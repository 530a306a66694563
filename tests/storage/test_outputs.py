"""Folders come to be whole or not at all, and a damaged one says so."""

import errno
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from ralm.errors import DamagedFolderError, FolderError, FolderExistsError, StorageError, UsageError
from ralm.storage import manifest, outputs
from ralm.storage.manifest import Manifest, check_every_byte, read_manifest, write_manifest
from ralm.storage.outputs import MANIFEST, FolderKind, check_output, check_output_file, new_folder, replaced_file
from ralm.storage.work import scratch_folder, unfinished, work_folder

INDEX, RUN = FolderKind("index"), FolderKind("run")


def write(path: Path, content: str = "some content", *, force: bool = False, kind: FolderKind = INDEX) -> None:
    with new_folder(path, kind=kind, force=force) as folder:
        (folder / "data").mkdir()
        (folder / "data" / "numbers.npy").write_text(content)
        write_manifest(folder, kind=kind, settings={"k1": 0.9}, counts={"passages": 3})


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_an_existing_folder_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "out" / "index"
    write(path, "old")
    manifest = read_manifest(path, kind=INDEX)
    assert (manifest.settings, manifest.counts) == ({"k1": 0.9}, {"passages": 3})
    assert {name: entry.bytes for name, entry in manifest.files.items()} == {"data/numbers.npy": 3}
    with pytest.raises(FolderExistsError, match="already exists and is kept; choose another .* `force=True`"):
        write(path, "new")
    assert (path / "data/numbers.npy").read_text() == "old"
    write(path, "new", force=True)
    assert (path / "data/numbers.npy").read_text() == "new"
    assert names(tmp_path / "out") == ["index"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("bug"), RuntimeError),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
    ],
)
def test_an_interruption_leaves_nothing_new_and_the_old_intact(
    tmp_path: Path, error: BaseException, expected: type[BaseException]
) -> None:
    write(tmp_path / "index", "old")
    with pytest.raises(expected), new_folder(tmp_path / "index", kind=INDEX, force=True) as folder:
        (folder / "half").write_text("half")
        raise error
    assert names(tmp_path) == ["index"]
    assert (tmp_path / "index/data/numbers.npy").read_text() == "old"


DAMAGES: Final[dict[str, tuple[Callable[[Path, Path], object], str]]] = {
    "missing": (lambda data, _: data.unlink(), "data/numbers.npy is missing"),
    "truncated": (lambda data, _: data.write_text(data.read_text()[:-1]), "has 11 bytes where its manifest says 12"),
    "altered": (lambda data, _: data.write_text(data.read_text().upper()), "was altered since it was written"),
    "manifest": (lambda _, manifest: manifest.write_text("{"), "is damaged or not a ralm manifest"),
    "setting": (
        lambda _, manifest: manifest.write_text(manifest.read_text().replace('"passages": 3', '"passages": 9')),
        "manifest.json was altered since it was written",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_named(tmp_path: Path, what: str) -> None:
    write(tmp_path / "index")
    damage, message = DAMAGES[what]
    damage(tmp_path / "index" / "data" / "numbers.npy", tmp_path / "index" / MANIFEST)
    with pytest.raises(DamagedFolderError, match=message):
        read_manifest(tmp_path / "index", kind=INDEX)


def test_opening_reads_no_large_file_and_a_check_reads_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_READ_BYTES", 999)
    content = "0123456789" * 100
    write(tmp_path / "index", content)
    (tmp_path / "index/data/numbers.npy").write_text("9" + content[1:])
    read_manifest(tmp_path / "index", kind=INDEX)
    assert check_every_byte(tmp_path / "index") == ["data/numbers.npy was altered since it was written"]
    (tmp_path / "index/data/numbers.npy").write_text(content[1:])
    with pytest.raises(DamagedFolderError, match="has 999 bytes where its manifest says 1,000"):
        read_manifest(tmp_path / "index", kind=INDEX)


def test_other_things_are_no_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    write(tmp_path / "index")
    write(tmp_path / "newer", kind=FolderKind("index", version=2))
    for name, kind, message in (
        ("nowhere", INDEX, "it does not exist"),
        ("file", INDEX, "it is a file"),
        (".", INDEX, r"it has no manifest\.json"),
        ("index", RUN, "is a ralm index, not a ralm run"),
        ("newer", INDEX, "has format 2, .* reads format 1: build the"),
    ):
        with pytest.raises(FolderError, match=message):
            read_manifest(tmp_path / name, kind=kind)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "retrieved.json"
    path.write_text("old")
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as stream:
        stream.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with replaced_file(tmp_path / "link.json") as stream:
        stream.write("new")
    assert path.read_text() == "new"
    assert (tmp_path / "link.json").is_symlink()
    assert names(tmp_path) == ["link.json", "retrieved.json"]


def test_force_never_replaces_what_another_program_wrote(tmp_path: Path) -> None:
    write(tmp_path / "index", "old")
    ours = json.loads((tmp_path / "index" / MANIFEST).read_text())
    (tmp_path / "theirs").mkdir()
    for name, content in (
        ("chapter1.txt", "years of work"),
        (MANIFEST, '{"manifest_version": 3, "name": "mine", "version": "1.0"}'),
        (MANIFEST, json.dumps({**ours, "program": "another"})),
    ):
        (tmp_path / "theirs" / name).write_text(content)
        with pytest.raises(UsageError, match="was not written by ralm"):
            write(tmp_path / "theirs", force=True)
        assert (tmp_path / "theirs" / name).read_text() == content
    with pytest.raises(UsageError, match="it is a ralm index, and this is a ralm run"):
        write(tmp_path / "index", force=True, kind=RUN)
    assert (tmp_path / "index/data/numbers.npy").read_text() == "old"


@pytest.mark.parametrize("place", ["notes.txt", "data/notes.txt", "mine/notes.txt"])
def test_force_never_removes_a_file_of_the_user(tmp_path: Path, place: str) -> None:
    """What is damaged is replaced."""
    write(tmp_path / "index", "old")
    notes = tmp_path / "index" / place
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("years of work")
    with pytest.raises(UsageError, match=f"ralm did not write {place}, which is in it; move that elsewhere first"):
        write(tmp_path / "index", "new", force=True)
    notes.unlink()
    (tmp_path / "index/data/numbers.npy").write_text("damaged")
    write(tmp_path / "index", "new", force=True)
    assert (tmp_path / "index/data/numbers.npy").read_text() == "new"


def test_what_came_to_be_in_the_meantime_is_kept_and_so_is_what_was_made(tmp_path: Path) -> None:
    for number, name in enumerate(("index.finished", "index.finished-2"), 1):
        with (
            pytest.raises(FolderExistsError, match=f"is kept, and the new output is in .*{name}\\."),
            new_folder(tmp_path / "index", kind=INDEX, force=False) as folder,
        ):
            (folder / "whole").write_text(str(number))
            (tmp_path / "index").mkdir(exist_ok=True)
            (tmp_path / "index" / "theirs").write_text("theirs")
        (tmp_path / "index" / "theirs").unlink()
        assert (tmp_path / name / "whole").read_text() == str(number)
    assert names(tmp_path) == ["index", "index.finished", "index.finished-2"]


def test_a_file_that_a_user_added_in_the_meantime_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "index", "old")
    with (
        pytest.raises(FolderExistsError, match="the new output is in .*finished"),
        new_folder(tmp_path / "index", kind=INDEX, force=True),
    ):
        (tmp_path / "index" / "notes.txt").write_text("years of work")
    assert (tmp_path / "index" / "notes.txt").read_text() == "years of work"
    assert names(tmp_path) == ["index", "index.finished"]


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    with new_folder(tmp_path / "index", kind=INDEX, force=False) as folder:
        (folder / "mine").write_text("mine")
        for force in (False, True):
            with pytest.raises(FolderExistsError, match="another process is writing .*index; wait for it or choose"):
                write(tmp_path / "index", force=force)
    assert names(tmp_path / "index") == ["mine"]
    assert names(tmp_path) == ["index"]


@pytest.mark.parametrize("stands", [True, False])
def test_a_link_goes_on_working(tmp_path: Path, stands: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if stands:
        write(disk / "old", "old")
    (tmp_path / "index").symlink_to(disk / "old")
    write(tmp_path / "index", "new", force=stands)
    assert (tmp_path / "index").is_symlink()
    assert (tmp_path / "index" / "data" / "numbers.npy").read_text() == "new"
    assert names(disk) == ["old"]


@pytest.mark.parametrize("path", [".", "..", "/", "", "../here", "./"])
def test_the_folder_that_one_is_in_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is the current folder or one of its parents"):
        write(Path(path), force=True)
    assert names(tmp_path) == ["here"]
    Path("round").symlink_to("round")
    with pytest.raises(UsageError, match="a link that leads to itself"):
        write(Path("round"))


def test_where_the_new_one_cannot_be_moved_the_old_one_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "index", "old")
    rename = Path.rename

    def refused(source: Path, target: Path) -> Path:
        if source.name == "new" and target.name == "index":
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(FolderExistsError, match=r"the new output is in .*index\.finished\."):
        write(tmp_path / "index", "new", force=True)
    assert (tmp_path / "index/data/numbers.npy").read_text() == "old"
    assert (tmp_path / "index.finished/data/numbers.npy").read_text() == "new"
    assert names(tmp_path) == ["index", "index.finished"]


def killed(work: Callable[[], None]) -> None:
    """Do this in another process, which is killed in the middle of it."""
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def killed_between_the_renames(path: Path) -> None:
    """Leave a folder that is out of sight: neither the old one nor the new one has the name."""
    rename = Path.rename

    def kills(source: Path, target: Path) -> Path:
        if source.name == "new":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", kills)
        killed(lambda: write(path, "new", force=True))


def test_opening_finds_what_was_out_of_sight(tmp_path: Path) -> None:
    write(tmp_path / "index", "old")
    killed_between_the_renames(tmp_path / "index")
    assert not (tmp_path / "index").exists()
    read_manifest(tmp_path / "index", kind=INDEX)
    assert (tmp_path / "index/data/numbers.npy").read_text() == "new"
    assert names(tmp_path) == ["index"]


def test_opening_waits_for_the_second_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "index", "old")
    rename = Path.rename
    opened: list[Manifest] = []
    reader = Thread(target=lambda: opened.append(read_manifest(tmp_path / "index", kind=INDEX)))

    def slowly(source: Path, target: Path) -> Path:
        if source.name == "new":
            assert not (tmp_path / "index").exists()
            reader.start()
            reader.join(0.2)
            assert reader.is_alive()
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", slowly)
    write(tmp_path / "index", "new", force=True)
    reader.join()
    assert opened == [read_manifest(tmp_path / "index", kind=INDEX)]
    assert (tmp_path / "index/data/numbers.npy").read_text() == "new"


@pytest.mark.parametrize("force", [False, True])
def test_the_next_run_finds_what_was_out_of_sight(tmp_path: Path, force: bool) -> None:
    write(tmp_path / "index", "old")
    killed_between_the_renames(tmp_path / "index")
    if force:
        write(tmp_path / "index", "newer", force=True)
    else:
        with pytest.raises(FolderExistsError, match="already exists and is kept"):
            write(tmp_path / "index", "newer")
    assert (tmp_path / "index/data/numbers.npy").read_text() == ("newer" if force else "new")
    assert names(tmp_path) == ["index"]


def killed_while_writing(path: Path) -> None:
    """Leave half a folder."""

    def dies() -> None:
        with new_folder(path, kind=INDEX, force=True) as folder:
            (folder / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(dies)


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "index")
    assert names(tmp_path) == [".index.new"]
    write(tmp_path / "index")
    assert names(tmp_path) == ["index"]
    killed_while_writing(tmp_path / "index")
    assert names(tmp_path) == [".index.new", "index"]
    with pytest.raises(FolderExistsError, match="already exists"):
        write(tmp_path / "index")
    assert names(tmp_path) == ["index"]


def test_scratch_folders_of_killed_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def dies() -> None:
        with scratch_folder() as folder:
            (folder / "x").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)

    (tmp_path / "ralm-other").mkdir()
    with scratch_folder() as held:
        killed(dies)
        assert len(names(tmp_path)) == 3
        with scratch_folder() as another:
            assert {*names(tmp_path)} == {held.name, another.name, "ralm-other"}
    assert names(tmp_path) == ["ralm-other"]


@pytest.mark.parametrize("cleared", [False, True])
def test_what_a_finished_run_had_scored_is_swept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    def dies_when_the_run_has_its_place(path: Path) -> None:
        if path == tmp_path:
            os.kill(os.getpid(), signal.SIGKILL)

    def scores() -> None:
        with work_folder(unfinished(tmp_path / "run"), tmp_path / "run") as work:
            (work / "model-0.sqlite").write_text("scored")
            write(tmp_path / "run")

    monkeypatch.setattr(outputs, "sync_one", dies_when_the_run_has_its_place)
    killed(scores)
    assert names(tmp_path) == [".run.new", "run", "run.unfinished"]
    if cleared:  # but for the folder itself
        for left in (tmp_path / "run.unfinished").iterdir():
            left.unlink()
    with pytest.raises(FolderExistsError, match="already exists"):
        check_output(tmp_path / "run", kind=RUN, force=False)
    assert names(tmp_path) == ["run"]


def test_work_folders_of_somebody_else_are_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / ".index.new" / "new"
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"\.index\.new is in the way of .*index, and ralm did not"):
        write(tmp_path / "index")
    (tmp_path / "run.unfinished").mkdir()
    (tmp_path / "run.unfinished" / "lock").write_text("theirs")
    with pytest.raises(UsageError, match="is in the way"), work_folder(unfinished(tmp_path / "run"), tmp_path / "run"):
        pass
    assert (theirs / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "run.unfinished" / "lock").read_text() == "theirs"


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "index")
    assert names(tmp_path) == ["index"]
    killed_while_writing(tmp_path / "index")
    with pytest.raises(StorageError, match="its disk has no file locks. Remove it if no process is writing"):
        write(tmp_path / "index", force=True)


def test_files_that_are_not_written_over() -> None:
    for path, what in (("/", "a folder"), ("/dev/null", "no regular file")):
        with pytest.raises(UsageError, match=f"{path} is {what}; name a file to write"):
            check_output_file(Path(path), force=True)


def test_what_is_left_of_a_file_is_swept(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def dies() -> None:
        with replaced_file(page) as stream:
            stream.write("half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(dies)
    assert names(tmp_path) == [".page.html.new", "page.html"]
    with pytest.raises(FolderExistsError, match="already exists"):
        check_output_file(page, force=False)
    assert names(tmp_path) == ["page.html"]
    assert page.read_text() == "old"
