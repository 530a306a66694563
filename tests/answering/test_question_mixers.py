"""Mixers that look at all that is predicted for a token, in answers and choices, against plain loops."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ralm.answering.answers import answer_all, check_mixer
from ralm.answering.evaluation import evaluate_choices
from ralm.answering.likelihoods import gold_log_probs
from ralm.answering.options import AnswerOptions, ChoiceOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.reading.contrast import Contrast
from ralm.reading.ensemble import Ensemble
from ralm.records import FloatArray, IntArray, ScoringSequence
from ralm.storage.store import Store
from tests.answering.given import PASSAGES, Given
from tests.fakes import CountingModel, WordTokenizer
from tests.reading.test_contrast import MIXERS, plainly
from tests.reference import ensemble

PROMPT = open_prompt("replug")
HITS = [(0, 1.0), (1, 0.5), (2, 0.0)]
QUESTION = Question("1", "Who keeps the sheep in the sea?", ("the dog keeps",))
CHOICES = [
    ChoiceQuestion("a", "Who keeps the sheep?", ("the dog", "a whale"), 0),
    ChoiceQuestion("b", "What is sold?", ("the sea", "wool", "bread"), 1),
]


class Distributions(CountingModel):
    """Also gives whole distributions."""

    def distributions(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        return [np.stack([self.next_log_probs_V(one.tokens_N[:place]) for place in one.targets_P]) for one in sequences]


@pytest.fixture
def counting() -> Any:
    return Distributions(WordTokenizer())


def asked(model: Any, mixer: Any, hits: Any = None) -> QuestionInput:
    builder = PromptBuilder(PROMPT, model.tokenizer, 60, Ensemble(documents=3, mixer=mixer))
    return builder.build(QUESTION, HITS if hits is None else hits, PASSAGES)


def next_of(model: Any, mixer: Any, one: QuestionInput, scores: Sequence[float], written: IntArray) -> Any:
    """The mixed distribution after the prompts and what is written, and the weights if it is an average."""
    read = [
        model.next_log_probs_V(np.concatenate([prompt.tokens, written])).astype(np.float64)
        for prompt in [*one.prompts[: len(scores)], asked(model, Contrast(), []).prompts[0]]
    ]
    return plainly(mixer, ensemble.weights(scores), read[:-1], read[-1])


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("count", [1, 3])
def test_gold_answers_and_answers_are_those_of_the_plain_loop(counting: Any, name: str, count: int) -> None:
    mixer, hits = MIXERS[name], HITS[:count]
    one, scores = asked(counting, mixer, hits), [score for _, score in hits]
    gold = counting.tokenizer.encode("the dog keeps")
    [found] = gold_log_probs([one], PROMPT, counting)
    expected = [next_of(counting, mixer, one, scores, gold[:t])[0][token] for t, token in enumerate(gold)]
    assert found is not None
    assert found == pytest.approx((sum(expected), len(gold)), abs=1e-5)
    [(_, answer)] = answer_all([one], counting, AnswerOptions(new_tokens=4, stop=("~",)))
    written = np.zeros(0, dtype=np.int64)
    for token in answer.tokens:
        mixed, weights = next_of(counting, mixer, one, scores, written)
        assert mixed[token.token] == pytest.approx(mixed.max(), abs=1e-5)
        assert token.log_prob == pytest.approx(mixed.max(), abs=1e-5)
        assert np.isnan(token.posteriors_K).all() == (weights is None)
        written = np.append(written, token.token)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("score", ["letter", "text"])
def test_choices_are_those_of_the_plain_loop(counting: Any, name: str, score: Any) -> None:
    mixer, prompt = MIXERS[name], open_prompt("replug-choice" if score == "letter" else "replug")
    reader = Ensemble(documents=3, mixer=mixer)
    found = evaluate_choices(
        CHOICES, counting, prompt, source=Given(), reader=reader, options=ChoiceOptions(score=score)
    )
    for row in found.rows:
        texts = [
            counting.tokenizer.encode(str(prompt.text(row.question.text, passages, choices=row.question.choices)))
            for passages in [*([one] for one in row.passages), []]
        ]
        assert row.choice.log_probs_C is not None
        for place, own in enumerate(row.question.choices):
            tokens, total = counting.tokenizer.encode("ABC"[place] if score == "letter" else own), 0.0
            for t, token in enumerate(tokens):
                *read, plain = (
                    counting.next_log_probs_V(np.concatenate([text, tokens[:t]])).astype(np.float64) for text in texts
                )
                total += plainly(mixer, ensemble.weights([3.0, 2.0, 1.0]), read, plain)[0][token]
            assert row.choice.log_probs_C[place] == pytest.approx(total, abs=1e-5)


def test_stored_answers_of_another_alpha_are_not_read(counting: Any, tmp_path: Any) -> None:
    store, scores = Store(tmp_path / "answers"), Store(tmp_path / "scores")
    found = []
    for alpha in (0.2, 0.9, 0.2):
        one = asked(counting, Contrast(alpha=alpha))
        [(_, answer)] = answer_all([one], counting, AnswerOptions(new_tokens=3, stop=("~",)), store)
        found.append((answer.log_prob, gold_log_probs([one], PROMPT, Scorer(counting, scores, progress=False))))
    assert found[0] == found[2]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_a_question_without_passages_is_read_alone(counting: Any) -> None:
    contrasted = asked(counting, Contrast(), [])
    assert gold_log_probs([contrasted], PROMPT, counting) == gold_log_probs(
        [replace(contrasted, mixer=None)], PROMPT, counting
    )


def test_votes_and_models_that_give_no_distributions_are_rejected(counting: Any) -> None:
    reader, options = Ensemble(documents=3, mixer=Contrast()), AnswerOptions()
    check_mixer(reader, counting, options)
    with pytest.raises(UsageError, match='another mixer for answers of `join="answers"`'):
        check_mixer(reader, counting, replace(options, join="answers"))
    counting.tier = "chosen"
    with pytest.raises(UsageError, match="needs whole distributions"):
        check_mixer(reader, counting, options)
    plain: Any = CountingModel(WordTokenizer())
    with pytest.raises(UsageError, match="needs whole distributions"):
        evaluate_choices(CHOICES, plain, open_prompt("replug"), source=Given(), reader=reader)
