"""Metrics of answers: exact match and F1 as in SQuAD, the tokens of DPR, and whether a text holds an answer.

`ANSWER_MEASURES` at the end are those of every answer; `has_answer` looks at the passages of a question.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import regex

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_DPR_TOKEN: Final = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def normalised(text: str) -> str:
    """Return SQuAD's normalised text: lower case, no ASCII punctuation, articles as spaces, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", without_punctuation(text)).split())


def without_punctuation(text: str) -> str:
    """Return a text in lower case, ASCII punctuation removed, white space collapsed."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def dpr_tokens(text: str) -> list[str]:
    """Return DPR's tokens: runs of letters, digits and marks of the NFD form, other visible characters alone."""
    return [token.lower() for token in _DPR_TOKEN.findall(unicodedata.normalize("NFD", text))]


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Return whether a prediction equals one of the answers after SQuAD's normalisation."""
    predicted = normalised(prediction)
    return any(predicted == normalised(answer) for answer in answers)


def token_match(prediction: str, answers: Iterable[str]) -> bool:
    """Return whether a prediction has the same DPR tokens as one of the answers."""
    predicted = dpr_tokens(prediction)
    return any(predicted == dpr_tokens(answer) for answer in answers)


def contains(prediction: str, answers: Iterable[str]) -> bool:
    """Return whether the normalised words of an answer stand one after the other in a prediction."""
    words = f" {normalised(prediction)} "
    return any(f" {normalised(answer)} " in words for answer in answers)


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Return the highest F1 of normalised words over answers, 0 without; two texts of no words agree (SQuAD 2.0)."""
    return max((2 * shared / (said + gold) for shared, said, gold in _shared_words(prediction, answers)), default=0.0)


def token_recall(prediction: str, answers: Iterable[str]) -> float:
    """Return the largest share of an answer's normalised words in a prediction; without words as `f1`."""
    return max((shared / gold for shared, _, gold in _shared_words(prediction, answers)), default=0.0)


def _shared_words(prediction: str, answers: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the words shared with each answer, those predicted, and the answer's; no words count as one empty word."""
    predicted = normalised(prediction).split() or [""]
    for answer in answers:
        gold = normalised(answer).split() or [""]
        yield sum((Counter(predicted) & Counter(gold)).values()), len(predicted), len(gold)


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Return whether the DPR tokens of an answer, at least one, stand one after the other in a text."""
    tokens = dpr_tokens(text)
    return any(
        gold and tokens[begin : begin + len(gold)] == gold
        for gold in map(dpr_tokens, answers)
        for begin in range(len(tokens) - len(gold) + 1)
    )


class AnswerMeasure(NamedTuple):
    """A measure: a function of the answer and the gold answers, and its type."""

    of: Callable[[str, Iterable[str]], float]
    returns: type[bool] | type[float]


ANSWER_MEASURES: Final[Mapping[str, AnswerMeasure]] = {
    "exact_match": AnswerMeasure(exact_match, bool),
    "contains": AnswerMeasure(contains, bool),
    "token_match": AnswerMeasure(token_match, bool),
    "f1": AnswerMeasure(f1, float),
    "token_recall": AnswerMeasure(token_recall, float),
}
"""The measures of every answer, in the order of columns; a new one needs a line here."""
