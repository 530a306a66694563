"""How answers of chat models are asked for and judged: the prompt and length by the model, and a judge."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ralm.answering import judge as judging
from ralm.answering.answers import Answer
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.judge import Judge
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import Question
from ralm.answering.run import questions_config
from ralm.answering.sources import QuestionInput
from ralm.protocols import WritingModel
from tests.chat_models import save_chat_model
from tests.cli.program import ralm

QUESTIONS = [
    Question("1", "Who sings?", ("whales", "a whale")),
    Question("2", "Who?", ()),
    Question("3", "Who?", ("I",)),
]
PROMPT = open_prompt("replug")


class Replies:
    """Stands for `answer_all`: the judge's replies in turn."""

    def __init__(self, *replies: str) -> None:
        self.replies = replies
        self.asked: list[QuestionInput] = []

    def __call__(self, inputs: Sequence[QuestionInput], *_: object) -> list[tuple[int, Answer, None]]:
        self.asked += inputs
        replies = zip(range(len(inputs)), self.replies, strict=False)
        return [(number, Answer(reply, [], {}), None) for number, reply in replies]


def test_the_first_word_of_a_reply_is_the_verdict(model: WritingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(" Yes.", "no, it is not", "**YES**", "maybe yes", " \n")
    monkeypatch.setattr(judging, "answer_all", replies)
    pairs = [(QUESTIONS[0], text) for text in ("it is whales", "a dog", "a", "b", " ", "c")]
    assert Judge(model).verdicts(pairs) == [True, False, True, None, False, None], "an empty answer is not shown"
    text = model.tokenizer.decode(replies.asked[0].prompts[0].tokens)
    assert text.endswith(
        "Question: Who sings?\nCorrect answers: whales; a whale\nGiven answer: it is whales\n\n"
        "Does the given answer agree with one of the correct answers? Reply with yes or no alone.\nReply:"
    )


def test_a_text_that_does_not_fit_has_no_verdict(model: WritingModel) -> None:
    long = Question("1", "Who?", ("word " * 3000,))
    assert Judge(model).verdicts([(long, "he")]) == [None]


def test_verdicts_are_in_the_measures_and_the_judge_in_the_config(
    model: WritingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "answer_all", Replies("yes", "perhaps"))
    options = AnswerOptions(new_tokens=3)
    evaluation = evaluate_questions(QUESTIONS, model, PROMPT, options=options, judge=Judge(model))
    assert [row.judged.agrees for row in evaluation.rows] == [True, None, None]
    summary: Any = evaluation.summary()
    assert (summary["agrees"], summary["judge_failures"]) == (1, 1)
    with_judge = questions_config(QUESTIONS, model, PROMPT, options=options, judge=Judge(model))
    without: Any = questions_config(QUESTIONS, model, PROMPT, options=options)
    assert without["judge"] is None
    found: Any = with_judge["judge"]
    assert found["model"]["name"] == "ralm-tiny"
    assert "Does the given answer agree" in found["prompt"]["closed"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    save_chat_model(folder / "chat")
    (folder / "q.jsonl").write_text('{"question": "Who sings?", "answers": ["whales"]}\n')
    return folder


@pytest.mark.parametrize(
    ("lm", "options", "prompt", "tokens", "said"),
    [
        (
            "chat",
            [],
            "chat",
            256,
            "asked with the prompt chat, as the model has a chat template; answers have at most 256",
        ),
        ("chat", ["--new-tokens", "9"], "chat", 9, "has a chat template; answers have at most 9 tokens"),
        ("chat", ["--prompt", "replug"], "replug", 10, "asked with the prompt replug; answers have at most 10 tokens"),
        ("chat", ["--prompt", "chat"], "chat", 256, "asked with the prompt chat; answers have at most 256 tokens"),
        ("ralm-tiny", [], "in-context-ralm", 10, "asked with the prompt in-context-ralm; answers have at most 10"),
    ],
)
def test_the_prompt_and_the_length_follow_the_model(
    work: Path, lm: str, options: list[str], prompt: str, tokens: int, said: str
) -> None:
    asking = ["qa", work / "q.jsonl", "--lm", work / lm if lm == "chat" else lm, *options]
    found = json.loads(ralm(*asking, "--json").out)
    assert (found["config"]["prompt"]["name"], found["config"]["options"]["new_tokens"]) == (prompt, tokens)
    assert found["config"]["options"]["stop"] == ([] if prompt == "chat" else ["\n"])
    assert {"exact_match", "contains", "f1", "token_recall"} <= found.keys()
    assert said in ralm(*asking).out


def test_a_judge_by_the_command(work: Path) -> None:
    asking = ["qa", work / "q.jsonl", "--lm", "ralm-tiny", "--judge", work / "chat"]
    answer = ralm(*asking, "--out", work / "run")
    assert answer.status == 0, answer.err
    assert "1 answers without a verdict" in answer.out
    [row] = pq.read_table(work / "run" / "answers.parquet").to_pylist()
    assert (row["agrees"], row["contains"], row["token_recall"]) == (None, False, 0)
    summary = json.loads((work / "run" / "summary.json").read_text())
    assert summary["judge_failures"] == 1
    assert summary["config"]["judge"]["model"]["name"].endswith("chat")
    report = json.loads(ralm("report", work / "run", "--json").out)
    assert report["settings"]["judge"].endswith("chat")
    assert report["settings"]["prompt"] == "in-context-ralm"
