"""What a run keeps beside its folder is ours, and nothing else there is touched."""

from pathlib import Path

import pytest

from ralm.errors import FolderExistsError, UsageError
from ralm.runs.unfinished import unfinished_run


def test_a_folder_of_somebody_else_is_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "run.unfinished"
    theirs.mkdir()
    for name in ("config.json", "thesis.txt"):
        (theirs / name).write_text("years of work")
    for force in (False, True):
        with (
            pytest.raises(
                UsageError, match=r"run\.unfinished is in the way of .*run, and this version of ralm did not"
            ),
            unfinished_run(tmp_path / "run", {"a": 1}, force=force),
        ):
            pass
    assert sorted(path.name for path in theirs.iterdir()) == ["config.json", "thesis.txt"]


def test_a_file_of_the_user_stays(tmp_path: Path) -> None:
    with unfinished_run(tmp_path / "run", {"a": 1}, force=False) as folder:
        (folder / "model-0.journal").write_text("scored")
        (folder / "notes.txt").write_text("years of work")
    assert (tmp_path / "run.unfinished" / "notes.txt").read_text() == "years of work"
    assert not (tmp_path / "run.unfinished" / "model-0.journal").exists()


def test_another_process_is_refused(tmp_path: Path) -> None:
    with (
        unfinished_run(tmp_path / "run", {"a": 1}, force=False),
        pytest.raises(FolderExistsError, match="another process is writing .*run; wait for it"),
        unfinished_run(tmp_path / "run", {"a": 1}, force=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
