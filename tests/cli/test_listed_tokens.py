"""What is said of a server that lists its top tokens or returns text, and what it is refused for."""

from pathlib import Path

import numpy as np
import pytest

from ralm.answering.answers import Answer
from ralm.answering.evaluation import AnsweredQuestion, AnswerEvaluation, JudgedAnswer
from ralm.answering.metrics import ANSWER_MEASURES
from ralm.answering.prompts import Cut
from ralm.answering.questions import Question
from ralm.lm.registry import load_local_model
from ralm.reading.pieces import GeneratedText, GeneratedToken
from ralm.retrieval.build import build_index
from tests.api.backings import OfModel
from tests.api.dialects import Dialect, LlamaCppPython, TextOnly
from tests.api.scripted_server import ScriptedServer
from tests.api.served import ChatsOnly
from tests.cli.program import failed, ralm
from tests.fakes import passages_of


def answered(*tokens: GeneratedToken) -> AnswerEvaluation:
    answer = Answer("it", [GeneratedText("it", 0, tokens)], {})
    judged = JudgedAnswer(answer=answer, cut=Cut(), measures=dict.fromkeys(ANSWER_MEASURES, 1.0))
    question = Question("1", "what?", ("it",))
    row = AnsweredQuestion(question=question, passages=(), answer_at=None, judged=judged)
    return AnswerEvaluation(rows=[row], documents=0, seconds=1.0)


def token(*, bound_width: float = 0.0, certified: bool = True) -> GeneratedToken:
    shares_K = np.full(2, 0.5, dtype=np.float32)
    return GeneratedToken(7, -1.0, np.array([0, 1]), shares_K, bound_width, certified)


def test_the_share_of_certified_tokens_is_told_also_if_all_log_probabilities_are_known() -> None:
    """Every document lists the token, and another one may be likelier all the same."""
    assert answered(token(), token(certified=False)).summary()["certified"] == 0.5
    assert answered(token(bound_width=0.1)).summary()["certified"] == 1
    assert "certified" not in answered(token()).summary()


@pytest.mark.parametrize("dialect", [LlamaCppPython(), ChatsOnly(), TextOnly()], ids=str)
def test_what_needs_scores_is_refused_before_anything_is_written(dialect: Dialect, tmp_path: Path) -> None:
    build_index(passages_of("The list is a river", "A tuple"), tmp_path / "index")
    (tmp_path / "text.txt").write_text("The list is a sequence of items in order")
    (tmp_path / "choices.jsonl").write_text(
        '{"id": "1", "question": "What is a list?", "choices": ["a river", "a type"], "answer": 1}\n'
    )
    with ScriptedServer(OfModel(load_local_model("ralm-tiny")), dialect) as server:
        lm = ["--lm", f"{server.url}#{server.model}", "--index", tmp_path / "index"]
        lm += ["--lm-args", f"tokenizer=ralm-tiny,answers={tmp_path / 'answers.sqlite'}"]
        choose = ["qa", tmp_path / "choices.jsonl", *lm, "--prompt", "chat-choice"]
        refused = [
            (["eval", tmp_path / "text.txt", *lm, "--max-length", 512, "--out", tmp_path / "run"], "a score"),
            ([*choose, "--out", tmp_path / "run"], "a choice"),
            (["generate", "The list", *lm, "--report", tmp_path / "report.html"], "--report"),
            (["generate", "The list", *lm, "--baseline", "--json"], "--baseline"),
        ]
        for command, what in refused:
            failed(ralm(*command), 2, f"does not return log-probabilities of given texts, which {what} needs: use a")
        assert not (tmp_path / "run").exists()
        if dialect.__class__ is ChatsOnly:
            assert "1 answers are no letter" in ralm(*choose, "--join", "answers").out
