"""The public names: pinned, sorted, all there, and loaded only when used."""

import subprocess
import sys

import pytest

import ralm


def test_the_public_names_are_these() -> None:
    assert sorted(ralm.__all__) == ralm.__all__
    assert set(ralm.__all__) == {*ralm._HOME, "__version__"}
    for name in ralm.__all__:
        assert getattr(ralm, name) is not None
    assert dir(ralm) == ralm.__all__


def test_every_public_name_says_what_it_is() -> None:
    assert [name for name in ralm._HOME if not (getattr(ralm, name).__doc__ or "").strip()] == []


def test_importing_waits_for_nothing() -> None:
    script = "import sys, ralm; print([name for name in ('numpy', 'torch', 'pyarrow') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        _ = ralm.nothing_of_the_kind
