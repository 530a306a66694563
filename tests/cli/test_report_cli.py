"""Reports end to end: of runs, and of generated texts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ralm
from tests.cli.test_cli import MODEL_LENGTH, STORIES, TEXT, failed


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """An index, and a run of an ensemble with its baseline."""
    folder = tmp_path_factory.mktemp("reports")
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    assert ralm("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10).status == 0
    reading = ["--lm", tiny_folders["llama"], "--index", folder / "index", *MODEL_LENGTH]
    for name, options in (("run", ["--baseline"]), ("bare", [])):
        ensemble = ["--reader", "ensemble", "--documents", 2, *options]
        answer = ralm("eval", folder / "text.txt", *reading, *ensemble, "--out", folder / name)
        assert answer.status == 0, answer.err
    return folder


def test_a_run_in_the_terminal(work: Path) -> None:
    answer = ralm("report", work / "run")
    assert answer.status == 0, answer.err
    assert "reader ensemble of 2, similarity weights" in answer.out
    assert "The dog keeps the sheep together on the green hill." in answer.out
    assert "The Hill (passage" in answer.out
    assert "\x1b" not in answer.out, "no colours where there is no terminal"


def test_a_run_as_data(work: Path) -> None:
    answer = ralm("report", work / "run", "--json")
    assert answer.status == 0, answer.err
    report = json.loads(answer.out)
    shown = report["text_before"] + "".join(token["text"] for token in report["text"])
    assert shown == TEXT
    given = sum(row["gain"] for row in report["passages"]) + report["gain"]["unattributed"]
    assert given == pytest.approx(report["gain"]["nats"], abs=1e-6)
    assert all(sum(token["posteriors"]) == pytest.approx(1, abs=1e-3) for token in report["text"] if token["passages"])
    assert len(json.loads(ralm("report", work / "run", "--json", "--tokens", 3).out)["text"]) == 3


def test_a_run_as_a_page(work: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert ralm("report", work / "run", "--html", page).status == 0
    assert "The Hill" in page.read_text(encoding="utf-8")
    failed(ralm("report", work / "run", "--html", page), 1, "already exists")
    assert ralm("report", work / "run", "--html", page, "--force").status == 0


def test_what_cannot_be_reported(work: Path) -> None:
    failed(ralm("report", work / "bare"), 2, "ralm eval --baseline")
    failed(ralm("report", work / "index"), 1, "not a ralm run")
    failed(ralm("report", work / "none"), 1, "does not exist")


def test_reports_do_not_wait_for_torch(work: Path) -> None:
    script = f"""
import sys
from ralm.cli import main
sys.argv = ["ralm", "report", {str(work / "run")!r}]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_generated_text(work: Path, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "generated.html"
    reading = ["--lm", tiny_folders["llama"], "--index", work / "index", *MODEL_LENGTH, "--new-tokens", 12]
    ensemble = ["--reader", "ensemble", "--documents", 2, "--baseline"]
    answer = ralm("generate", "The dog keeps the sheep", *reading, *ensemble, "--report", page, "--json")
    assert answer.status == 0, answer.err
    generated = json.loads(answer.out)
    assert all(
        token["gain"] == pytest.approx(token["log_prob"] - token["baseline_log_prob"], abs=1e-5)
        for token in generated["tokens"]
    )
    assert generated["gain"]["nats"] == pytest.approx(sum(token["gain"] for token in generated["tokens"]), abs=1e-4)
    assert "The dog keeps the sheep" in page.read_text(encoding="utf-8")
    shown = ralm("generate", "The dog keeps the sheep", *reading, *ensemble)
    assert "Passages by contribution" in shown.out


def test_options_of_generation_that_do_not_go_together(work: Path, tiny_folders: dict[str, Path]) -> None:
    model = ["--lm", tiny_folders["llama"]]
    failed(ralm("generate", "The dog", *model, "--baseline"), 2, "give --index too")
    prompts = work / "text.txt"
    failed(ralm("generate", "--prompts", prompts, *model, "--index", work / "index", "--report", "x"), 2, "one text")
