"""Contrast in answers, against plain loops, and where it is rejected."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ralm.answering.answerer import Answerer
from ralm.answering.answers import answer_all
from ralm.answering.evaluation import evaluate_choices, evaluate_questions
from ralm.answering.likelihoods import gold_log_probs, likelihoods
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.reading.ensemble import Ensemble
from ralm.reading.mixers import Contrast, PosteriorWeights
from ralm.reading.parts import Parts
from ralm.records import IntArray
from ralm.storage.store import Store
from tests.answering.given import PASSAGES, Given
from tests.fakes import CountingModel, WordTokenizer
from tests.reading.test_contrast import contrasted

PROMPT = open_prompt("replug")
HITS = [(0, 1.0), (1, 0.5), (2, 0.0)]
QUESTION = Question("1", "Who keeps the sheep in the sea?", ("the dog keeps",))
CHOICES = [ChoiceQuestion("a", "Who keeps the sheep?", ("the dog", "a whale"), 0)]


@pytest.fixture
def counting() -> Any:
    return CountingModel(WordTokenizer())


def asked(model: Any, mixer: Any, hits: Any = None) -> QuestionInput:
    builder = PromptBuilder(PROMPT, model.tokenizer, 60, Parts(reader=Ensemble(documents=3), mixer=mixer))
    return builder.build(QUESTION, HITS if hits is None else hits, PASSAGES)


def next_of(model: Any, mixer: Contrast, one: QuestionInput, scores: Sequence[float], text: IntArray) -> Any:
    """The contrasted distribution after the prompts and what is written."""
    *log_probs, plain = [
        model.next_log_probs_V(np.concatenate([prompt.tokens, text])).astype(np.float64)
        for prompt in [*one.prompts.prompt_prefixes[: len(scores)], asked(model, Contrast(), []).prompts[0]]
    ]
    return contrasted(mixer, scores, log_probs, plain)


@pytest.mark.parametrize("count", [1, 3])
def test_answers_are_those_of_the_plain_loop(counting: Any, count: int) -> None:
    mixer, hits = Contrast(alpha=0.7), HITS[:count]
    one, scores = asked(counting, mixer, hits), [score for _, score in hits]
    [(_, answer, _)] = answer_all([one], counting, AnswerOptions(new_tokens=4, stop=("~",)))
    text = np.zeros(0, dtype=np.int64)
    for token in answer.tokens:
        mixed = next_of(counting, mixer, one, scores, text)
        assert mixed[token.token] == pytest.approx(mixed.max(), abs=1e-5)
        assert token.log_prob == pytest.approx(mixed.max(), abs=1e-5)
        assert np.isnan(token.posteriors_K).all()
        text = np.append(text, token.token)
    assert len(text) == 4


@pytest.mark.parametrize(
    ("mixer", "other"),
    [(Contrast(alpha=0.2), Contrast(alpha=0.9)), (PosteriorWeights(eta=0.5), PosteriorWeights(eta=5))],
)
def test_stored_answers_of_another_mixer_are_not_read(counting: Any, tmp_path: Any, mixer: Any, other: Any) -> None:
    """The prompts and the reader's weights are the same."""
    store, log_probs = Store(tmp_path / "answers"), []
    for chosen in (mixer, other, mixer):
        one = asked(counting, chosen)
        [(_, answer, _)] = answer_all([one], counting, AnswerOptions(new_tokens=3, stop=("~",)), store)
        log_probs.append(answer.log_prob)
    assert log_probs[0] == log_probs[2]
    assert log_probs[0] != log_probs[1]


def test_gold_answers_have_no_likelihood_by_contrast_except_without_passages(counting: Any) -> None:
    gold = counting.tokenizer.encode("the dog keeps")
    one, without = asked(counting, Contrast()), asked(counting, Contrast(), [])
    assert gold_log_probs([one, without], PROMPT, counting) == [
        None,
        *gold_log_probs([replace(without, parts=None)], PROMPT, counting),
    ]
    with pytest.raises(UsageError, match="and the likelihood of an answer reads given tokens: choose another mixer"):
        likelihoods([(one, gold)], Scorer(counting))


def test_votes_choices_and_models_that_list_top_tokens_are_rejected(counting: Any) -> None:
    parts, questions = Parts(reader=Ensemble(documents=3), mixer=Contrast()), [Question("1", "who keeps")]
    Answerer(counting, PROMPT, parts=parts)
    with pytest.raises(UsageError, match='and a vote of `join="answers"` reads given tokens'):
        evaluate_questions(questions, counting, PROMPT, parts=parts, options=AnswerOptions(join="answers"))
    with pytest.raises(UsageError, match="and a choice reads given tokens: choose another mixer"):
        evaluate_choices(CHOICES, counting, open_prompt("replug"), source=Given(), parts=parts)
    counting.tier = "chosen"
    with pytest.raises(UsageError, match="needs whole distributions"):
        evaluate_questions(questions, counting, PROMPT, parts=parts)
