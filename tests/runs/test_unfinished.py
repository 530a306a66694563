"""What a run keeps beside its folder is ours, and nothing else there is touched."""

from pathlib import Path

import pytest
from pydantic import JsonValue

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


def test_a_run_goes_on_under_other_names_of_the_same_content(tmp_path: Path) -> None:
    """A file may be moved, or be named relative to another folder; a model keeps its name."""
    first, second = 64 * "a", 64 * "b"
    config: dict[str, JsonValue] = {
        "text": {"path": "text.txt", "sha256": first},
        "model": {"name": "lm", "weights": "w"},
    }
    config["passages"] = {"index": "index", "fingerprint": first, "k1": 0.9}
    with pytest.raises(KeyboardInterrupt), unfinished_run(tmp_path / "run", config, force=False) as folder:
        (folder / "model-0.journal").write_text("scored")
        raise KeyboardInterrupt
    moved: dict[str, JsonValue] = {**config, "text": {"path": "/else/text.txt", "sha256": first}}
    moved["passages"] = {"index": "/else/index", "fingerprint": first, "k1": 0.9}
    changes: list[tuple[dict[str, JsonValue], str]] = [
        ({"text": {"path": "/else/text.txt", "sha256": second}}, r"text\.sha256 a+ there, b+ here"),
        ({"model": {"name": "lm", "weights": "x"}}, r"model\.weights w there, x here"),
        ({"model": {"name": "/lm", "weights": "w"}}, r"model\.name lm there, /lm here"),
        ({"passages": {"index": "index", "fingerprint": first, "k1": 1.2}}, r"passages\.k1 0\.9 there, 1\.2 here"),
        (
            {"passages": {"index": "other", "fingerprint": "mine", "k1": 0.9}},
            r"passages\.fingerprint a+ there, mine here",
        ),
    ]
    for changed, said in changes:
        other = {**moved, **changed}
        with pytest.raises(UsageError, match=said), unfinished_run(tmp_path / "run", other, force=False):
            pass
    with unfinished_run(tmp_path / "run", moved, force=False) as folder:
        assert (folder / "model-0.journal").read_text() == "scored"
    own: dict[str, JsonValue] = {"path": "a", "sha256": "no hash"}
    with pytest.raises(KeyboardInterrupt), unfinished_run(tmp_path / "run", own, force=False) as folder:
        (folder / "model-0.journal").write_text("scored")
        raise KeyboardInterrupt
    with (
        pytest.raises(UsageError, match=r"\(path a there, b here\)"),
        unfinished_run(tmp_path / "run", {**own, "path": "b"}, force=False),
    ):
        pass
