"""Answers by the number of passages: the figures of separate runs, the folder, resuming, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ralm.answering.curve import CURVE_KIND, answer_curve, run_curve, several_in_context
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.answering.sources import GivenPassages
from ralm.errors import FolderExistsError, UsageError
from ralm.protocols import WritingModel
from ralm.reading.ensemble import Ensemble
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.storage.manifest import read_manifest
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


def test_a_row_is_what_an_evaluation_with_so_many_passages_gives(model: WritingModel) -> None:
    rows: Any = answer_curve([2, 0, 1], QUESTIONS, model, PROMPT, SOURCE, options=OPTIONS).rows()
    assert [row["documents"] for row in rows] == [2, 0, 1]
    for row in rows:
        number = row["documents"]
        source = SOURCE if number else None
        parts = several_in_context(number) if number else IN_CONTEXT
        alone: Any = evaluate_questions(QUESTIONS, model, PROMPT, source=source, parts=parts, options=OPTIONS).summary()
        for metric in ("exact_match", "f1", "gold_log_prob"):
            low, high = alone[f"{metric}_interval"]
            assert (row[metric], row[f"{metric}_low"], row[f"{metric}_high"]) == pytest.approx(
                (alone[metric], low, high), abs=1e-4
            )
        assert row["has_answer"] == (alone["has_answer"][str(number)] if number else None)
    assert rows[0]["has_answer"] == 1


def test_the_folder_has_the_table_and_the_plot(model: WritingModel, tmp_path: Path) -> None:
    ensembles: Any = lambda number: Parts(reader=Ensemble(documents=number))  # noqa: E731
    curve = run_curve(
        tmp_path / "out", [0, 1, 3], QUESTIONS, model, PROMPT, SOURCE, parts_of=ensembles, options=OPTIONS
    )
    with (tmp_path / "out" / "curve.csv").open() as table:
        written = list(csv.DictReader(table))
    rows: Any = curve.rows()
    for found, row in zip(written, rows, strict=True):
        assert int(found["documents"]) == row["documents"]
        assert float(found["gold_log_prob"]) == pytest.approx(row["gold_log_prob"])
    assert (tmp_path / "out" / "curve.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["config"]["numbers"] == [0, 1, 3]
    assert summary["config"]["reader"]["reader"] == "ensemble"
    assert read_manifest(tmp_path / "out", kind=CURVE_KIND).counts == {"points": 3}
    with pytest.raises(FolderExistsError):
        run_curve(tmp_path / "out", [0, 1], QUESTIONS, model, PROMPT, SOURCE, options=OPTIONS)


@pytest.mark.parametrize("numbers", [[], [1, 1], [-1, 2]])
def test_numbers_that_cannot_be_drawn(model: WritingModel, numbers: list[int]) -> None:
    with pytest.raises(UsageError, match="different numbers of passages"):
        answer_curve(numbers, QUESTIONS, model, PROMPT, SOURCE)


def test_the_command_draws_a_curve(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    rows = [
        {"question": one.text, "answers": [*one.answers], "ctxs": [{"text": read.text} for read in one.passages]}
        for one in QUESTIONS
    ]
    file.write_text(json.dumps(rows))
    command = ("curve", file, "--lm", "ralm-tiny", "--retrieved", file, "--new-tokens", 3, "--numbers", "0,2")
    shown = ralm(*command, "--reader", "ensemble", "--out", tmp_path / "out")
    assert shown.status == 0, shown.err
    assert str(tmp_path / "out" / "curve.png") in shown.out
    rows_of: Any = json.loads(ralm(*command, "--reader", "ensemble", "--json").out)["rows"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    for row, written in zip(rows_of, summary["rows"], strict=True):
        assert row["gold_log_prob"] == pytest.approx(written["gold_log_prob"])
    joined: Any = json.loads(ralm(*command, "--json").out)["rows"]
    assert abs(joined[1]["gold_log_prob"] - rows_of[1]["gold_log_prob"]) > 1e-3  # one prompt, not two
    last: Any = json.loads(ralm(*command, "--reader", "concatenation", "--order", "best-last", "--json").out)
    assert last["config"]["reader"]["order"] == "best-last"
    assert abs(last["rows"][1]["gold_log_prob"] - joined[1]["gold_log_prob"]) > 1e-3
    failed(ralm(*command, "--documents", 3), 2, "No such option: --documents")
    failed(ralm(*command[:4]), 2, "a curve needs passages: give --index or --retrieved")
    failed(ralm(*command[:-1], "1,two"), 2, "--numbers must be whole numbers")
    failed(ralm(*command[:-1], "1,1"), 2, "different numbers of passages")
    failed(ralm(*command, "--out", tmp_path / "out"), 1, "already exists")


def test_figures_side_by_side_are_of_the_same_questions(model: WritingModel) -> None:
    """An answer that does not fit behind a long prompt is left out of the closed book's figure, too."""
    long = Question("long", "what is told", ("and " * 40 + "so on",), QUESTIONS[0].passages)
    several = [*QUESTIONS, long]
    options = AnswerOptions(new_tokens=3, max_length=40)
    source = GivenPassages(several, {"passages": "given"})
    how: Any = {"source": source, "options": options}
    whole: Any = evaluate_questions(several, model, PROMPT, baseline=True, **how).summary()
    few: Any = evaluate_questions(QUESTIONS, model, PROMPT, baseline=True, **how).summary()
    assert (whole["questions"], whole["gold_scored"], few["gold_scored"]) == (4, 3, 3)
    for one, other in ((whole, few), (whole["closed_book"], few["closed_book"])):
        assert one["gold_log_prob"] == pytest.approx(other["gold_log_prob"], abs=1e-4)
    difference = whole["gold_log_prob"] - whole["without_passages"]["gold_log_prob"]
    assert whole["difference"]["gold_log_prob"] == pytest.approx(difference, abs=1e-4)
    closed: Any = evaluate_questions([long], model, PROMPT, options=AnswerOptions(new_tokens=3, max_length=60))
    assert closed.rows[0].judged.gold_log_prob is not None, "with a short prompt it fits"
    roomy = AnswerOptions(new_tokens=3, max_length=60)
    rows: Any = answer_curve([0, 1], several, model, PROMPT, source, options=roomy).rows()
    alone: Any = answer_curve([0, 1], QUESTIONS, model, PROMPT, source, options=roomy).rows()
    for row, other in zip(rows, alone, strict=True):
        assert (row["questions"], row["gold_scored"]) == (4, 3)
        assert row["gold_log_prob"] == pytest.approx(other["gold_log_prob"], abs=1e-4)
