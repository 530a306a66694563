"""Damages files of every kind and asks what they hold, each in a process of its own with bounded time and memory.

    python -m tests.fuzz.damage [--mutants N] [--seed S] [--target NAME]

Right is the answer of the whole file, or a RalmError; where checksums were made to fit, any answer. Prints how often
each thing came of it, and every mutant that crashed, hung, ended in a traceback or answered otherwise.
"""

import argparse
import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import faiss

from ralm.errors import RalmError
from tests.fuzz.mutations import damage, mend
from tests.fuzz.targets import TARGETS, Target

SECONDS, BYTES = 30, 2 << 30
RIGHT, REFUSED, OTHER = "right", "refused", "other answer"
TRACEBACK, CRASH, HANG = "traceback", "crash", "hang"


@dataclass(frozen=True)
class Mutant:
    """What was done to which file of which target, and what came of it."""

    target: str
    seed: str
    file: str
    mutation: str
    mended: bool
    outcome: str
    detail: str
    bad: bool


def mutants(target: Target, count: int, seed: int) -> Iterator[Mutant]:
    """So many mutants of a target, one after the other."""
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
            bad = outcome in (TRACEBACK, CRASH, HANG) or (outcome == OTHER and not (mended or target.open))
            yield Mutant(target.name, f"{seed}:{number}", str(file), mutation, mended, outcome, detail, bad)


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
        return CRASH, f"status {status}"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=[target.name for target in TARGETS])
    args = parser.parse_args()
    targets = [target for target in TARGETS if target.name in (args.target or target.name)]
    outcomes: Counter[tuple[str, bool, str]] = Counter()
    bad = 0
    for target in targets:
        for mutant in mutants(target, args.mutants // len(targets), args.seed):
            outcomes[mutant.target, mutant.mended, mutant.outcome] += 1
            bad += mutant.bad
            if mutant.bad:
                sys.stdout.write(f"BAD {mutant}\n")
                sys.stdout.flush()
    for (name, mended, outcome), count in sorted(outcomes.items()):
        sys.stdout.write(f"{name + (', mended' if mended else ''):28} {outcome:14} {count:6,}\n")
    sys.stdout.write(f"{sum(outcomes.values()):,} mutants, {bad:,} of them bad\n")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
