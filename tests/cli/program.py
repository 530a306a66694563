"""The program, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from ralm.cli import main


@dataclass
class Answer:
    status: int
    out: str
    err: str


def ralm(*arguments: object, stdin: str = "") -> Answer:
    """Run the program in this process: what it prints, and the status it exits with."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["ralm", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        try:
            main()
            status = 0
        except SystemExit as stopped:
            status = int(stopped.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())
