"""Asks damaged files what they hold, each in a process of its own with bounded time and memory.

Right is the answer of the whole file, or a RalmError; where checksums were made to fit, any answer.
"""

import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import faiss

from ralm.errors import RalmError
from tests.fuzz.mutations import damage, mend
from tests.fuzz.targets import Target

SECONDS, PROCESSOR_SECONDS, BYTES = 300, 30, 2 << 30
"""What a question may take; the machine may be busy with other tests, so the seconds on a clock are many."""
RIGHT, REFUSED, OTHER = "right", "refused", "other answer"
TRACEBACK, CRASH, HANG = "traceback", "crash", "hang"


def bad_mutants(target: Target, count: int, seed: int) -> Iterator[str]:
    """The mutants of a target, of so many, that crashed, hung, ended in a traceback or answered otherwise."""
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        whole, work = Path(name) / "whole", Path(name) / "work"
        whole.mkdir()
        target.make(whole)
        files = sorted(file.relative_to(whole) for file in whole.rglob("*") if file.is_file() and file.stat().st_size)
        shutil.copytree(whole, work)
        expected = json.dumps(target.ask(work))
        for number in range(count):
            shutil.rmtree(work)
            shutil.copytree(whole, work)
            random = Random(f"{target.name} {seed} {number}")
            file = files[number % len(files)]
            mutation = damage(work / file, random)
            mended = target.mends and random.random() < 0.6
            if mended:
                mend(next(work.iterdir()))
            outcome, detail = outcome_of(target.ask, work, expected)
            if outcome in (TRACEBACK, CRASH, HANG) or (outcome == OTHER and not (mended or target.open)):
                yield f"{seed}:{number} {file}, {mutation}{', mended' if mended else ''}: {outcome} {detail}"


def outcome_of(ask: Callable[[Path], Any], folder: Path, expected: str) -> tuple[str, str]:
    """What asking comes to, and what there is to say of it."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork does not take along
        child = os.fork()
    if child == 0:
        _answer(ask, folder, expected, writer)
    os.close(writer)
    try:
        said = b""
        end = time.monotonic() + SECONDS
        while True:
            if not select.select([reader], [], [], max(0, end - time.monotonic()))[0]:
                os.kill(child, signal.SIGKILL)
                return HANG, ""
            if not (some := os.read(reader, 1 << 16)):
                break
            said += some
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if not said:
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return HANG if hung else CRASH, f"status {status}"
    outcome, _, detail = said.decode(errors="replace").partition("\n")
    return outcome, detail


def _answer(ask: Callable[[Path], Any], folder: Path, expected: str, writer: int) -> None:
    """In the child: ask, say what came of it, and end."""
    faulthandler.disable()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 5))
    try:
        said = RIGHT if json.dumps(ask(folder)) == expected else OTHER
    except RalmError as error:
        said = f"{REFUSED}\n{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is what this is about)
        where = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(where))
        said = f"{TRACEBACK}\n{type(error).__name__}: {str(error)[:200]} at {places}"
    os.write(writer, said.encode(errors="replace")[: 1 << 15])
    os._exit(0)
