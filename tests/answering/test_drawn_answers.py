"""Answers that are drawn: by the shares of many draws, equal for equal prompts, cut at a stop string."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from pydantic import JsonValue

from ralm.answering.answers import Answer, answer_all
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder, QuestionInput
from ralm.errors import UsageError
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.records import FloatArray, IntArray, NextTokens, Passage, ScoringSequence
from ralm.storage.store import Store
from tests.lm.test_own_model import Bytes

LETTERS: Final = b"abc;"
PASSAGES = [
    Passage(number, str(number), "", text) for number, text in enumerate(["Hill.", "The sea.", "The old town."])
]
QUESTIONS = [Question(str(number), f"{word}?", ("ab",)) for number, word in enumerate(["who", "where", "when it"])]
PROMPT = open_prompt("replug")
DRAWN = AnswerOptions(new_tokens=2, temperature=1.3, top_k=3, stop=("-",))


class Letters:
    """Writes four letters; how likely each is, the length of the text and its last byte decide."""

    name, max_length, tokenizer, tier, end_tokens = "letters", 400, Bytes(), "all", frozenset[int]()
    config: dict[str, JsonValue] = {"name": "letters"}  # noqa: RUF012

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        return NextTokens(np.stack([self.log_probs(text) for text in texts]))

    def continuations(self) -> "Letters":
        return Letters()

    def score(self, passes: Sequence[ScoringSequence]) -> list[FloatArray]:
        return [
            np.array([self.log_probs(one.tokens_N[:at])[one.tokens_N[at]] for at in one.targets_P]) for one in passes
        ]

    def log_probs(self, text: IntArray) -> FloatArray:
        weights_V = np.full(128, 1e-9)
        weights_V[list(LETTERS)] = 1 + (np.arange(4) * int(text[-1]) + len(text)) % 5
        log_probs_V: FloatArray = np.log(weights_V / weights_V.sum()).astype(np.float32)
        return log_probs_V


def asked(documents: int = 3, questions: Sequence[Question] = QUESTIONS) -> list[QuestionInput]:
    builder = PromptBuilder(PROMPT, Bytes(), 300, Parts(reader=Ensemble(documents=documents)))
    hits = [(number, 1.0 - number) for number in range(3)]
    return [builder.build(one, hits, PASSAGES) for one in questions]


def answers(some: Sequence[QuestionInput], options: AnswerOptions, store: Store | None = None) -> list[Answer]:
    model: Any = Letters()
    return [answer for _, answer, _ in answer_all(some, model, options, store)]


def test_draws_of_an_ensemble_have_the_shares_of_the_mixture() -> None:
    """Prompts of different lengths; each token from the mixture, after temperature and among the likeliest three."""
    [one] = asked(questions=QUESTIONS[:1])
    assert len({len(prompt_prefix.tokens) for prompt_prefix in one.prompts}) == 3
    model, weights_K = Letters(), np.exp(one.prompts.log_weights_K)

    def drawn_from(written: bytes) -> dict[int, float]:
        texts = [
            np.concatenate([prompt_prefix.tokens, np.array([*written], dtype=np.int64)])
            for prompt_prefix in one.prompts
        ]
        mixed_V = sum(w * np.exp(model.log_probs(text)) for w, text in zip(weights_K, texts, strict=True))
        likeliest = sorted(LETTERS, key=lambda letter: -mixed_V[letter])[:3]
        powers = {letter: mixed_V[letter] ** (1 / 1.3) for letter in likeliest}
        return {letter: power / sum(powers.values()) for letter, power in powers.items()}

    expected = {
        chr(first) + chr(second): share * other
        for first, share in drawn_from(b"").items()
        for second, other in drawn_from(bytes([first])).items()
    }
    draws = 1500
    found = Counter(answers([one], replace(DRAWN, seed=seed))[0].text for seed in range(draws))
    assert set(found) == set(expected)
    assert {text: count / draws for text, count in found.items()} == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("join", ["tokens", "answers"])
def test_an_answer_does_not_depend_on_the_others(join: Any) -> None:
    options = AnswerOptions(new_tokens=12, temperature=1.0, stop=("-",), join=join, seed=5)
    together = [answer.text for answer in answers([*asked(), *asked(), *asked()[::-1]], options)]
    alone = [answers([one], options)[0].text for one in asked()]
    assert together == [*alone, *alone, *alone[::-1]]
    assert len(set(alone)) == 3, "other prompts draw otherwise"
    assert alone != [answer.text for answer in answers(asked(), replace(options, seed=6))]
    scored = answer_all(asked(), Letters(), options, prompt=PROMPT)  # type: ignore[arg-type]
    assert [answer.text for _, answer, _ in scored] == alone


def test_other_prompts_draw_independently() -> None:
    """The letters are as likely behind one question as behind the other: only the draws can differ."""
    alike = [Question("1", "who is it?", ("ab",)), Question("2", "how is it?", ("ab",))]
    options = AnswerOptions(new_tokens=12, temperature=1.0, stop=("-",))
    one, other = answers(asked(questions=alike), options)
    assert one.text != other.text
    greedy, same = answers(asked(questions=alike), replace(options, temperature=0.0))
    assert greedy.text == same.text


def test_the_equal_prompts_of_one_question_answer_alike() -> None:
    """Two passages with the same text make equal prompts; a third answers for itself."""
    same = [Passage(0, "0", "", "Hill."), Passage(1, "1", "", "Hill."), Passage(2, "2", "", "Hull.")]
    one = PromptBuilder(PROMPT, Bytes(), 300, Parts(reader=Ensemble(documents=3), mixer=UniformWeights())).build(
        QUESTIONS[0], [(number, 0.0) for number in range(3)], same
    )
    options = AnswerOptions(new_tokens=12, temperature=1.0, stop=("-",), join="answers")
    [answer] = answers([one], options)
    assert set(answer.shares) == {0, 1}


def test_a_stop_string_of_several_tokens_ends_a_drawn_answer() -> None:
    """Every letter is a token, so that every stop string but the shortest is several."""
    options = AnswerOptions(new_tokens=40, temperature=1.0, stop=("-",))
    for seed in range(5):
        whole = [answer.text for answer in answers(asked(), replace(options, seed=seed))]
        for stop in ("a", "ab", ";cb", "bca;"):
            stopped = answers(asked(), replace(options, seed=seed, stop=(stop, "no")))
            assert [answer.text for answer in stopped] == [text.split(stop)[0] for text in whole]
            assert [len(answer.tokens) for answer in stopped] == [len(text.split(stop)[0]) for text in whole]


def test_a_store_keeps_draws_apart(tmp_path: Path) -> None:
    greedy = AnswerOptions(new_tokens=12, stop=("-",))
    ways = [greedy, *(replace(greedy, temperature=1.0, seed=seed) for seed in (0, 1)), replace(greedy, temperature=0.7)]
    ways += [replace(ways[1], top_k=2), replace(ways[1], top_p=0.6)]
    expected = [[answer.text for answer in answers(asked(), options)] for options in ways]
    assert len({tuple(texts) for texts in expected}) == len(ways)
    with Store(tmp_path / "store") as store:
        for _ in range(2):
            for options, texts in zip(ways, expected, strict=True):
                assert [answer.text for answer in answers(asked(), options, store)] == texts
        assert store.count() == len(ways) * len(QUESTIONS)


def test_draws_that_are_refused() -> None:
    with pytest.raises(UsageError, match="`temperature` must be 0"):
        AnswerOptions(temperature=1e-9)
    with pytest.raises(UsageError, match="`top_p` must be"):
        AnswerOptions(temperature=1.0, top_p=0.0)
