"""Runs the program in a process of its own and kills it at a moment."""

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cli.test_signals import processes, wait_until
from tests.forked import Programs


class Killed:
    """The program in a folder of its own; `answer` runs it there and may kill it. The commands in `warm` are run before
    it is forked, so that everything is loaded."""

    def __init__(self, folder: Path, warm: Sequence[Sequence[str]]) -> None:
        self.folder = folder
        self.random = random.Random(0)
        self.errors = ""
        self.programs = Programs(f"from tests.killed_program import load; load({warm})", folder)

    def answer(self, arguments: list[str], *, seconds: float = 0.0, event: int = 0) -> "Answer":
        """Run it; kill it after some seconds, or at an event (`tests.killed_program`)."""
        counter = self.folder / "events"
        counter.write_bytes(bytes(8))
        begin = time.monotonic()
        process = self.programs.start("tests.killed_program", counter, "out", event, *arguments, folder=self.folder)
        if seconds:
            time.sleep(seconds)
            process.kill()
        _, self.errors = process.communicate(timeout=300)
        took = time.monotonic() - begin
        wait_until(lambda: not list(processes(process.pid)), "a process is left")
        assert process.returncode is not None
        return Answer(process.returncode, took, int.from_bytes(counter.read_bytes(), sys.byteorder))


class Answer(NamedTuple):
    """The exit status, the seconds that it took, and the events that it came to."""

    status: int
    seconds: float
    events: int
