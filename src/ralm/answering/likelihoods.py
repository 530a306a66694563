"""How likely texts are after the prompts of a question: gold answers, choices, and the question itself as evidence.

    p(y_t | y_<t, q) = sum over prompts d of  weight_d  p(y_t | prompt_d, y_<t)          (REPLUG, Eq. 2)

Letters of shapes: K prompts of a question, E tokens of evidence at their ends, T tokens of a text, N = E + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.answering.prompts import QuestionPrompt, tokens_after
from ralm.answering.sources import QuestionInput
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.ensemble import log_weights_of, mixture, posterior
from ralm.reading.mixing import Evidence
from ralm.records import FloatArray, IntArray, Request
from ralm.validation import scores_given_texts

_NO_TOKENS: Final[IntArray] = np.zeros(0, dtype=np.int64)

GoldScore: TypeAlias = tuple[float, int]
"""The natural log-probability of a gold answer, and its number of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class TextLikelihood:
    """A text after the prompts of a question: the natural log-probability of each token after each prompt (float32,
    K x T), and the logarithm of the weight of each prompt (float64, K; with evidence T x K)."""

    log_probs_KT: FloatArray
    log_weights: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """T."""
        return self.log_probs_KT.shape[1]

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text under the average of all prompts."""
        return float(mixture(self.log_probs_KT, self.log_weights).sum(dtype=np.float64))

    @property
    def shares_K(self) -> NDArray[np.float64]:
        """The share of each prompt in the tokens' probability, averaged over tokens; they sum to 1."""
        return posterior(self.log_probs_KT, self.log_weights).mean(axis=0, dtype=np.float64)


def likelihoods(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[TextLikelihood]:
    """The likelihood of each text (token ids, at least one) after the prompts of its question.

    Raises ModelError if a prompt and its text are longer than the model reads.
    """
    found = []
    for (one, tokens), log_probs_KN in zip(texts, _scored(texts, scorer), strict=True):
        log_weights = log_weights_of(one.prompts)
        if one.mixer is not None:
            log_weights = one.mixer.weights_by_evidence(one.prompts, log_probs_KN, len(tokens))
        found.append(TextLikelihood(log_probs_KN[:, one.evidence :], log_weights))
    return found


def evidence_before_answers(inputs: Sequence[QuestionInput], scorer: Scorer) -> list[Evidence | None]:
    """The evidence for the first token of each answer; None for a question without a mixer that needs it."""
    asked = [(one, _NO_TOKENS) for one in inputs if one.mixer is not None]
    scored = iter(_scored(asked, scorer))
    return [None if one.mixer is None else Evidence(one.mixer, next(scored)) for one in inputs]


def _scored(texts: Sequence[tuple[QuestionInput, IntArray]], scorer: Scorer) -> list[FloatArray]:
    """The log-probabilities (float32, K x N) of the evidence and of each text after the prompts of its question."""
    requests = []
    for one, tokens in texts:
        for prompt in one.prompts:
            asked = len(prompt.tokens) - one.evidence
            targets = np.concatenate([prompt.tokens[asked:], tokens])
            requests.append(Request(document=prompt.tokens[:asked], context=_NO_TOKENS, targets=targets))
    scored = iter(scorer.log_probs(requests))
    return [np.stack([next(scored) for _ in one.prompts]) for one, _ in texts]


def gold_log_probs(
    inputs: Sequence[QuestionInput], prompt: QuestionPrompt, model: LanguageModel, max_length: int | None = None
) -> list[GoldScore | None]:
    """The natural log-probability of each question's first gold answer after its prompts, and its number of tokens.

    None for a question without answers or prompts, for an answer of no tokens, where prompt and answer do not fit into
    `max_length` tokens (None: the model's), and for all if the model returns no log-probabilities of given texts.
    """
    if not scores_given_texts(model):
        return [None] * len(inputs)
    length = (max_length or model.max_length) + 1  # the last token is predicted, not read
    texts: list[tuple[QuestionInput, IntArray] | None] = []
    for one in inputs:
        gold = _NO_TOKENS
        if one.question.answers and one.prompts:
            answer = prompt.format_answer(one.question.answers[0])
            gold = tokens_after(one.prompts[0].tokens, answer, model.tokenizer)
        longest = max((len(prompt.tokens) for prompt in one.prompts), default=length)
        texts.append((one, gold) if 0 < len(gold) <= length - longest else None)
    scored = iter(likelihoods([text for text in texts if text is not None], Scorer.of(model)))
    found = [None if text is None else next(scored) for text in texts]
    return [None if one is None else (one.log_prob, one.tokens) for one in found]
