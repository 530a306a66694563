"""Programs that begin with everything loaded: forked from one process, which loads torch and all else once.

`started` stands for `subprocess.Popen([sys.executable, "-m", MODULE, ...])` where a test is about what a program does.
Use a real start where a test is about how a program starts: what it imports, its environment at that time, its threads.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

_REPOSITORY = Path(__file__).parents[1]
_LOADED = """
import ralm.cli, ralm.harness, ralm.lm.api.model, ralm.lm.local.model, ralm.retrieval.index, ralm.serving.server
import ralm.training.signals, ralm.training.reranker, ralm.training.retriever, sentence_transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, BertModel, GPT2LMHeadModel, GPTNeoXForCausalLM
"""


def killing(part: str, count: int = 1) -> str:
    """Code that kills the program when it is about to rename such a file, by a part of its path, `count` times."""
    return f"""
import os, signal, sys

def kill(name, details):
    if name == "os.rename" and {part!r} in str(details[0]):
        kill.left -= 1
        if kill.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

kill.left = {count}
sys.addaudithook(kill)
"""


class Program:
    """A program that runs, in a session of its own. As `subprocess.Popen` of text whose output goes to pipes."""

    def __init__(self, pid: int, ended: int, stdout: IO[str], stderr: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._ended = os.fdopen(ended)

    def poll(self) -> int | None:
        """The exit status if it has ended, negative for a signal."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status once it has ended. Raises `subprocess.TimeoutExpired` after as many seconds."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._ended:
                self.returncode = int(self._ended.read())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it still prints, on both streams, to the end. If it takes too long, it is killed with its processes."""
        read: dict[IO[str], str] = {}
        streams = [self.stdout, self.stderr]
        threads = [threading.Thread(target=lambda of=of: read.update({of: of.read()})) for of in streams]
        for thread in threads:
            thread.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            raise
        finally:
            for thread in threads:
                thread.join()
            self.close()
        return read[self.stdout], read[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end in between
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes."""
        self.stdout.close()
        self.stderr.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.wait()


class Programs:
    """The process that is forked; it first runs `loading`, which may start no thread. It ends with this process.

    It has one thread of OpenMP, for threads do not live on in a process that is forked.
    """

    def __init__(self, loading: str = _LOADED, folder: Path = _REPOSITORY) -> None:
        self._asking, asked = socket.socketpair()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in `close`
        paths = os.pathsep.join([str(_REPOSITORY), *sys.path])
        with asked:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(asked.fileno()), loading],
                cwd=folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
                pass_fds=[asked.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
            )

    def start(
        self,
        module: str,
        *arguments: object,
        before: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Run a module as the main one, in a folder, after some code; `environment` goes on top of this process's."""
        asked = {
            "module": module,
            "arguments": [*map(str, arguments)],
            "before": before,
            "folder": str(folder or Path.cwd()),
            "environment": {**os.environ, **(environment or {})},
        }
        assert self._process.poll() is None, self.said()
        pipes = [os.pipe() for _ in range(3)]
        with tempfile.TemporaryFile("w+") as file:
            file.write(json.dumps(asked))
            file.seek(0)
            socket.send_fds(self._asking, [b"."], [file.fileno(), *(written for _, written in pipes)])
        for _, written in pipes:
            os.close(written)
        out, err = (os.fdopen(read) for read, _ in pipes[:2])
        pid = b""
        with suppress(ConnectionError):
            pid = self._asking.recv(20)
        assert pid, self.said()
        return Program(int(pid), pipes[2][0], out, err)

    def said(self) -> str:
        """What the process that is forked has printed."""
        self._said.seek(0)
        return self._said.read()

    def close(self) -> None:
        """End the process, and the programs that still run."""
        self._asking.close()
        self._process.wait()
        self._said.close()


@cache
def _programs() -> Programs:
    programs = Programs()
    atexit.register(programs.close)
    return programs


def prepare() -> None:
    """Begin to load now what `started` needs, which takes ten seconds, beside whatever comes next."""
    _programs()


def started(module: str, *arguments: object, **more: Any) -> Program:
    """`Programs.start` of a process that is loaded at the first call, and ends with this one."""
    return _programs().start(module, *arguments, **more)


def _serve(asking: socket.socket) -> Callable[[], None]:
    """Fork a process for whatever is asked; what is to be done is returned in that process."""
    running: dict[int, int] = {}

    def tell_of_ended(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with os.fdopen(running.pop(ended[0]), "w") as told, suppress(BrokenPipeError):
                    told.write(str(os.waitstatus_to_exitcode(ended[1])))
                    told.flush()

    signal.signal(signal.SIGCHLD, tell_of_ended)
    while files := socket.recv_fds(asking, 1, 4)[1]:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            for one in (asking.detach(), files.pop(), *running.values()):
                os.close(one)
            return lambda: _run(*files)
        running[pid] = files.pop()
        for file in files:
            os.close(file)
        asking.send(str(pid).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in [*running]:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return lambda: None


def _run(asked: int, out: int, err: int) -> None:
    """Be the program, as if it was just started from a terminal."""
    os.setsid()
    for caught in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(caught, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for number, file in ((1, out), (2, err)):
        os.dup2(file, number)
        os.close(file)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    with os.fdopen(asked) as stream:
        told = json.load(stream)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv = [told["module"], *told["arguments"]]
    exec(told["before"], {})
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)


def _main() -> int:
    """The exit status of what is run in this process."""
    asking, loading = sys.argv[1:]
    gc.set_threshold(20_000)  # as the program itself does
    exec(loading, {})
    gc.freeze()  # else a collection in a program writes to every object, so that all memory is copied
    run = _serve(socket.socket(fileno=int(asking)))
    try:
        run()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001  # as Python does with whatever is not caught
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # Called after all else that Python does at the end, but for taking everything loaded apart, which takes seconds.
    atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(status)))
    status = 1
    status = _main()
