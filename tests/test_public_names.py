"""The public names: those of the stub, each loaded only when it is used.

docs/python-api.md pins them: it is compared with the stub and the docstrings.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ralm

NAMES = re.findall(r"\bas (\w+)", Path(ralm.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))


def test_the_public_names_are_there() -> None:
    assert sorted(dir(ralm)) == sorted(NAMES)
    assert all(getattr(ralm, name) is not None for name in NAMES)


def test_every_public_name_says_what_it_is() -> None:
    undocumented = [name for name in NAMES if not (getattr(ralm, name).__doc__ or "").strip()]
    assert undocumented == []


def test_importing_waits_for_nothing() -> None:
    script = "import sys, ralm; print([name for name in ('numpy', 'torch', 'pyarrow') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = ralm.nothing_of_the_kind  # type: ignore[attr-defined]
