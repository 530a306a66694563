"""Runs of questions side by side: sweeps, reports, comparisons, and tables as LaTeX."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ralm as library
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.answering.run import sweep_answers
from ralm.answering.sources import GivenPassages
from ralm.protocols import WritingModel
from ralm.reading.parts import Parts
from ralm.reading.readers import Concatenation
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.runs.run import verify_folder
from tests.cli.program import done, failed, printed, ralm

PROMPT = open_prompt("in-context-ralm")
TEXTS = ("The dog keeps the sheep together.", "The whales sing in the sea.", "Bread is sold in the town.")
QUESTIONS = [
    Question(str(place), text, (answer,), tuple(RetrievedPassage(text=one) for one in (*TEXTS[place:], *TEXTS[:place])))
    for place, (text, answer) in enumerate(
        [("who keeps the sheep together", "the dog"), ("who sings", "whales"), ("what is sold", "bread")]
    )
]
SOURCE = GivenPassages(QUESTIONS, {"passages": "given"})
OPTIONS = AnswerOptions(new_tokens=3)


def points(*numbers: int, questions: list[Question] = QUESTIONS, **how: Any) -> dict[str, dict[str, Any]]:
    of: dict[int, Any] = {
        number: {"parts": Parts(reader=Concatenation(documents=number))} for number in numbers if number
    }
    read = {"source": SOURCE, "options": OPTIONS, **how}
    hows = {number: read | of.get(number, {"source": None}) for number in numbers}
    return {str(number): {"questions": questions, "prompt": PROMPT, **one} for number, one in hows.items()}


def test_a_point_is_what_an_evaluation_with_so_many_passages_gives(model: WritingModel) -> None:
    swept = sweep_answers("documents", points(2, 0, 1), model)
    rows: Any = swept.rows()
    assert [row["documents"] for row in rows] == ["2", "0", "1"]
    for row in rows:
        number = row["documents"]
        alone: Any = evaluate_questions(model=model, **points(int(number))[number]).summary()
        for metric in ("exact_match", "f1", "gold_log_prob"):
            assert row[metric] == pytest.approx(alone[metric], abs=1e-4)
            assert (row[f"{metric}_low"], row[f"{metric}_high"]) == (alone[f"{metric}_interval"] or (None, None))
        assert row.get("has_answer") == alone.get("has_answer")
    assert rows[0]["has_answer"] == 1


def test_a_killed_sweep_resumes_and_its_folder_has_runs_table_and_plot(
    model: WritingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("ralm.runs.sweep.write_sweep", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        sweep_answers("documents", points(0, 1, 3), model, out=out)

    class Silent:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("continuations", "score"), "everything was kept"
            return getattr(model, name)

    rows: Any = sweep_answers("documents", points(0, 1, 3), Silent(), out=out).rows()
    summary = json.loads((out / "summary.json").read_text())
    with (out / "sweep.csv").open() as table:
        for written, row, point in zip(csv.DictReader(table), rows, summary["points"], strict=True):
            assert written["documents"] == row["documents"]
            assert float(written["gold_log_prob"]) == pytest.approx(row["gold_log_prob"])
            written_run = json.loads((out / f"documents-{row['documents']}" / "summary.json").read_text())
            assert (written_run["config"], written_run["gold_log_prob"]) == (point["config"], point["gold_log_prob"])
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert verify_folder(out) == ("sweep", [])
    assert verify_folder(out / "documents-3") == ("answers", [])


def test_figures_side_by_side_are_of_the_same_questions(model: WritingModel) -> None:
    """An answer that does not fit behind a long prompt is left out of the closed book's figure, too."""
    long = Question("long", "what is told", ("and " * 40 + "so on",), QUESTIONS[0].passages)
    several = [*QUESTIONS, long]
    options = AnswerOptions(new_tokens=3, max_length=40)
    source = GivenPassages(several, {"passages": "given"})
    asked: Any = {"source": source, "options": options}
    whole: Any = evaluate_questions(several, model, PROMPT, baseline=True, **asked).summary()
    few: Any = evaluate_questions(QUESTIONS, model, PROMPT, baseline=True, **asked).summary()
    assert (whole["questions"], whole["gold_scored"], few["gold_scored"]) == (4, 3, 3)
    for one, other in ((whole, few), (whole["closed_book"], few["closed_book"])):
        assert one["gold_log_prob"] == pytest.approx(other["gold_log_prob"], abs=1e-4)
    difference = whole["gold_log_prob"] - whole["without_passages"]["gold_log_prob"]
    assert whole["difference"]["gold_log_prob"] == pytest.approx(difference, abs=1e-4)
    closed: Any = evaluate_questions([long], model, PROMPT, options=AnswerOptions(new_tokens=3, max_length=60))
    assert closed.rows[0].judged.gold_log_prob is not None, "with a short prompt it fits"
    roomy = AnswerOptions(new_tokens=3, max_length=60)
    how: Any = {"source": source, "options": roomy}
    rows: Any = sweep_answers("documents", points(0, 1, questions=several, **how), model).rows()
    alone: Any = sweep_answers("documents", points(0, 1, **how), model).rows()
    for row, other in zip(rows, alone, strict=True):
        assert row["gold_log_prob"] == pytest.approx(other["gold_log_prob"], abs=1e-4)


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
    shown = done("report", one).out
    assert all(words in shown for words in ("exact match", "has answer", "4 questions"))
    same = library.compare_runs([one, one]).changes["gold_log_prob"][1]
    assert (same.value, same.ends) == (0.0, None)


@pytest.mark.parametrize("kind", ["questions", "choices"])
def test_questions_without_a_passage_are_counted(files: Path, kind: str) -> None:
    asked = ["qa", files / f"{kind}.jsonl", "--lm", "ralm-tiny", "--index", files / "index"]
    nothing = [*asked, "--where", 'id == "nobody"']
    assert printed(*nothing)["no_passage"] == 4
    assert "4 were asked without a passage" in done(*nothing).out


def test_folders_that_report_does_not_read_say_what_to_do(files: Path, tmp_path: Path) -> None:
    run, page = files / "qa" / "documents-1", tmp_path / "page.html"
    failed(ralm("report", run, "--html", page), 2, "--html shows the text of a single run")
    failed(ralm("report", files / "qa", files / "qa"), 1, "of a sweep those inside it")


def test_runs_of_choices(files: Path) -> None:
    one, two = files / "choice" / "documents-1", files / "choice" / "documents-2"
    compared: Any = printed("report", one, two)
    rights = [sum(row["right"] for row in table_of(folder, "choices.parquet")) / 4 for folder in (one, two)]
    assert [run["accuracy"] for run in compared["runs"]] == pytest.approx(rights)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    golds = [summary["gold_log_prob"] for summary in summaries]
    assert [run["gold_log_prob"] for run in compared["runs"]] == pytest.approx(golds)
    shown = done("report", one, two).out
    assert all(word in shown for word in ("accuracy", "gold log prob", "documents-2", "4 questions")), shown


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
    closed: Any = printed(*asked, "--index", files / "index", "--over", "documents=0,2")["points"][0]
    assert (closed["documents"], closed["config"]["passages"]) == ("0", None)
    failed(ralm(*asked, "--index", files / "index", "--over", "documents=-1,1"), 2, "--documents must be at least 1")
    failed(ralm(*asked, "--over", "lm=a,b"), 2, "--over must be KEY=v1,v2,... with a KEY of index, retriever")
    failed(ralm(*asked, "--over", "shots"), 2, "--shots must be a whole number, not")
    failed(ralm(*asked, "--over", "shots=1,2"), 2, "--shots has no effect without --demonstrations")


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
