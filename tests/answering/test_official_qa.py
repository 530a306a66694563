"""In-Context RALM's question answering against its official evaluation: prompts, answers, exact match, gold answers."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from ralm.answering.answers import AskedQuestion, Asker, answer_all, gold_log_probs, room_for_prompts
from ralm.answering.metrics import exact_match, has_substring
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question, read_questions
from ralm.lm.local.options import ModelOptions
from ralm.lm.named import load_language_model
from ralm.protocols import WritingModel
from ralm.reading.concatenation import Concatenation
from ralm.records import Passage
from tests.shared_data import shared

EVERY = 5
"""Every fifth question of the golden answers, with all numbers of documents."""
SURE = 1e-3
"""With a smaller margin between the best and the second best logit, another order of additions may choose another."""


@pytest.fixture(scope="module")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


def asked_as_published(asker: Asker, question: Question, documents: int) -> tuple[AskedQuestion, list[Passage]]:
    found = question.passages[:documents]
    passages = [Passage(number, one.id, one.title, one.text) for number, one in enumerate(found)]
    return asker.ask(question, [(number, 0.0) for number in range(len(passages))], passages), passages


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nq_oracle", "xquad"])
def test_as_the_official_evaluation(name: str, model: WritingModel) -> None:
    questions = read_questions(shared("golden", "official_qa", f"questions.{name}.jsonl"))
    expected = json.loads(shared("golden", "official_qa", f"expected.ralm-tiny.{name}.json").read_text("utf-8"))
    cases: dict[tuple[str, int], dict[str, Any]] = {
        (questions[case["q"]].id, case["docs"]): case for case in expected["cases"]
    }
    prompt, options = open_prompt("in-context-ralm"), AnswerOptions()
    room = room_for_prompts(model, options)
    assert room == expected["settings"]["input_limit"]
    compared = matched = 0
    for documents in (0, 1, 2, 5):
        reader = Concatenation(documents=max(1, documents))
        asker = Asker(prompt, model.tokenizer, room, reader, semantics="official")
        some = questions[::EVERY]
        asked = [asked_as_published(asker, question, documents)[0] for question in some]
        answers = dict(answer_all(asked, model, options))
        golds = gold_log_probs(asked, prompt, model)
        for number, (question, one) in enumerate(zip(some, asked, strict=True)):
            case = cases[question.id, documents]
            [front] = one.fronts
            ids = " ".join(map(str, front.tokens.tolist()))
            assert hashlib.sha256(ids.encode()).hexdigest() == case["input_sha256"], (question.id, documents)
            assert bool(one.cuts[0]) == case["too_long"]
            assert (golds[number] is None) == (case["answer_logprob"] is None)
            if (gold := golds[number]) is not None:
                assert gold[1] == case["answer_tokens"]
                assert gold[0] == pytest.approx(case["answer_logprob"], abs=1e-3, rel=1e-4)
            if case["margin"] < SURE:
                continue
            text = answers[number].text
            assert text == case["new_text"].split("\n")[0]
            compared += 1
            if not case["too_long"]:  # of a prompt that was cut, the official code loses the answer
                assert text == case["answer"]
                assert exact_match(text, question.answers) is case["em"]
                matched += 1
    assert compared > 70
    assert matched > 50
    assert np.isfinite([gold[0] for gold in golds if gold is not None]).all()


def test_whether_a_prompt_holds_an_answer_is_as_published() -> None:
    prompt = open_prompt("in-context-ralm")
    for name in ("nq_oracle", "xquad"):
        questions = read_questions(shared("golden", "official_qa", f"questions.{name}.jsonl"))
        expected = json.loads(shared("golden", "official_qa", f"expected.ralm-tiny.{name}.json").read_text("utf-8"))
        for case in expected["cases"]:
            question = questions[case["q"]]
            found = question.passages[: case["docs"]]
            passages = [Passage(number, one.id, one.title, one.text) for number, one in enumerate(found)]
            text = str(prompt.text(question.text, passages, several=case["docs"] > 1 if case["docs"] else None))
            assert hashlib.sha256(text.encode()).hexdigest() == case["prompt_sha256"]
            assert has_substring(text, question.answers) is case["has_answer"]
