"""What is said of figures that are known by bounds only, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ralm.answering.answers import Answer
from ralm.answering.evaluation import AnsweredQuestion, AnswerEvaluation, JudgedAnswer
from ralm.answering.metrics import ANSWER_MEASURES
from ralm.answering.prompts import Cut
from ralm.answering.questions import Question
from ralm.cli.results import print_measures
from ralm.evaluation.perplexity import Measures, Reading, change_of
from ralm.lm.registry import load_local_model
from ralm.reading.pieces import GeneratedText, GeneratedToken
from ralm.records import NO_PASSAGE, Provenance, ScoredTokens
from ralm.retrieval.build import build_index
from tests.api.backings import OfModel
from tests.api.dialects import Dialect, TextOnly
from tests.api.scripted_server import ScriptedServer
from tests.api.served import ChatsOnly
from tests.cli.program import failed, ralm
from tests.fakes import passages_of


def reading_of(log_probs: list[float]) -> Reading:
    count = len(log_probs)
    places_T, log_probs_T = np.arange(count), np.array(log_probs, dtype=np.float32)
    nothing = np.full((count, 1), NO_PASSAGE), np.ones((count, 1), dtype=np.float32)
    scored = ScoredTokens(places_T, places_T, log_probs_T, Provenance(*nothing))
    measures = Measures(tokens=count, words=count, bytes=count, nll=-float(log_probs_T.sum()))
    return Reading(scored=scored, measures=measures, seconds=1.0, unit="stretches", unit_T=places_T)


def answered(*tokens: GeneratedToken) -> AnswerEvaluation[Question, JudgedAnswer]:
    answer = Answer("it", [GeneratedText("it", 0, tokens)], {})
    judged = JudgedAnswer(answer=answer, cut=Cut(), measures=dict.fromkeys(ANSWER_MEASURES, 1.0))
    question = Question("1", "what?", ("it",))
    row = AnsweredQuestion(question=question, passages=(), judged=judged)
    return AnswerEvaluation(rows=[row], documents=0, seconds=1.0)


def token(*, bound_width: float = 0.0, certified: bool = True) -> GeneratedToken:
    shares_K = np.full(2, 0.5, dtype=np.float32)
    return GeneratedToken(7, -1.0, np.array([0, 1]), shares_K, bound_width, certified)


def test_the_share_of_certified_tokens_is_told_also_if_all_log_probabilities_are_known() -> None:
    """Every document lists the token, and another one may be likelier all the same."""
    assert answered(token(), token(certified=False)).summary()["certified"] == 0.5
    assert answered(token(bound_width=0.1)).summary()["certified"] == 1
    assert "certified" not in answered(token()).summary()


@pytest.mark.parametrize("dialect", [ChatsOnly(), TextOnly()], ids=str)
def test_what_needs_scores_is_refused_before_anything_is_written(dialect: Dialect, tmp_path: Path) -> None:
    build_index(passages_of("The list is a river", "A tuple"), tmp_path / "index")
    with ScriptedServer(OfModel(load_local_model("ralm-tiny")), dialect) as server:
        command = ["generate", "The list", "--lm", f"{server.url}#{server.model}", "--lm-args", "tokenizer=ralm-tiny"]
        command += ["--index", str(tmp_path / "index"), "--lm-args", f"answers={tmp_path / 'answers.sqlite'}"]
        failed(ralm(*command, "--report", tmp_path / "report.html"), 2, "which --report needs: leave it out.")
        sent = len(server.posts)
        failed(ralm(*command, "--baseline", "--json"), 2, "which --baseline needs: leave it out.")
        assert len(server.posts) <= sent + 2


def test_no_gain_is_told_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    known = reading_of([-2.0] * 10)
    bounded = replace(reading_of([-3.0] * 10), upper=reading_of([-1.0] * 5 + [-3.0] * 5))
    print_measures({"no retrieval": known, "with passages": bounded}, {})
    shown = capsys.readouterr().out
    assert "%" not in shown.partition("with passages:")[0]
    assert "with passages: 50.0% of the tokens are known" in shown
    lower = reading_of([math.log(2) - 2.0] * 10)
    print_measures({"no retrieval": known, "with passages": lower}, {"with passages": change_of(lower, known)})
    assert "-50.0%" in capsys.readouterr().out
