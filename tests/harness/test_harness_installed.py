"""An lm-evaluation-harness that is missing or too old is one sentence."""

import runpy
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from ralm import harness
from ralm.errors import MissingExtraError
from ralm.harness import lm_eval_installed


def test_a_missing_harness_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(harness, "version", missing)
    said = r"^ralm as a model of lm-evaluation-harness needs the package lm_eval: pip install 'ralm\[harness\]'\.$"
    with pytest.raises(MissingExtraError, match=said), lm_eval_installed():
        pass


@pytest.mark.parametrize("found", ["0.3.0", "0.4.2", "0.4.9.2"])
def test_an_old_harness_is_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(harness, "version", lambda _: found)
    said = rf"^lm_eval {found} is too old for ralm, which needs {harness._OLDEST} or newer: pip install 'ralm\[harness"
    with pytest.raises(MissingExtraError, match=said), lm_eval_installed():
        pass


@pytest.mark.parametrize("found", [harness._OLDEST, "0.4.13", "0.5.0.dev1"])
def test_a_newer_harness_is_taken(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(harness, "version", lambda _: found)
    with lm_eval_installed():
        pass


def test_the_program_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(harness, "version", lambda _: "0.4.2")
    monkeypatch.setattr(sys, "argv", ["lm-eval", "run"])
    monkeypatch.delitem(sys.modules, "ralm.harness.__main__", raising=False)  # as another test may have imported it
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("ralm.harness", run_name="__main__")
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith("ralm: lm_eval 0.4.2 is too old for ralm")
