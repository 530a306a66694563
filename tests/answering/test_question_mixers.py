"""Mixers in answers against plain loops: those that weigh passages by the tokens of the question, and contrast."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.answering.answerer import Answerer
from ralm.answering.answers import Answer, AnswerStreams, answer_all, gold_log_probs, likelihoods
from ralm.answering.evaluation import evaluate_choices, evaluate_questions
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt, open_prompt
from ralm.answering.questions import ChoiceQuestion, Question
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import Documents
from ralm.reading.mixture import Contrast, PosteriorWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.records import IntArray, PromptPrefix, Readings
from ralm.storage.store import Store
from tests.answering.given import PASSAGES, Given
from tests.fakes import CountingModel, WordTokenizer, passages_of
from tests.reading.test_mixers import contrasted
from tests.reference import ensemble, mixers

FORM = "use {documents} ask {question} so"
PROMPT = QuestionPrompt(closed="now ask {question} so", one=FORM, several=FORM, document="{text}", between=" ")
HOW: Final[dict[str, Any]] = {"eta": 0.8, "decay": 4.0}
WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=5)


def model_of_words() -> Any:
    return CountingModel(WordTokenizer([*"abcdefgh", "use", "ask", "so", "now"]), vocabulary=16)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Any, QuestionInput, list[list[int]], list[float], int]:
    """A model, a question, its prompts written out, their weights before any evidence, and the length of the evidence.
    Passages may end alike, and like the question."""
    words, answer = draw(WORDS), draw(WORDS.filter(bool))
    ends = st.sampled_from([[], ["so"], [*words[-2:], "so"], ["ask", *words, "so"]])
    texts = [text + draw(ends) for text in draw(st.lists(WORDS, min_size=2, max_size=3))]
    model, scores = model_of_words(), [1.0, 0.5, -0.5][: len(texts)]
    evidence = draw(st.integers(1, 12))
    mixer = PosteriorWeights(evidence=evidence, **HOW)
    builder = PromptBuilder(PROMPT, model.tokenizer, 60, Parts(reader=Ensemble(documents=3), mixer=mixer))
    question = Question("1", " ".join(words), (" ".join(answer),))
    one = builder.build(question, [*enumerate(scores)], passages_of(*map(" ".join, texts)))
    written = [f"use {' '.join(text)} ask {' '.join(words)} so" for text in texts]
    prompts = [model.tokenizer.encode(text).tolist() for text in written]
    start = ensemble.weights(scores)
    assert [prompt.tokens.tolist() for prompt in one.prompts] == prompts
    return model, one, prompts, start, evidence


def next_log_probs(model: Any) -> Any:
    return lambda read: model.next_log_probs_V(np.array(read)).astype(np.float64)


@given(asked())
def test_gold_answers_are_as_likely_as_in_the_plain_loop(made: Any) -> None:
    model, one, prompts, start, evidence = made
    shared = 2 + len(one.question.text.split())
    gold = model.tokenizer.encode(one.question.answers[0]).tolist()
    totals, _ = mixers.score(prompts, shared, gold, start, next_log_probs(model), evidence=evidence, **HOW)
    [found] = gold_log_probs([one], PROMPT, model)
    assert found is not None
    assert found == pytest.approx((sum(totals), len(gold)), abs=1e-5)


@given(asked(), st.sampled_from(["together", "drawn"]))
def test_answers_are_those_of_the_plain_loop(made: Any, how: str) -> None:
    model, one, prompts, start, evidence = made
    shared = 2 + len(one.question.text.split())
    options = AnswerOptions(new_tokens=5, stop=("?",))
    if how == "together":
        [(_, answer, _)] = answer_all([one], model, options)
    else:
        drawn: AnswerStreams[Answer] = AnswerStreams(one, model, options, [0, 0], lambda answer: answer)
        answer = drawn.with_sources(1)
        assert drawn.with_sources(0).log_prob == answer.log_prob
    picked = iter([token.token for token in answer.tokens])

    def same(mixed: np.ndarray) -> int:
        token = next(picked)
        assert mixed[token] >= mixed.max() * (1 - 1e-5)
        return token

    expected = mixers.generate(
        prompts[0][-shared:],
        {number: prompt[:-shared] for number, prompt in enumerate(prompts)},
        lambda _: [*enumerate(start)],
        next_log_probs(model),
        same,
        evidence=evidence,
        new_tokens=len(answer.tokens),
        stride=5,
        max_length=64,
        **HOW,
    )
    assert answer.tokens
    for token, (_, log_prob, shares) in zip(answer.tokens, expected, strict=True):
        assert token.log_prob == pytest.approx(log_prob, abs=1e-5)
        np.testing.assert_allclose(token.posteriors_K, shares, atol=1e-5)


@given(asked())
def test_answers_of_each_passage_count_with_the_weights_before_the_first_token(made: Any) -> None:
    model, one, prompts, start, evidence = made
    shared = 2 + len(one.question.text.split())
    [(_, found, _)] = answer_all([one], model, AnswerOptions(new_tokens=2, join="answers", stop=("?",)))
    last = min(evidence, shared)
    log_probs = [
        [float(next_log_probs(model)(text[:s])[text[s]]) for s in range(len(text) - last, len(text))] + [0.0]
        for text in prompts
    ]
    [weights] = mixers.posterior(start, log_probs, last, evidence=evidence, **HOW)
    sums: dict[str, float] = {}
    for prompt, weight in zip(one.prompts, weights, strict=True):
        alone = replace(one, prompts=Readings.single(PromptPrefix(prompt.tokens)), parts=None, evidence=0)
        [(_, answer, _)] = answer_all([alone], model, AnswerOptions(new_tokens=2, stop=("?",)))
        text = answer.text.strip()
        sums[text] = sums.get(text, 0) + weight * np.exp(answer.log_prob / len(answer.tokens))
    assert sums[found.text] == pytest.approx(max(sums.values()), rel=1e-5)


READER = Parts(reader=Ensemble(documents=3), mixer=PosteriorWeights(evidence=12, **HOW))
CHOICES = [
    ChoiceQuestion("a", "Who keeps the sheep?", ("the dog", "a whale"), 0),
    ChoiceQuestion("b", "What is sold?", ("the sea", "wool", "bread"), 1),
]


def test_choices_are_those_of_the_plain_loop() -> None:
    model: Any = CountingModel(WordTokenizer())
    prompt = open_prompt("replug-choice")
    for row in evaluate_choices(CHOICES, model, prompt, source=Given(), parts=READER).rows:
        listed = " ".join(f"{letter}. {one}" for letter, one in zip("ABC", row.question.choices, strict=False))
        rest = f"Question: {row.question.text} {listed} Answer:"
        texts = [model.tokenizer.encode(f"Knowledge: {one.text} {rest}").tolist() for one in row.passages]
        start = ensemble.weights([3.0, 2.0, 1.0])
        for place in range(len(row.question.choices)):
            tokens = model.tokenizer.encode("ABC"[place]).tolist()
            totals, shares = mixers.score(
                texts, len(rest.split()), tokens, start, next_log_probs(model), evidence=12, **HOW
            )
            assert row.judged.log_probs_C is not None
            assert row.judged.log_probs_C[place] == pytest.approx(sum(totals), abs=1e-5)
            if place == row.judged.chosen:
                found = [row.judged.shares[one.number] for one in row.passages]
                np.testing.assert_allclose(found, np.mean(shares, axis=0), atol=1e-5)


class OwnEnds:
    """Appends other tokens to each prompt."""

    hits: ClassVar[int] = 2

    config: ClassVar[Any] = {"reader": "own"}

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        return [PromptPrefix(np.append(documents[n], n + 1), (n,), np.log(1 / len(hits))) for n, _ in hits]


def test_a_question_that_is_no_evidence() -> None:
    turned = replace(PROMPT, one="ask {question} use {documents} so", several="ask {question} use {documents} so")
    model = model_of_words()
    with pytest.raises(UsageError, match="the prompt own has the question before the passages, and the mixer weighs"):
        PromptBuilder(turned, model.tokenizer, 40, Parts(reader=Ensemble(), mixer=PosteriorWeights()))
    builder = PromptBuilder(PROMPT, model.tokenizer, 40, Parts(reader=OwnEnds(), mixer=PosteriorWeights()))
    question, passages = Question("7", "a b"), passages_of("c", "d")
    with pytest.raises(UsageError, match="the prompts of question 7 end with different tokens, and the mixer"):
        builder.build(question, [(0, 0.0), (1, 0.0)], passages)
    assert builder.build(question, [(0, 0.0)], passages).parts is None, "one passage has the whole weight"


def test_models_without_evidence_are_rejected_before_a_question_is_asked() -> None:
    model, listed = model_of_words(), AnswerOptions(join="answers")
    model.tier = "text"
    for call in (
        lambda: Answerer(model, PROMPT, Given(), parts=READER),
        lambda: evaluate_questions([Question("a", "a")], model, PROMPT, source=Given(), parts=READER, options=listed),
        lambda: evaluate_choices(CHOICES, model, open_prompt("replug-choice"), source=Given(), parts=READER),
    ):
        with pytest.raises(
            UsageError, match="counting does not return log-probabilities of given texts, which (the mixer|a choice)"
        ):
            call()
    model.tier = "top_k"
    with pytest.raises(UsageError, match="gives its top next tokens alone, and the mixer PosteriorWeights needs"):
        Answerer(model, PROMPT, Given(), parts=READER)


REPLUG = open_prompt("replug")
HITS = [(0, 1.0), (1, 0.5), (2, 0.0)]
QUESTION = Question("1", "Who keeps the sheep in the sea?", ("the dog keeps",))


@pytest.fixture
def counting() -> Any:
    return CountingModel(WordTokenizer())


def contrasted_input(model: Any, mixer: Any, hits: Any = None) -> QuestionInput:
    builder = PromptBuilder(REPLUG, model.tokenizer, 60, Parts(reader=Ensemble(documents=3), mixer=mixer))
    return builder.build(QUESTION, HITS if hits is None else hits, PASSAGES)


def next_of(model: Any, mixer: Contrast, one: QuestionInput, scores: Sequence[float], text: IntArray) -> Any:
    """The contrasted distribution after the prompts and what is written."""
    *log_probs, plain = [
        model.next_log_probs_V(np.concatenate([prompt.tokens, text])).astype(np.float64)
        for prompt in [*one.prompts.prompt_prefixes[: len(scores)], contrasted_input(model, Contrast(), []).prompts[0]]
    ]
    return contrasted(mixer, scores, log_probs, plain)


@pytest.mark.parametrize("count", [1, 3])
def test_contrasted_answers_are_those_of_the_plain_loop(counting: Any, count: int) -> None:
    mixer, hits = Contrast(alpha=0.7), HITS[:count]
    one, scores = contrasted_input(counting, mixer, hits), [score for _, score in hits]
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
        one = contrasted_input(counting, chosen)
        [(_, answer, _)] = answer_all([one], counting, AnswerOptions(new_tokens=3, stop=("~",)), store)
        log_probs.append(answer.log_prob)
    assert log_probs[0] == log_probs[2]
    assert log_probs[0] != log_probs[1]


def test_gold_answers_have_no_likelihood_by_contrast_except_without_passages(counting: Any) -> None:
    gold = counting.tokenizer.encode("the dog keeps")
    one, without = contrasted_input(counting, Contrast()), contrasted_input(counting, Contrast(), [])
    assert gold_log_probs([one, without], REPLUG, counting) == [
        None,
        *gold_log_probs([replace(without, parts=None)], REPLUG, counting),
    ]
    with pytest.raises(UsageError, match="and the likelihood of an answer reads given tokens: choose another mixer"):
        likelihoods([(one, gold)], Scorer(counting))


def test_votes_choices_and_models_that_list_top_tokens_are_rejected(counting: Any) -> None:
    parts, questions = Parts(reader=Ensemble(documents=3), mixer=Contrast()), [Question("1", "who keeps")]
    Answerer(counting, REPLUG, parts=parts)
    with pytest.raises(UsageError, match='and a vote of `join="answers"` reads given tokens'):
        evaluate_questions(questions, counting, REPLUG, parts=parts, options=AnswerOptions(join="answers"))
    with pytest.raises(UsageError, match="and a choice reads given tokens: choose another mixer"):
        evaluate_choices(CHOICES, counting, open_prompt("replug-choice"), source=Given(), parts=parts)
    counting.tier = "chosen"
    with pytest.raises(UsageError, match="needs whole distributions"):
        evaluate_questions(questions, counting, REPLUG, parts=parts)
