"""The benchmark of real models: its rows are commands, complete rows are not run again, and its report reads them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import real_models, real_rows
from benchmarks.real_rows import CHOICE_ORDERS, INPUTS, MIXER_ORDERS, QUESTION_ORDERS, SCALES, TEXT_ORDERS, rows
from ralm.cli import program
from ralm.cli.models import sharing_models
from ralm.lm import TINY

FACTS = {
    f"Person {number}": f"Person {number} was born in the town of Place{number} by the sea." for number in range(8)
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models by other names: one with a chat template, by its files, and one without."""
    for name in ("chat", "base"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").touch()
    (tmp_path / "models" / "chat" / "chat_template.jinja").touch()
    return tmp_path / "models"


def test_every_row_is_a_command_with_a_name_of_its_own(models: Path) -> None:
    found = rows(models, SCALES["small"])
    names = [row.name for row in found]
    assert len(set(names)) == len(names)
    for row in found:
        command = program().commands[row.line[0]]
        command.make_context(row.line[0], [*row.line[1:], "--out", "run"])


def test_the_rows_of_every_order_are_there(models: Path) -> None:
    named = {row.name for row in rows(models, SCALES["full"])}
    of_materials = {
        "medquad": TEXT_ORDERS,
        "popqa": QUESTION_ORDERS,
        "nq_oracle": MIXER_ORDERS,
        "mmlu": CHOICE_ORDERS,
    }
    for material, orders in of_materials.items():
        for order in orders:
            assert {f"chat/{material}/{how}" for how in (order.better, order.worse)} <= named


def test_a_chat_model_is_asked_without_demonstrations_and_a_base_model_with_five(models: Path) -> None:
    lines = {row.name: row.line for row in rows(models, SCALES["small"])}
    assert "--demonstrations" not in lines["chat/popqa/closed"]
    assert "--demonstrations" in lines["base/popqa/closed"]


def test_rows_run_once_and_the_report_compares_them(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_inputs()
    wanted = [row for row in _tiny_rows(models) if row.name.split("/")[1:] in _WANTED]
    run: list[Sequence[str]] = []

    def perform(line: Sequence[str]) -> None:
        run.append(line)
        real_models.perform(line)

    indexes = {str(INPUTS / name): ("index", str(INPUTS / f"{name}-corpus.jsonl")) for name in ("python", "popqa")}
    with sharing_models():
        real_models.run_rows(wanted, indexes, perform)
        assert [line[0] for line in run] == ["eval", "index", "eval", "qa", "index", "qa"]
        real_models.run_rows(wanted, indexes, perform)
        assert len(run) == 6
    report = [*real_models.report(wanted)]
    assert "## base/python: 4 documents" in "\n".join(report)
    assert "## base/popqa: 4 questions" in report
    orders = [line for line in report if "bm25 over" in line]
    assert [line.split(" | ")[1] for line in orders] == ["bm25 over closed", "bm25 over closed", "bm25 over none"]
    assert all(line.endswith((" seen |", " not clear |", " the other way |")) for line in orders)
    assert sum(line.startswith("- `base/") and "processor seconds" in line for line in report) == 4


_WANTED = [["python", "none"], ["python", "bm25"], ["popqa", "closed"], ["popqa", "bm25"]]


def _tiny_rows(models: Path) -> list[real_rows.Row]:
    """The rows of the base model, read by ralm-tiny."""
    own = str(models / "base")
    lines = [row for row in rows(models, SCALES["small"]) if row.name.startswith("base/")]
    return [real_rows.Row(row.name, tuple(TINY if one == own else one for one in row.line), row.rank) for row in lines]


def _write_inputs() -> None:
    """A text of four facts, the others as a corpus, and questions on the corpus."""
    INPUTS.mkdir()
    facts = [*FACTS.items()]
    text = "\n".join(f"= {title} =\n{fact}\n" for title, fact in facts[:4])
    (INPUTS / "python.txt").write_text(text)
    for name in ("python", "popqa"):
        lines = [json.dumps({"id": title, "title": title, "text": fact}) + "\n" for title, fact in facts]
        (INPUTS / f"{name}-corpus.jsonl").write_text("".join(lines))
    asked = [{"question": f"Where was {title} born?", "answers": [f"Place{title[-1]}"]} for title, _ in facts]
    (INPUTS / "popqa.json").write_text(json.dumps([{**one, "ctxs": []} for one in asked[:4]]))
    (INPUTS / "popqa-shots.json").write_text(json.dumps([{**one, "ctxs": []} for one in asked[4:6]]))
