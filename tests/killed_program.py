"""The program as `test_kills` runs it: what it loads first, and how it is killed at some event of the file system.

Run with a file of eight bytes that counts the events, a part of the paths that count, the event to be killed at
(counted from 1; 0: never), and the arguments of the program.
"""

import mmap
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock")


def load(warm: Sequence[Sequence[str]]) -> None:
    """Load what the program needs by using it, and have small corpora use what large ones do.

    Processes are forked, which takes no time: most moments would fall into their start.
    """
    from ralm.retrieval.bm25 import build, formula
    from ralm.retrieval.dense import build as dense_build
    from ralm.training import signals

    setattr(signals, "_PART", 5)  # noqa: B010
    setattr(build, "_PASSAGES_A_BATCH", 32)  # noqa: B010
    setattr(formula.BuildOptions, "buffered_terms", 400)  # noqa: B010
    setattr(dense_build, "CHUNK", 16)  # noqa: B010
    for arguments in warm:
        assert run(arguments) == 0, arguments


def run(arguments: Sequence[str]) -> int:
    """The exit status of the program."""
    from ralm.cli import main

    sys.argv = ["ralm", *arguments]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def count_events(counter: str, scratch: str, killed_at: int) -> None:
    """Count in a file what happens to files, and kill the program at one of these events."""
    with Path(counter).open("r+b") as file:
        events = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

    def count(name: str, details: tuple[Any, ...]) -> None:
        if name not in EVENTS or not (name == "fcntl.flock" or scratch in str(details[0]) or details[-1] != -1):
            return
        events[0] += 1
        if events[0] == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


if __name__ == "__main__":
    count_events(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.exit(run(sys.argv[4:]))
