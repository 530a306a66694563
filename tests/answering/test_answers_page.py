"""Reports of answered questions: what they hold, the answer marked in passages, pages, and what is refused."""

import json
import shutil
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ralm.answering.metrics import answer_spans, dpr_tokens, has_answer
from ralm.answering.report import report_of_answers
from ralm.answering.run import ANSWERS_KIND
from ralm.errors import DamagedFolderError
from ralm.storage.manifest import read_manifest
from tests.cli.program import failed, ralm

ROWS = [
    {
        "id": "1",
        "question": "who sings in the sea",
        "answers": ["whales", "the blue whales"],
        "ctxs": [
            {"title": "The Hill", "text": "The dog keeps the sheep together."},
            {"title": "The <b>Sea</b>", "text": "Seals sleep; the blue whales sing. Whales!"},
        ],
    },
    {
        "id": "2",
        "question": "where is bread sold",
        "answers": ["Orléans"],
        "ctxs": [{"title": "", "text": "Bread is sold in Orle\u0301ans \U0001f35e </script> every day."}],
    },
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "questions.json").write_text(json.dumps(ROWS))
    asked = ("qa", folder / "questions.json", "--lm", "ralm-tiny", "--new-tokens", 3)
    given_passages = ("--retrieved", folder / "questions.json", "--reader", "ensemble", "--documents", 2)
    assert ralm(*asked, *given_passages, "--baseline", "--out", folder / "run").status == 0
    assert ralm(*asked, "--out", folder / "closed").status == 0
    return folder


def test_a_report_holds_what_the_run_holds(work: Path) -> None:
    report = json.loads(ralm("report", work / "run", "--json").out)
    summary = json.loads((work / "run" / "summary.json").read_text())
    table = pq.read_table(work / "run" / "answers.parquet").to_pylist()
    assert report["measures"] == {name: value for name, value in summary.items() if name != "config"}
    assert report["settings"]["model"] == "ralm-tiny"
    for shown, row, asked in zip(report["questions"], table, ROWS, strict=True):
        assert (shown["question"], shown["answers"]) == (asked["question"], asked["answers"])
        assert shown["answer"] == row["answer"]
        assert shown["closed_book"]["answer"] == row["closed_answer"]
        assert shown["gold_log_prob"] == pytest.approx(row["gold_log_prob"], abs=1e-4)
        assert shown["without_passages"]["answer"] == row["without_answer"]
        shares = [one["share"] for one in shown["passages"]]
        assert set(shares) == {None} if len(shares) == 1 else sum(shares) == pytest.approx(1, abs=1e-3)
    texts = {one["passage"]: one["text"] for one in report["passages"]}
    marked = [
        [texts[one["passage"]][begin:end] for begin, end in one["marked"]]
        for shown in report["questions"]
        for one in shown["passages"]
    ]
    assert marked == [[], ["the blue whales", "whales", "Whales"], ["Orle\u0301ans"]]
    assert [shown["answer_at"] for shown in report["questions"]] == [2, 1]


def test_a_report_in_the_terminal(work: Path) -> None:
    shown = ralm("report", work / "run", "--questions", 1)
    assert "who sings in the sea" in shown.out
    assert "whales | the blue whales" in shown.out
    assert "closed book" in shown.out
    assert "(the first 1 of 2 questions)" in shown.out
    assert "where is bread sold" not in shown.out
    alone = ralm("report", work / "closed").out
    assert "with passages" not in alone
    assert "where is bread sold" in alone


def test_a_page_is_whole_and_its_text_is_no_markup(work: Path, tmp_path: Path) -> None:
    page = tmp_path / "answers.html"
    assert ralm("report", work / "run", "--html", page).status == 0
    content = page.read_text(encoding="utf-8")
    assert "{{" not in content
    assert content.count("</script>") == 2
    assert "--paper:" in content  # the style that pages share
    data = content.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["questions"][1]["question"] == "where is bread sold"
    failed(ralm("report", work / "run", "--html", page), 1, "already exists")


def test_what_is_refused(work: Path, tmp_path: Path) -> None:
    failed(ralm("report", work / "run", "--tokens", 3), 2, "--tokens has no effect without a single run of")
    failed(ralm("report", tmp_path), 1, "no manifest")
    damaged = tmp_path / "run"
    shutil.copytree(work / "run", damaged)
    (damaged / "answers.parquet").write_bytes(b"PAR1")
    with pytest.raises(DamagedFolderError):
        report_of_answers(damaged)
    assert read_manifest(work / "run", kind=ANSWERS_KIND).kind == "answers"


TEXTS = st.text("aBé\u0301\u0323 e.o\n\u1e69s", max_size=24)


@given(text=TEXTS, answers=st.lists(TEXTS, max_size=3))
def test_places_of_answers_agree_with_has_answer(text: str, answers: list[str]) -> None:
    spans = answer_spans(text, answers)
    assert bool(spans) == has_answer(text, answers)
    held, wanted = dpr_tokens(text), [dpr_tokens(answer) for answer in answers]
    assert bool(spans) == any(one in runs_of(held) for one in wanted)
    for begin, end in spans:  # a character is marked with its combining marks, which may be tokens of their own
        marked = dpr_tokens(text[begin:end])
        assert any(one in runs_of(marked) for one in wanted)
    composed = unicodedata.normalize("NFC", text)
    assert bool(answer_spans(composed, answers)) == has_answer(composed, answers)


def runs_of(tokens: list[str]) -> list[list[str]]:
    return [tokens[begin:end] for end in range(len(tokens) + 1) for begin in range(end)]
