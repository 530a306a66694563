"""Multiple choice on disk and by the command: the folder, resuming, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ralm.answering.options import ChoiceOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import ChoiceQuestion
from ralm.answering.run import run_choices
from ralm.errors import UsageError
from ralm.lm.named import ModelOptions, load_language_model
from ralm.protocols import WritingModel
from ralm.reading.ensemble import Ensemble
from tests.answering.test_choosing import PASSAGES, QUESTIONS, SHOWN, Given
from tests.cli.program import ralm
from tests.cli.test_cli import failed
from tests.shared_data import shared

PROMPT = open_prompt("replug-choice")


@pytest.fixture(scope="module")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


@pytest.mark.parametrize("score", ["letter", "generated"])
def test_a_run_resumes_without_reading_anything_twice(
    model: WritingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: Any
) -> None:
    import ralm.answering.run as module

    parts: Any = {
        "source": Given(),
        "reader": Ensemble(documents=2),
        "demonstrations": SHOWN,
        "options": ChoiceOptions(score=score, new_tokens=3),
        "baseline": True,
    }
    whole = run_choices(tmp_path / "whole", QUESTIONS, model, PROMPT, **parts)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            run_choices(tmp_path / "run", QUESTIONS, model, PROMPT, **parts)
    assert (tmp_path / "run.unfinished").is_dir()
    with pytest.raises(UsageError, match="begun with other settings"):
        run_choices(tmp_path / "run", QUESTIONS[1:], model, PROMPT, **parts)
    with pytest.raises(UsageError, match=r"begun with other settings \(options"):
        run_choices(tmp_path / "run", QUESTIONS, model, PROMPT, **parts | {"options": ChoiceOptions(max_length=500)})

    class Silent:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("continuations", "score"), "everything was kept"
            return getattr(model, name)

    again = run_choices(tmp_path / "run", QUESTIONS, Silent(), PROMPT, **parts)
    assert not (tmp_path / "run.unfinished").exists()
    for one, other in zip(whole.rows, again.rows, strict=True):
        assert one.choice.chosen == other.choice.chosen
        assert one.choice.answer == other.choice.answer
        if one.choice.probabilities_C is not None:
            assert one.choice.probabilities_C.tolist() == pytest.approx(other.choice.probabilities_C)
    for name in ("choices.parquet", "passages.parquet"):
        assert pq.read_table(tmp_path / "whole" / name).num_rows == pq.read_table(tmp_path / "run" / name).num_rows


def test_the_tables(model: WritingModel, tmp_path: Path) -> None:
    questions = [*QUESTIONS, ChoiceQuestion("x", "Who?", ("I", "you"), 1)]
    parts: Any = {"source": Given(), "reader": Ensemble(documents=2), "baseline": True}
    evaluation = run_choices(tmp_path / "run", questions, model, PROMPT, **parts)
    rows = pq.read_table(tmp_path / "run" / "choices.parquet").to_pylist()
    assert [row["gold"] for row in rows] == ["A", "B", "D", "B"]
    assert [row["category"] for row in rows] == ["social sciences", "STEM", "STEM", None]
    assert [row["subject"] for row in rows] == ["sociology", "astronomy", "astronomy", None]
    for row, one in zip(rows, evaluation.rows, strict=True):
        assert row["right"] == (row["chosen"] == row["gold"])
        assert row["choices"] == [*one.question.choices]
        assert len(row["log_probs"]) == len(row["probabilities"]) == len(row["choices"])
        assert sum(row["probabilities"]) == pytest.approx(1)
        assert row["passages"] == [passage.number for passage in one.passages]
        assert sum(row["shares"]) == pytest.approx(1, abs=1e-4)
        assert row["answer"] is None
        assert row["closed_chosen"] in ("A", "B", "C", "D")
    passages = pq.read_table(tmp_path / "run" / "passages.parquet").to_pylist()
    assert [row["text"] for row in passages] == [PASSAGES[row["passage"]].text for row in passages]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy"] == sum(row["right"] for row in rows) / 4
    assert summary["config"]["questions"]["count"] == 4
    assert [*summary["subjects"]] == ["astronomy", "sociology"], "a question without a subject is in none"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [
        {"question": one.text, "choices": one.choices, "answer": one.gold, "subject": one.subject} for one in QUESTIONS
    ]
    passages = [{"title": one.title, "text": one.text} for one in PASSAGES]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [{**row, "ctxs": passages} for row in rows]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    documents = [{"id": p.document_id, "title": p.title, "text": p.text} for p in PASSAGES]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    for split in ("dev", "test"):
        (tmp_path / split).mkdir()
        for subject in ("anatomy", "sociology"):
            lines = [f"What is {number} of {subject} {split}?,one,two,three,four,B\n" for number in range(6)]
            (tmp_path / split / f"{subject}_{split}.csv").write_text("".join(lines))
    return tmp_path


def test_the_command(files: Path) -> None:
    assert ralm("index", files / "corpus.jsonl", "--out", files / "index").status == 0
    asking = ["choice", files / "questions.jsonl", "--lm", "ralm-tiny"]
    reader = ["--reader", "ensemble", "--documents", "2"]
    answer = ralm(*asking, "--index", files / "index", *reader, "--baseline", "--out", files / "run")
    assert answer.status == 0, answer.err
    assert "closed book" in answer.out
    assert "difference" in answer.out
    assert "social sciences" in answer.out
    assert "\N{HORIZONTAL ELLIPSIS}" not in answer.out
    assert "3 questions; chance 36.1%" in answer.out
    assert pq.read_table(files / "run" / "choices.parquet")["closed_chosen"].null_count == 0
    assert ralm("check", files / "run").status == 0
    given = json.loads(ralm(*asking, "--retrieved", files / "given.jsonl", "--json").out)
    assert given["questions"] == 3
    assert given["config"]["prompt"]["between_choices"] == " "
    failed(ralm(*asking, "--index", files / "index", "--out", files / "run"), 1, "already exists")


def test_mmlus_folders_by_the_command(files: Path) -> None:
    asking = ["choice", files / "test", "--lm", "ralm-tiny", "--limit", "2", "--json"]
    found = json.loads(ralm(*asking, "--demonstrations", files / "dev").out)
    assert found["questions"] == 4, "2 of each subject"
    assert found["config"]["demonstrations"]["count"] == 10, "5 of each subject"
    assert found["categories"].keys() == {"social sciences", "STEM"}
    texts = json.loads(ralm(*asking, "--score", "text").out)
    assert "{choices}" not in texts["config"]["prompt"]["closed"]
    written = json.loads(ralm(*asking, "--score", "generated", "--new-tokens", "2").out)
    assert written["no_choice"] <= 4
    assert "confidence" not in written
    printed = ralm(*asking[:-1], "--score", "generated")
    assert printed.status == 0
    assert "Brier" not in printed.out


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--reader", "ensemble"], 2, "reads passages: give --index or --retrieved too"),
        (["--baseline"], 2, "--baseline has no effect"),
        (["--shots", "3"], 2, "--shots has no effect without --demonstrations"),
        (["--new-tokens", "3"], 2, "--new-tokens has no effect without --score generated"),
        (["--retrieved", "questions.jsonl"], 1, "has no passages"),
        (["--prompt", "none"], 1, "none is no prompt"),
        (["--prompt", "replug"], 2, "--score letter needs a prompt with {choices}"),
        (["--choices-field", "c"], 1, "line 1 has no field 'c'"),
        (["--max-length", "30"], 2, "fit into the model beside the answer: shorten it"),
        (["--demonstrations", "dev"], 2, "--demonstrations has none of the subject 'astronomy'"),
        (["--demonstrations", "nothing"], 1, "nothing is no file of multiple choice"),
        (["--score", "best"], 2, "'best' is not one of 'letter', 'text', 'generated'"),
        (["--rerank", "oracle"], 2, "No such option"),
    ],
)
def test_bad_input(files: Path, options: list[str], status: int, said: str) -> None:
    options = [str(files / one) if (files / one).exists() else one for one in options]
    failed(ralm("choice", files / "questions.jsonl", "--lm", "ralm-tiny", *options), status, said)


def test_fields_of_a_table(files: Path) -> None:
    asking = ["choice", files / "test", "--lm", "ralm-tiny", "--question-field", "q"]
    failed(ralm(*asking), 2, "--question-field has no effect without records with named fields")


def test_questions_with_choices_are_no_questions_of_qa(files: Path) -> None:
    (files / "open.jsonl").write_text('{"question": "who?", "answers": ["I"]}\n')
    asking = ["qa", files / "open.jsonl", "--lm", "ralm-tiny", "--prompt", "replug-choice"]
    failed(ralm(*asking), 2, "this prompt shows choices, and the question 'who?' has none")


@pytest.mark.slow
def test_mmlu(tmp_path: Path) -> None:
    """One question of every subject, with a demonstration: chance is 25%, and ralm-tiny knows no better."""
    asking = ["choice", shared("data", "mmlu", "test"), "--lm", "ralm-tiny", "--limit", "1", "--shots", "1", "--json"]
    found = json.loads(ralm(*asking, "--demonstrations", shared("data", "mmlu", "dev")).out)
    assert found["questions"] == 57
    assert len(found["subjects"]) == 57
    assert [one["questions"] for one in found["categories"].values()] == [13, 12, 19, 13]
    assert 0 < found["accuracy"] < 0.6
