"""How likely texts are after the prompts of a question: gold answers, choices, and the question itself as evidence.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

Letters of shapes: K prompts of a question, E tokens of evidence at their ends, T tokens of a text, N = E + T.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ralm.answering.prompts import QuestionPrompt, tokens_after
from ralm.answering.sources import QuestionInput
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.parts import IN_CONTEXT, Evidence
from ralm.reading.score import mixed
from ralm.records import FloatArray, IntArray, Readings, Request
from ralm.validation import scores_given_texts

NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)

GoldScore: TypeAlias = tuple[float, int]
"""The natural log-probability of a gold answer, and its number of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class TextLikelihood:
    """A text after the prompts of a question: the natural log-probability of each token (float32, T), mixed from the
    predictions after all prompts, and the share of each prompt in it (float32, T x K)."""

    log_probs_T: FloatArray
    shares_TK: FloatArray

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text."""
        return float(self.log_probs_T.sum(dtype=np.float64))

    def shares(self, prompts: Readings) -> dict[int, float]:
        """Return the share of each passage in the tokens' probability, averaged over tokens."""
        return shares_by_passage(prompts, self.shares_TK.mean(axis=0, dtype=np.float64).tolist())


def shares_by_passage(prompts: Readings, shares_K: Sequence[float]) -> dict[int, float]:
    """Return the share of each passage, largest first, from that of each prompt."""
    shares = defaultdict[int, float](float)
    for prompt, share in zip(prompts, shares_K, strict=True):
        if share > 0:
            shares[prompt.passage] += share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def likelihoods(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[TextLikelihood]:
    """The likelihood of each text (token ids, at least one) after the prompts of its question; ModelError if they are
    too long together, UsageError if a mixer is for generation."""
    for one, _ in texts:
        (one.parts or IN_CONTEXT).require_average("the likelihood of an answer")
    return [
        TextLikelihood(*mixed(one.parts or IN_CONTEXT, one.prompts, log_probs_KN, len(tokens)))
        for (one, tokens), log_probs_KN in zip(texts, scored_texts(texts, scorer), strict=True)
    ]


def evidence_before_answers(inputs: Sequence[QuestionInput], scorer: Scorer) -> list[Evidence | None]:
    """The evidence for the first token of each answer; None for a question without a mixer that needs it."""
    scored = iter(scored_texts([(one, NO_TOKENS) for one in inputs if one.evidence], scorer))
    found: list[Evidence | None] = []
    for one in inputs:
        nothing = np.zeros((len(one.prompts), 0), dtype=np.float32)
        found.append(None if one.parts is None else Evidence(one.parts, next(scored) if one.evidence else nothing))
    return found


def scored_texts(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[FloatArray]:
    """The log-probabilities (float32, K x N) of the evidence before each text (token ids), and of the text, after the
    prompts of its question."""
    requests = [
        Request(document, NO_TOKENS, np.concatenate([evidence, tokens]))
        for one, tokens in texts
        for prompt in one.prompts
        for document, evidence in [np.split(prompt.tokens, [len(prompt.tokens) - one.evidence])]
    ]
    scored = iter(scorer.log_probs(requests))
    return [np.stack([next(scored) for _ in one.prompts]) for one, _ in texts]


def gold_log_probs(
    inputs: Sequence[QuestionInput], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """The natural log-probability of each question's first gold answer after its prompts, and its number of tokens;
    None without answers or prompts, where both do not fit into `max_length` tokens (None: the model's), where the mixer
    is for generation, and for all if the model does not score given texts."""
    if not scores_given_texts(model):
        return [None] * len(inputs)
    length = (max_length or model.max_length) + 1  # the last token is predicted, not read
    texts: dict[int, tuple[QuestionInput, IntArray]] = {}
    for place, one in enumerate(inputs):
        if one.question.answers and one.prompts and not (one.parts is not None and one.parts.contrasts):
            answer = prompt.format_answer(one.question.answers[0])
            gold = tokens_after(one.prompts[0].tokens, answer, model.tokenizer)
            if 0 < len(gold) <= length - max(len(each.tokens) for each in one.prompts):
                texts[place] = one, gold
    found = dict(zip(texts, likelihoods([*texts.values()], Scorer.of(model)), strict=True))
    return [(found[place].log_prob, len(texts[place][1])) if place in found else None for place in range(len(inputs))]
