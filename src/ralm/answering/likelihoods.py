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
    """The log-probability of each token (float32, T) of a text after prompts, and each prompt's share (T x K)."""

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
    """Return the likelihood of each text, at least a token, after its prompts; ModelError if they are too long."""
    for asked, _ in texts:
        (asked.parts or IN_CONTEXT).require_average("the likelihood of an answer")
    return [
        TextLikelihood(*mixed(asked.parts or IN_CONTEXT, asked.prompts, log_probs_KN, len(tokens)))
        for (asked, tokens), log_probs_KN in zip(texts, scored_texts(texts, scorer), strict=True)
    ]


def evidence_before_answers(inputs: Sequence[QuestionInput], scorer: Scorer) -> list[Evidence | None]:
    """Return the evidence for the first token of each answer; None for a question whose mixer needs none."""
    scored = iter(scored_texts([(asked, NO_TOKENS) for asked in inputs if asked.evidence], scorer))
    evidence: list[Evidence | None] = []
    for asked in inputs:
        log_probs_KE = next(scored) if asked.evidence else np.zeros((len(asked.prompts), 0), dtype=np.float32)
        evidence.append(None if asked.parts is None else Evidence(asked.parts, log_probs_KE))
    return evidence


def scored_texts(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[FloatArray]:
    """Return log-probabilities (float32, K x N) of the evidence before each text, and of the text, after prompts."""
    requests = [
        Request(document, NO_TOKENS, np.concatenate([evidence, tokens]))
        for asked, tokens in texts
        for prompt in asked.prompts
        for document, evidence in [np.split(prompt.tokens, [len(prompt.tokens) - asked.evidence])]
    ]
    scored = iter(scorer.log_probs(requests))
    return [np.stack([next(scored) for _ in asked.prompts]) for asked, _ in texts]


def gold_log_probs(
    inputs: Sequence[QuestionInput], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """Return the log-probability of each question's first gold answer and its tokens; None if it cannot be scored."""
    if not scores_given_texts(model):
        return [None] * len(inputs)
    length = (max_length or model.max_length) + 1  # the last token is predicted, not read
    texts: dict[int, tuple[QuestionInput, IntArray]] = {}
    for place, asked in enumerate(inputs):
        if asked.question.answers and asked.prompts and not (asked.parts is not None and asked.parts.contrasts):
            answer = prompt.format_answer(asked.question.answers[0])
            gold = tokens_after(asked.prompts[0].tokens, answer, model.tokenizer)
            if 0 < len(gold) <= length - max(len(each.tokens) for each in asked.prompts):
                texts[place] = asked, gold
    scores = dict(zip(texts, likelihoods([*texts.values()], Scorer.of(model)), strict=True))
    return [(scores[place].log_prob, len(texts[place][1])) if place in scores else None for place in range(len(inputs))]
