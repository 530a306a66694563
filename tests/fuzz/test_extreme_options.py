"""Options at their extremes, alone and in pairs: a command works, or says in a sentence why not; it never breaks down.

Options, their kinds and their choices are those of the program itself. `RALM_FUZZ` is how many cases a command gets.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, get_args, get_type_hints

import pytest
import typer

from ralm.cli import application
from ralm.cli.eval import EvaluationJob
from ralm.cli.options import swept_options
from ralm.grammar import keys_of
from ralm.lm import registry
from ralm.lm.registry import ModelOptions
from ralm.settings import CATALOGUES
from tests.cli.program import STORIES, TEXT, ralm
from tests.tiny_encoders import save_tiny_bert

CASES = int(os.environ.get("RALM_FUZZ", "8"))
SECONDS_A_CASE, PROCESSOR_SECONDS_A_CASE = 300, 60
"""A busy machine may let a case wait, so the seconds on a clock are many."""
TIMERS = (
    (signal.ITIMER_REAL, signal.SIGALRM, SECONDS_A_CASE),
    (signal.ITIMER_PROF, signal.SIGPROF, PROCESSOR_SECONDS_A_CASE),
)
BYTES_A_CASE = 6 << 30
APPLICATION = application()
PROGRAM: Any = typer.main.get_command(APPLICATION)

HINTS = {str(info.name): get_type_hints(info.callback) for info in APPLICATION.registered_commands if info.callback}
"""The type of every parameter of every command."""

WHOLE = [*"-1 0 1 2 3 7 63 64 65 2147483647 2147483648 9223372036854775808".split(), "1" + "0" * 30]
REAL = ["nan", "inf", "-inf", "-1", "0", "-0.0", "1e-320", "1e-7", "0.5", "1", "1.0000001", "2", "1e6", "1e308"]
NAMES = ["", " ", "x", "-", "é" * 300, "a" * 5000, "caf\udce9", "\x1b]0;x\x07", "a/b/c", "nul\0", "[/x]", "{{data}}"]
PATHS = [*"new text.txt lines.txt index model empty missing/deep . ./".split(), "", "a" * 300, "b\udcff", "n\0"]
PATHS += ["other.sqlite", "/dev/zero"]
DEVICES = [*"auto cpu cpu,cpu meta cpu,meta cpu,cuda:99 mps xpu all map x".split(), ""]
VALUES = ["1,2", "", ",", "1,1", "0,-1", "bm25,hybrid", "none,oracle", "sliding,rolling", "nan,0.5", "2147483648,1"]
ENDLESS = {"new_tokens": {"2147483647"}}
"""Values that are right, and ask for more than a test can wait for."""

READ = "--lm model --max-length 64 --document-tokens 16 --limit-tokens 70 --stride 16"
WRITE = "--lm model --document-tokens 16 --new-tokens 5"
HYBRID = "--retriever hybrid:fusion=interpolation"
SIGNALS = (
    "corpus.jsonl --index index --lm model --out new --document-tokens 16 --prefix-tokens 8 --query-tokens 8 "
    "--sequence-tokens 24 --candidates 2"
)
COMMANDS = {
    "eval": [
        f"text.txt {READ}",
        f"text.txt {READ} --index index",
        f"text.txt {READ} --index index --reader ensemble --documents 2",
        f"text.txt {READ} --index index --rerank zero-shot:candidates=2",
        f"text.txt {READ} --index index {HYBRID} --reader ensemble --documents 2 --out new",
        f"text.txt {READ} --index index --over stride=8,16",
        f"text.txt {READ} --index index --over documents=1,2 --reader ensemble",
    ],
    "generate": [
        f"'The sheep' {WRITE}",
        f"'The sheep' {WRITE} --index index",
        f"'The sheep' {WRITE} --index index {HYBRID} --reader ensemble --documents 2 --temperature 1",
        f"--prompts lines.txt {WRITE} --index index",
    ],
    "index": ["corpus.jsonl --out new", "corpus.jsonl --out new --retriever both --encoder bert"],
    "search": [
        f"index sheep {HYBRID} --json",
        "index --queries lines.txt --retriever dense",
    ],
    "retrieve": ["text.txt --lm model --index index --max-length 64 --out new"],
    "signals": [SIGNALS, f"{SIGNALS} {HYBRID}"],
    "sync": ["index corpus.jsonl", "index text.txt --remove-id sea", "index --remove-id hill"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """What the cases work with; each has a copy."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    (folder / "lines.txt").write_text("The Hill\nsea\n")
    (folder / "empty").mkdir()
    with closing(sqlite3.connect(folder / "other.sqlite")) as database:  # of another program, which has no tables yet
        database.execute("PRAGMA application_id = 252006673")
    save_tiny_bert(folder / "bert")
    shutil.copytree(tiny_folders["gpt2"], folder / "model")
    command = ["index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10, "--retriever", "both"]
    assert ralm(*command, "--encoder", folder / "bert").status == 0
    return folder


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are loaded once for all cases."""
    monkeypatch.setattr(registry, "load_language_model", lru_cache(registry.load_language_model))


@contextmanager
def limits(case: list[str]) -> Iterator[None]:
    """Bounded time and memory."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{case} takes too long ({signal.Signals(number).name})")

    before, (soft, hard) = (
        [signal.signal(one, too_long) for _, one, _ in TIMERS],
        resource.getrlimit(resource.RLIMIT_AS),
    )
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES_A_CASE, hard))
    for timer, _, seconds in TIMERS:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, one, _), handler in zip(TIMERS, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(one, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def values_of(kinds: set[object], name: str) -> list[str]:
    """What an option is tried with: its choices, or the extremes of its kind."""
    if name == "device":
        return DEVICES
    if name in (*CATALOGUES, "lm_args"):
        return [*texts_of(name), *NAMES]
    if name == "over":
        return [f"{name}={values}" for name in (*swept_options(EvaluationJob), "lm", "") for values in VALUES]
    if choices := [value for kind in kinds for value in get_args(kind) if isinstance(value, str)]:
        return [*choices, "x", ""]
    if int in kinds:
        return [value for value in WHOLE if value not in ENDLESS.get(name, ())]
    if float in kinds:
        return REAL
    return PATHS if kinds & {Path, list[Path]} else NAMES


def texts_of(name: str) -> Iterator[str]:
    """The parts that an option names, each with an extreme value of one of its keys."""
    records = {"": ModelOptions} if name == "lm_args" else CATALOGUES[name].records
    for part, record in records.items():
        for key, declaration in keys_of(record).items():
            kind = declaration.kind
            for value in values_of({kind, *get_args(kind)}, key):
                yield f"{part}:{key}={value}".removeprefix(":")


def given(option: Any, hint: object, random: Random) -> list[str]:
    """An option as it is written, with one of its values."""
    name = random.choice([*option.opts, *option.secondary_opts])
    return [name] if option.is_flag else [name, random.choice(values_of({hint, *get_args(hint)}, option.name))]


def case_of(command: str, number: int) -> list[str]:
    """A right call, the first of a command as it is, the others with one or two options more."""
    random = Random(f"{command} {number}")
    arguments = [command, *shlex.split(random.choice(COMMANDS[command]))]
    if number == 0:
        return arguments
    for option in random.sample(options_of(command), random.choice([1, 2, 2])):
        arguments += given(option, HINTS[command][option.name], random)
    return arguments


def options_of(command: str) -> list[Any]:
    """The options of a command."""
    own, hints = PROGRAM.commands[command].params, HINTS[command]
    return [one for one in own if one.opts[0].startswith("-") and one.name in hints]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_options_at_their_extremes(command: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, statuses = [], {0: 0, 1: 0, 2: 0}
    for number in range(CASES):
        case = case_of(command, number)
        folder = tmp_path / str(number)
        shutil.copytree(made, folder)
        monkeypatch.chdir(folder)
        try:
            with limits(case):
                answer = ralm(*case)
            said = answer.err.strip().splitlines()
            kept = "--force" in case or (folder / "other.sqlite").read_bytes() == (made / "other.sqlite").read_bytes()
            if answer.status not in statuses or not kept or (answer.status and (not said or "Traceback" in answer.err)):
                broken.append(f"{case}: status {answer.status}, {answer.err!r}")
            else:
                statuses[answer.status] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            broken.append(f"{case}: {type(error).__name__}: {str(error)!r}")
        monkeypatch.chdir(made)
        shutil.rmtree(folder)
    assert not broken, f"{len(broken)} of {CASES} cases:\n" + "\n".join(map(ascii, broken))  # xdist sends UTF-8 alone
    assert min(statuses[0], statuses[2]) > 0, statuses
