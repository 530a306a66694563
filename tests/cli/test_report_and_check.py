"""Reports of runs and of generated texts, and `ralm check` of whole and damaged folders, end to end."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ralm import environment
from ralm.storage.outputs import MANIFEST
from tests.cli.program import MODEL_LENGTH, TEXT, done, failed, printed, ralm
from tests.fuzz.mutations import mend
from tests.fuzz.targets import make_index, make_run

ENSEMBLE = ["--reader", "ensemble", "--documents", 2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, work: Path, model: Path) -> Path:
    """A run of an ensemble with its baseline, `run`, and one without, `bare`."""
    folder = tmp_path_factory.mktemp("reports")
    for name, options in (("run", ["--baseline"]), ("bare", [])):
        reading = ["--lm", model, "--index", work / "index", *MODEL_LENGTH, *ENSEMBLE, *options]
        done("eval", work / "text.txt", *reading, "--out", folder / name)
    return folder


def test_a_run_in_the_terminal(runs: Path) -> None:
    shown = done("report", runs / "run").out
    assert "token perplexity" in shown
    assert "nats from passages over" in shown
    assert "The Hill (passage" in shown
    assert "nats from passages" not in done("report", runs / "bare").out
    assert "\x1b" not in shown, "no colours where there is no terminal"


def test_a_run_as_data(runs: Path) -> None:
    report = printed("report", runs / "run")
    assert report["text_before"] + "".join(token["text"] for token in report["text"]) == TEXT
    given = sum(row["gain"] for row in report["passages"]) + report["gain"]["unattributed"]
    assert given == pytest.approx(report["gain"]["nats"], abs=1e-6)
    assert all(sum(token["posteriors"]) == pytest.approx(1, abs=1e-3) for token in report["text"] if token["passages"])


def test_a_run_as_a_page(runs: Path, tmp_path: Path) -> None:
    write = ["report", runs / "run", "--html", tmp_path / "report.html"]
    done(*write)
    assert "The Hill" in (tmp_path / "report.html").read_text(encoding="utf-8")
    failed(ralm(*write), 1, "already exists")
    done(*write, "--force", "--limit", 3)
    assert "the first ${count(data.text.length)}" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_reported(work: Path, runs: Path) -> None:
    failed(ralm("report", runs / "bare", "--json"), 2, "ralm eval --baseline")
    failed(ralm("report", work / "index"), 1, "is no run that can be compared")
    failed(ralm("report", runs / "none"), 1, "does not exist")


def test_a_generated_text(generate: list[object], tmp_path: Path) -> None:
    page, command = tmp_path / "generated.html", [*generate, "The dog keeps the sheep", *ENSEMBLE, "--baseline"]
    generated = printed(*command, "--report", page)
    gains = [token["log_prob"] - token["baseline_log_prob"] for token in generated["tokens"]]
    assert [token["gain"] for token in generated["tokens"]] == pytest.approx(gains, abs=1e-5)
    assert generated["gain"]["nats"] == pytest.approx(sum(gains), abs=1e-4)
    assert "The dog keeps the sheep" in page.read_text(encoding="utf-8")
    assert "nats from passages over" in done(*command).out


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    make_index(tmp_path)
    make_run(tmp_path)
    return tmp_path


def test_what_is_whole(folders: Path) -> None:
    for kind in ("index", "run"):
        answer = ralm("check", folders / kind)
        assert (answer.status, answer.out, answer.err) == (0, f"{folders / kind}: this {kind} is whole\n", "")
        assert printed("check", folders / kind) == {
            "folder": str(folders / kind), "kind": kind, "damaged": []
        }  # fmt: skip


def test_every_damaged_file_is_named(folders: Path) -> None:
    for name in ("bm25/codes.npy", "passages.arrow"):
        file = folders / "index" / name
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    (folders / "index" / "bm25" / "totals.npy").unlink()
    answer = ralm("check", folders / "index", "--json")
    assert answer.status == 1
    assert json.loads(answer.out)["damaged"] == [
        "bm25/codes.npy was altered since it was written",
        "bm25/totals.npy is missing",
        "passages.arrow was altered since it was written",
    ]
    answer = ralm("check", folders / "index")
    assert (answer.status, answer.out.count("\n"), answer.err) == (1, 3, "")


def test_what_checksums_do_not_tell(folders: Path) -> None:
    file = folders / "run" / "summary.json"
    file.write_text("[1]")
    mend(folders / "run")
    answer = ralm("check", folders / "run")
    assert answer.status == 1
    assert "is damaged" in answer.out


def test_what_is_no_such_folder(folders: Path) -> None:
    failed(ralm("check", folders), 1, "has no manifest.json")
    failed(ralm("check", folders / "nowhere"), 1, "does not exist")
    (folders / "run" / MANIFEST).write_text("[" * 100_000)
    failed(ralm("check", folders / "run"), 1, "is damaged or not a ralm manifest")


def test_the_installation_lacks_and_misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = printed("check", "--environment")
    assert {"lm", "serve"} <= {*whole["extras"]}
    assert not whole["missing"]
    assert not whole["misfits"]

    def installed(package: str) -> str:
        if package == "bitsandbytes":
            raise PackageNotFoundError(package)
        return "0.9" if package == "rich" else version(package)

    monkeypatch.setattr(environment, "version", installed)
    shown = ralm("check", "--environment")
    assert shown.status == 1
    assert "quantised" not in shown.out.split("extras:")[1].splitlines()[0]
    assert "ralm[quantised] lacks bitsandbytes: pip install 'ralm[quantised]'" in shown.out
    assert "another version is needed: rich 0.9, which is not >=13.7" in shown.out
    failed(ralm("check", "any", "--environment"), 2, "give a folder to check, or --environment")
