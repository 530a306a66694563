"""`ralm check` end to end: whole, damaged, and what it does not check."""

import json
from pathlib import Path

import pytest

from ralm.storage.outputs import MANIFEST
from tests.cli.program import failed, printed, ralm
from tests.fuzz.mutations import mend
from tests.fuzz.targets import make_index, make_run


@pytest.fixture
def work(tmp_path: Path) -> Path:
    make_index(tmp_path)
    make_run(tmp_path)
    return tmp_path


def test_what_is_whole(work: Path) -> None:
    for kind in ("index", "run"):
        answer = ralm("check", work / kind)
        assert (answer.status, answer.out, answer.err) == (0, f"{work / kind}: this {kind} is whole\n", "")
        assert printed("check", work / kind) == {
            "folder": str(work / kind), "kind": kind, "damaged": []
        }  # fmt: skip


def test_every_damaged_file_is_named(work: Path) -> None:
    for name in ("bm25/codes.npy", "passages.arrow"):
        file = work / "index" / name
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    (work / "index" / "bm25" / "totals.npy").unlink()
    answer = ralm("check", work / "index", "--json")
    assert answer.status == 1
    assert json.loads(answer.out)["damaged"] == [
        "bm25/codes.npy was altered since it was written",
        "bm25/totals.npy is missing",
        "passages.arrow was altered since it was written",
    ]
    answer = ralm("check", work / "index")
    assert (answer.status, answer.out.count("\n"), answer.err) == (1, 3, "")


def test_what_checksums_do_not_tell(work: Path) -> None:
    file = work / "run" / "summary.json"
    file.write_text("[1]")
    mend(work / "run")
    answer = ralm("check", work / "run")
    assert answer.status == 1
    assert "is not a summary" in answer.out


def test_what_is_no_such_folder(work: Path) -> None:
    failed(ralm("check", work), 1, "has no manifest.json")
    failed(ralm("check", work / "nowhere"), 1, "does not exist")
    (work / "run" / MANIFEST).write_text("[" * 100_000)
    failed(ralm("check", work / "run"), 1, "is damaged or not a ralm manifest")
