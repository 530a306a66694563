"""`--settings`: options from a TOML file, as if they stood on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.program import done, printed, ralm

FLAGS = ["--stride", "8", "--reader", "ensemble", "--documents", "2", "--mixer", "uniform", "--query-tokens", "9"]
SETTINGS = 'stride = 8\nreader = "ensemble"\ndocuments = 2\nmixer = "uniform"\nquery_tokens = 9\n'


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    return tmp_path / "settings.toml"


def test_a_run_is_that_of_the_same_flags(evaluate: list[object], settings: Path, tmp_path: Path) -> None:
    for name, given in (("flags", FLAGS), ("file", ["--settings", settings])):
        done(*evaluate, *given, "--out", tmp_path / name)
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("flags", "file")]
    assert manifests[0]["settings"] == manifests[1]["settings"]
    assert manifests[0]["settings"]["config"]["plan"]["stride"] == 8


def test_the_command_line_wins(evaluate: list[object], settings: Path) -> None:
    ours = printed(*evaluate, "--settings", settings, "--stride", "4")
    assert ours["config"]["plan"]["stride"] == 4
    assert ours["config"]["reader"]["mixer"]["mixer"] == "uniform"


def test_one_file_serves_several_commands(generate: list[object], settings: Path) -> None:
    settings.write_text(SETTINGS + "new-tokens = 5\nbaseline = true\n")
    asked = done("ask", "What sings?", *generate[1:5], "--settings", settings)
    assert f"ralm: {settings}: `ralm ask` has no use for stride, query-tokens, baseline\n" in asked.err
    assert asked.out
    flags = [*FLAGS, "--new-tokens", 5, "--baseline"]
    written = [done(*generate[:7], "The sea", *given).out for given in (flags, ["--settings", settings])]
    assert written[0] == written[1] != ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strid = 3", "sets strid, which is no option of `ralm eval`: correct or remove it."),
        ("settings = 'x'", "sets settings, which is no option of `ralm eval`: correct or remove it."),
        ("[eval]\nstride = 4", "sets eval, which is no option of `ralm eval`: correct or remove it."),
        ("stride = 0", ": --stride must be at least 1, not 0."),
        ("stride = 'four'", "sets stride to 'four', which it does not take: "),
        ("stride = 2.5", "sets stride to 2.5, which it does not take: "),
        ("stride = true", "sets stride to true: it takes a value of its own."),
        ("baseline = 'yes'", "sets baseline to 'yes': it takes true or false."),
        ("mixer = 'best'", ": --mixer best is not known: write one of similarity, uniform, posterior"),
        ("mixer = 'posterior'", ": --mixer has no effect without --reader ensemble."),
        ("stride = ", "is not a file of settings: Invalid value"),
        ("\0", "is not a file of settings: "),
    ],
)
def test_a_wrong_setting_is_one_sentence(evaluate: list[object], settings: Path, text: str, said: str) -> None:
    settings.write_text(text)
    answer = ralm(*evaluate, "--settings", settings)
    assert answer.status == 2
    assert answer.err.startswith(f"ralm: {settings}")
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_an_error_that_is_not_of_the_file_does_not_name_it(evaluate: list[object], settings: Path) -> None:
    assert ralm(*evaluate, "--settings", settings, "--block", "4").err.startswith("ralm: --block has no effect")
