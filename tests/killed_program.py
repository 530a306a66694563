"""The program, run again and again by processes that are forked from one which has loaded everything, and killed.

Reads lines of JSON: the arguments, and when to kill: after some seconds, or at some event of the file system (counted
from 1; 0: never). Answers each with the process, its exit status, the seconds it took and the events it came to.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import RawValue
from pathlib import Path
from typing import Any

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock")


def load(warm: Sequence[Sequence[str]]) -> None:
    """Load what the program needs by using it, and have small corpora use what large ones do."""
    from ralm.retrieval.bm25 import build, term_ids
    from ralm.retrieval.dense.build import DenseBuilder
    from ralm.training import making

    setattr(making, "_PART", 5)  # noqa: B010
    setattr(build, "_PASSAGES_A_BATCH", 32)  # noqa: B010
    defaults = DenseBuilder.__init__.__kwdefaults__
    assert defaults
    defaults["chunk"] = 16
    for arguments in warm:
        assert run(arguments) == 0, arguments
    setattr(term_ids, "_ALONE", 2)  # noqa: B010


def run(arguments: Sequence[str]) -> int:
    """The exit status of the program."""
    from ralm.cli import main

    sys.argv = ["ralm", *arguments]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def answer(arguments: Sequence[str], scratch: str, seconds: float, event: int) -> dict[str, float]:
    """Run the program in a process of its own."""
    events = RawValue("q", 0)

    def count(name: str, details: tuple[Any, ...]) -> None:
        if name not in EVENTS or not (name == "fcntl.flock" or scratch in str(details[0]) or details[-1] != -1):
            return
        events.value += 1
        if events.value == event:
            os.kill(os.getpid(), signal.SIGKILL)

    begin = time.monotonic()
    process = os.fork()
    if process == 0:
        status = 70
        try:
            os.setsid()
            sys.addaudithook(count)
            status = run(arguments)
            sys.stderr.flush()
        finally:
            os._exit(status)
    if seconds:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    _, ended = os.waitpid(process, 0)
    return {
        "process": process,
        "status": os.waitstatus_to_exitcode(ended),
        "seconds": time.monotonic() - begin,
        "events": events.value,
    }


def serve() -> None:
    """Answer until there are no more lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    load(json.loads(Path(sys.argv[1]).read_text()))
    for line in sys.stdin:
        answers.write(json.dumps(answer(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
