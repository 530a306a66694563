"""Answers by the number of passages: the figures of separate runs, the folder, resuming, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ralm.answering import run
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import Question
from ralm.answering.run import sweep_answers
from ralm.answering.sources import GivenPassages
from ralm.protocols import WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.reading.parts import Parts
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.runs.run import verify_folder
from tests.cli.program import failed, ralm

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
        patched.setattr(run, "write_sweep", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
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


def test_documents_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    rows = [
        {"question": one.text, "answers": [*one.answers], "ctxs": [{"text": read.text} for read in one.passages]}
        for one in QUESTIONS
    ]
    file.write_text(json.dumps(rows))
    command = ("qa", file, "--lm", "ralm-tiny", "--retrieved", file, "--new-tokens", 3, "--over", "documents=0,2")
    shown = ralm(*command, "--reader", "ensemble", "--out", tmp_path / "out")
    assert shown.status == 0, shown.err
    assert str(tmp_path / "out" / "sweep.png") in shown.out
    assert "asked with the prompt replug; answers have at most 3 tokens" in shown.out
    closed, _ = json.loads((tmp_path / "out" / "summary.json").read_text())["points"]
    assert closed["config"]["passages"] is None
    failed(ralm(*command[:-1], "documents=-1,1"), 2, "--documents must be at least 1, not -1")


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
