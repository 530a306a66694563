"""How the program ends when it is told to, or killed: without a traceback, a process or a folder that nobody needs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from ralm.cli.process import signals_unwind
from ralm.errors import ClusterError
from ralm.storage.work import HeldSignals
from tests.campaign import campaign

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long enough for other processes to be at work while it is indexed."""
    file = tmp_path_factory.mktemp("corpus") / "large.jsonl"
    with file.open("w") as stream:
        for number in range(40_000):
            stream.write(json.dumps({"id": str(number), "title": "t", "text": f"some words {number} " * 40}) + "\n")
    return file


def begun(*arguments: object, code: str = "") -> subprocess.Popen[str]:
    """The program in a session of its own; Python code that runs before it."""
    return subprocess.Popen(
        [sys.executable, *(["-c", code] if code else ["-m", "ralm"]), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_as_from_a_terminal,
    )


def _as_from_a_terminal() -> None:
    """Undo that background jobs ignore interrupts, and programs under nohup the end of the terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def processes(session: int) -> Iterator[int]:
    """The processes of a session that have not ended."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = status.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of_session) == session and state != "Z":
            yield int(status.parent.name)


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize(
    ("number", "group"),
    [
        (signal.SIGTERM, False),
        campaign(signal.SIGTERM, True),
        campaign(signal.SIGHUP, True),
        (signal.SIGINT, True),
        campaign(signal.SIGKILL, False),
    ],
)
def test_no_process_is_left(corpus: Path, tmp_path: Path, number: signal.Signals, group: bool) -> None:
    """Whether the signal goes to the program alone or, as from a terminal, to its processes too."""
    process = begun("index", corpus, "--out", tmp_path / "index")
    wait_until(lambda: any(tmp_path.iterdir()), "no folder was begun")
    (os.killpg if group else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=60)
    wait_until(lambda: not list(processes(process.pid)), "a process is left")
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number, err
        assert err == ""
        assert list(tmp_path.iterdir()) == []


def with_signal(number: signal.Signals, event: str, name: str) -> str:
    """Code that runs the program, and sends it a signal when it imports a module, or first opens a file, of a name."""
    return f"""
import os, runpy, signal, sys
def send(event, arguments):
    if event == {event!r} and str(arguments[0]).endswith({name!r}):
        os.kill(os.getpid(), {int(number)})
sys.addaudithook(send)
sys.argv[0] = "/bin/ralm"
runpy.run_module("ralm", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("module", "status"), [("typer", -signal.SIGINT), ("ralm.cli.output", 130)])
def test_an_interrupt_while_the_program_is_imported(tmp_path: Path, module: str, status: int) -> None:
    (tmp_path / "text.txt").write_text("some text")
    code = with_signal(signal.SIGINT, "import", module)
    process = begun("index", tmp_path / "text.txt", "--out", tmp_path / "index", code=code)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, "")


@pytest.mark.parametrize("name", ["new/bm25/run-0", "new/bm25/vocabulary.npy"])
def test_an_interrupt_while_an_index_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text("some text")
    code = with_signal(signal.SIGINT, "open", name)
    process = begun("index", tmp_path / "text.txt", "--out", tmp_path / "out" / "index", code=code)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text.txt").write_text("some text")
    code = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)" + with_signal(
        signal.SIGHUP, "import", "ralm.cli.output"
    )
    process = begun("index", tmp_path / "texts", "--out", tmp_path / "index", code=code)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize("error", [ClusterError("a process has died"), KeyboardInterrupt()])
def test_a_signal_decides_the_status_even_if_cleaning_up_fails(error: BaseException) -> None:
    with pytest.raises(SystemExit) as ended, signals_unwind():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            raise error
    assert ended.value.code == 128 + signal.SIGTERM
    with pytest.raises(type(error)), signals_unwind():
        raise error


def test_a_signal_decides_the_status_even_if_its_exception_is_lost() -> None:
    with pytest.raises(SystemExit) as ended, signals_unwind(), suppress(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert ended.value.code == 128 + signal.SIGTERM


@pytest.fixture
def other_thread() -> Iterator[None]:
    """A thread that receives the signals that this one blocks."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    yield
    done.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.usefixtures("other_thread")
def test_a_signal_that_is_held_is_handled_after_the_block(number: signal.Signals) -> None:
    handled: list[int] = []

    def handle(received: int, _frame: FrameType | None) -> None:
        handled.append(received)

    before = signal.signal(number, handle)
    try:
        with HeldSignals():
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            assert handled == []
        assert handled == [number]
        os.kill(os.getpid(), number)
        assert handled == [number, number]
    finally:
        signal.signal(number, before)
