"""What the program says beside its results: notes, progress and the library's messages; and how they are silenced."""

import json
import logging
import os
import warnings
from pathlib import Path

import pytest

from ralm.cli.process import library_messages, quietly
from ralm.errors import RalmWarning
from ralm.terminal import PROGRESS_SWITCH, progress_bar
from tests.cli.program import done, ralm


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "a", "title": "Sea", "text": "whales sing"}) + "\n")
    done("index", folder / "corpus.jsonl", "--out", folder / "index")
    return folder / "index"


def test_quiet_leaves_out_notes(index: Path) -> None:
    told, quiet = (ralm(*options, "search", index, "sheep") for options in ([], ["--quiet"]))
    assert told.err.startswith("ralm: no passage was found")
    assert (quiet.status, quiet.out, quiet.err) == (told.status, told.out, "")
    assert ralm("search", index, "sheep").err == told.err, "only where it is given"


def test_quiet_leaves_errors(tmp_path: Path) -> None:
    answer = ralm("--quiet", "search", tmp_path / "missing", "sheep")
    assert answer.status == 1
    assert answer.err.startswith("ralm: ")


def test_what_the_library_says_comes_as_lines_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("ralm.some.part")
    handlers, shown = list(logging.getLogger("ralm").handlers), warnings.showwarning
    with library_messages():
        logger.info("half is\ndone")
        with quietly():
            logger.info("three quarters are done")
            logger.warning("%s is slow", "this model")
            warnings.warn("some is lost", RalmWarning, stacklevel=1)
    assert capsys.readouterr().err == ("ralm: half is\\ndone\nralm: this model is slow\nralm: warning: some is lost\n")
    assert logging.getLogger("ralm").handlers == handlers
    assert warnings.showwarning is shown
    logger.info("nobody listens")
    assert capsys.readouterr().err == ""


def test_quiet_leaves_out_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS_SWITCH, raising=False)
    monkeypatch.setattr("ralm.terminal._SECONDS_A_LINE", 0.0)
    with quietly():
        with progress_bar("Reading", total=2) as advance:
            advance()
        assert os.environ[PROGRESS_SWITCH] == "0", "processes that are started show none either"
    assert capsys.readouterr().err == ""
    assert PROGRESS_SWITCH not in os.environ
    with progress_bar("Reading", total=2) as advance:
        advance()
    assert "Reading: 1 of 2" in capsys.readouterr().err
