"""An output whose writing is interrupted, at every line of the code that writes it: the old or the new one, whole, and
nothing beside it."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ralm.runs.resume import unfinished_run
from ralm.storage.manifest import check_every_byte, write_manifest
from ralm.storage.outputs import FolderKind, new_folder, replaced_file

KIND = FolderKind("things")
TRACED = (
    "contextlib.py",
    "ralm/runs/resume.py",
    *(f"ralm/storage/{name}.py" for name in ("outputs", "work")),
)


def write_folder(out: Path) -> None:
    with new_folder(out, kind=KIND, force=True) as folder:
        fill(folder, "new")


def replace_file(out: Path) -> None:
    with replaced_file(out) as stream:
        stream.write("new")


def write_run(out: Path) -> None:
    with unfinished_run(out, {}, force=True), new_folder(out, kind=KIND, force=True) as folder:
        fill(folder, "new")


def fill(folder: Path, content: str) -> None:
    (folder / content).write_text(content)
    write_manifest(folder, kind=KIND, settings={}, counts={})


def save_old(out: Path) -> None:
    out.mkdir()
    fill(out, "old")


def content_of(out: Path) -> str:
    """What an output holds, which is whole; empty if it is not there."""
    if not out.exists():
        return ""
    if out.is_file():
        return out.read_text()
    assert check_every_byte(out) == []
    (content,) = (file.name for file in out.iterdir() if file.name != "manifest.json")
    return content


def interrupted(write: Callable[[], None], line: int) -> bool:
    """Whether writing came to a line of the code that writes outputs, counted from 0, and was interrupted there."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        if event == "line":
            left -= 1
            if left == -1:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left < 0


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that an interrupt left to close
@pytest.mark.parametrize(
    ("write", "save"),
    [
        (write_folder, lambda _: None),
        (write_folder, save_old),
        (write_run, lambda _: None),
        (replace_file, lambda out: out.write_text("old")),
    ],
)
def test_an_interrupt_at_any_line_leaves_a_whole_output_and_nothing_else(
    write: Callable[[Path], None], save: Callable[[Path], object], tmp_path: Path
) -> None:
    states, left, line = set[str](), dict[int, list[str]](), 0
    while True:
        folder = tmp_path / str(line)
        folder.mkdir()
        save(folder / "out")
        before = content_of(folder / "out")
        was_interrupted = interrupted(lambda: write(folder / "out"), line)  # noqa: B023
        if beside := [path.name for path in folder.iterdir() if path.name != "out"]:
            left[line] = beside
        states.add(content_of(folder / "out"))
        if not was_interrupted:
            break
        line += 1
    assert left == {}
    assert states == {before, "new"}
    assert line > 100
