"""`ralm serve` as a process of its own."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

from tests.forked import Program, started


class Running:
    """The process, its address, and the lines that it wrote on standard error so far."""

    def __init__(self, process: subprocess.Popen[str] | Program) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(self, words: str, seconds: float = 120) -> str:
        """The line with these words, once it is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [line for line in self.lines if words in line]
            if found:
                return found[-1]
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)
        raise AssertionError(f"{words!r} is not in {self.lines}")

    def ended(self, seconds: float = 60) -> int:
        """The exit status, once it has ended."""
        status = self.process.wait(seconds)
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    @property
    def resident_kib(self) -> int:
        """The memory that it has now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextmanager
def running(
    *arguments: object, folder: Path | None = None, anew: bool = False, before: str = "", **environment: str
) -> Iterator[Running]:
    """The process with these arguments, on a free port, once it listens; killed at the end if it has not ended.

    Forked from one that has loaded everything, after the code `before`; `anew`: started as by a user.
    """
    serve = ["ralm", "serve", "--port", "0", *map(str, arguments)]
    process: subprocess.Popen[str] | Program
    if anew:
        variables = {**os.environ, **environment}
        process = subprocess.Popen(
            [sys.executable, "-m", *serve], stdout=PIPE, stderr=PIPE, text=True, cwd=folder, env=variables
        )
    else:
        process = started(*serve, before=before, folder=folder, environment=environment)
    served = Running(process)
    try:
        served.url = served.wait_for("serving ").split(" at ")[1].strip().removesuffix("/v1")
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        served.ended()
        assert process.stdout is not None
        process.stdout.close()
