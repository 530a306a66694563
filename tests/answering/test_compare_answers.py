"""`ralm report` of several runs of questions and choices, their sweeps with --over, and tables as LaTeX."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ralm as library
from tests.cli.program import done, failed, printed, ralm

FACTS = {"Curie": "radium", "Nobel": "dynamite", "Bell": "the telephone", "Zuse": "the computer"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    texts = [{"id": name, "text": f"{name} found {what}."} for name, what in FACTS.items()]
    asked = [{"question": f"who found {what}", "answers": [name]} for name, what in FACTS.items()]
    chosen = [{**row, "choices": [*FACTS], "answer": row["answers"][0]} for row in asked]
    for name, rows in (("corpus", texts), ("questions", asked), ("choices", chosen)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done("index", folder / "corpus.jsonl", "--out", folder / "index")
    base = ["--lm", "ralm-tiny", "--index", folder / "index", "--reader", "ensemble"]
    done("qa", folder / "questions.jsonl", *base, "--over", "documents=1,2", "--out", folder / "qa")
    done("qa", folder / "choices.jsonl", *base, "--over", "documents=1,2", "--out", folder / "choice")
    return folder


def table_of(folder: Path, name: str) -> Any:
    return pq.read_table(folder / name).to_pylist()


def test_runs_of_questions(files: Path) -> None:
    one, two = files / "qa" / "documents-1", files / "qa" / "documents-2"
    compared: Any = printed("report", one, two)
    rows = [table_of(folder, "answers.parquet") for folder in (one, two)]
    means = [sum(row["f1"] for row in some) / 4 for some in rows]
    logs = [sum(row["gold_log_prob"] for row in some) / sum(row["gold_tokens"] for row in some) for some in rows]
    first, second = compared["runs"]
    assert compared["questions"] == 4
    assert [first["f1"], second["f1"]] == pytest.approx(means)
    assert [first["gold_log_prob"], second["gold_log_prob"]] == pytest.approx(logs)
    assert "gold_log_prob_from_first" not in first
    assert second["gold_log_prob_from_first"] == pytest.approx(logs[1] - logs[0])
    assert second["gold_log_prob_from_first_interval"] is None, "of four questions"
    summary = json.loads((one / "summary.json").read_text())
    assert first["gold_log_prob"] == pytest.approx(summary["gold_log_prob"])
    same = library.compare_runs([one, one]).changes["gold_log_prob"][1]
    assert (same.value, same.ends) == (0.0, None)


@pytest.mark.parametrize("kind", ["questions", "choices"])
def test_questions_without_a_passage_are_counted(files: Path, kind: str) -> None:
    asked = ["qa", files / f"{kind}.jsonl", "--lm", "ralm-tiny", "--index", files / "index"]
    nothing = [*asked, "--where", 'id == "nobody"']
    assert printed(*nothing)["no_passage"] == 4
    assert "4 were asked without a passage" in done(*nothing).out


def test_questions_without_gold_answers_have_no_measures(files: Path, tmp_path: Path) -> None:
    (tmp_path / "bare.jsonl").write_text('{"question": "who found radium", "answers": []}\n' * 2)
    asked = ["qa", tmp_path / "bare.jsonl", "--lm", "ralm-tiny", "--index", files / "index", "--new-tokens", 2]
    shown = done(*asked).out
    assert "2 questions: no measure counts" in shown
    assert "an answer is in the first" not in shown


def test_folders_without_a_page_say_what_to_do(files: Path) -> None:
    for folder in (files / "choice" / "documents-1", files / "qa"):
        failed(ralm("report", folder), 2, "give several runs to compare")
    failed(ralm("report", files / "qa", files / "qa"), 1, "of a sweep those inside it")


def test_runs_of_choices(files: Path) -> None:
    one, two = files / "choice" / "documents-1", files / "choice" / "documents-2"
    compared: Any = printed("report", one, two)
    rights = [sum(row["right"] for row in table_of(folder, "choices.parquet")) / 4 for folder in (one, two)]
    assert [run["accuracy"] for run in compared["runs"]] == pytest.approx(rights)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    for name in ("brier_score", "gold_log_prob"):
        assert [run[name] for run in compared["runs"]] == pytest.approx([one[name] for one in summaries])
    shown = done("report", one, two).out
    assert all(word in shown for word in ("accuracy", "brier score", "documents-2", "4 questions")), shown


def test_what_cannot_be_compared(files: Path, tmp_path: Path) -> None:
    one, choice = files / "qa" / "documents-1", files / "choice" / "documents-1"
    failed(ralm("report", one, choice), 2, "over different targets or questions")
    (tmp_path / "other.jsonl").write_text('{"question": "who found gold", "answers": ["nobody"]}\n' * 4)
    done("qa", tmp_path / "other.jsonl", "--lm", "ralm-tiny", "--out", tmp_path / "other")
    failed(ralm("report", one, tmp_path / "other"), 2, "over different targets or questions")


def test_a_sweep_of_questions_has_the_figures_of_its_runs(files: Path, tmp_path: Path) -> None:
    asked = ["qa", files / "questions.jsonl", "--lm", "ralm-tiny", "--limit", 2]
    swept: Any = printed(*asked, "--index", files / "index", "--over", "reader=in-context,concatenation")
    alone = printed(*asked, "--index", files / "index", "--reader", "concatenation")
    assert swept["option"] == "reader"
    assert [point["reader"] for point in swept["points"]] == ["in-context", "concatenation"]
    first, second = swept["points"]
    assert second["f1_from_first"] == pytest.approx(alone["f1"] - first["f1"])
    assert not [name for name in first if "from_first" in name]
    kept = {name: value for name, value in second.items() if "from_first" not in name}
    assert {**kept, "seconds": 0} == {"reader": "concatenation", **alone, "seconds": 0}
    failed(ralm(*asked, "--over", "lm=a,b"), 2, "--over must be KEY=v1,v2,... with a KEY of index, retriever")
    failed(ralm(*asked, "--over", "shots"), 2, "--shots must be a whole number, not")
    failed(ralm(*asked, "--over", "shots=1,2"), 2, "--shots makes no difference")


def test_tables_as_latex(files: Path) -> None:
    runs = [files / "qa" / "documents-1", files / "qa" / "documents-2"]
    lines = done("report", *runs, "--latex").out.splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert lines[2:4] == [r" & run &  & change from the first \\", r"\midrule"]
    assert lines[-2:] == [r"\end{tabular}", "% 4 questions: no interval: fewer than 10 of them, or none differs"]
    assert any(line.startswith("gold log prob & documents-1 & $-$") for line in lines)
    failed(ralm("report", *runs, "--latex", "--json"), 2, "--json and --latex are two ways of printing")
    swept = done(*("qa", files / "choices.jsonl", "--lm", "ralm-tiny", "--over", "max-length=200,300"), "--latex").out
    assert swept.startswith("\\begin{tabular}")
    assert "& -{}-max-length & " in swept, "two hyphens would be a dash"
    assert "& 200 & " in swept
