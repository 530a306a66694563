"""Compiling kernels: where nothing can be written, and beside threads that print."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ralm

_PROGRAM = """
import numpy as np
from ralm.retrieval.bm25.kernels import worst_score
print(worst_score(np.zeros(1, np.int64), 0))
"""


@pytest.mark.slow
def test_kernels_need_no_place_for_a_cache(tmp_path: Path) -> None:
    shutil.copytree(Path(ralm.__file__).parent, tmp_path / "ralm", ignore=shutil.ignore_patterns("__pycache__", "demo"))
    # root may write everywhere, so numba's cache folders are made files: nobody can make a folder there
    for folder in (tmp_path / "ralm").rglob("*"):
        if folder.is_dir():
            (folder / "__pycache__").write_text("")
    home = tmp_path / "home"
    home.write_text("")
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("XDG_CACHE_HOME", None)
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


_WATCHED = """
import sys, types
from ralm.retrieval.bm25.kernels import load_compiler

class Watched(types.ModuleType):
    def __setattr__(self, name, value):
        raise AssertionError(f"sys.{name} is replaced")

load_compiler()
sys.__class__ = Watched
from numba.core.errors import LiteralTypingError
str(LiteralTypingError("as numba raises and catches in most functions that it compiles"))
"""


def test_compiling_leaves_the_streams_of_the_process_alone() -> None:
    pytest.importorskip("colorama")  # with which numba would replace them, whatever another thread does meanwhile
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_DISABLE")}
    ran = subprocess.run([sys.executable, "-c", _WATCHED], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
