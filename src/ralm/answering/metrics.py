"""Metrics of answers: exact match and F1 as in SQuAD, the tokens of DPR, and whether a text holds an answer.

`ANSWER_MEASURES` at the end are those of every answer; `has_answer` looks at the passages of a question.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import regex

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_COMBINED: Final = regex.compile(r".\p{M}*", regex.DOTALL)
"""A character with the marks that combine with it."""
_DPR_TOKEN: Final = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def normalised(text: str) -> str:
    """A text after SQuAD's normalisation: lower case, ASCII punctuation removed (so that words join), each English
    article replaced by a space, white space collapsed."""
    return " ".join(_ARTICLES.sub(" ", without_punctuation(text)).split())


def without_punctuation(text: str) -> str:
    """A text in lower case, ASCII punctuation removed, white space collapsed."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def dpr_tokens(text: str) -> list[str]:
    """The tokens of DPR: of the NFD form, runs of letters, digits and marks, and every other visible character by
    itself; lower case."""
    return [token.lower() for token in _DPR_TOKEN.findall(unicodedata.normalize("NFD", text))]


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether a prediction equals one of the answers after SQuAD's normalisation."""
    predicted = normalised(prediction)
    return any(predicted == normalised(answer) for answer in answers)


def token_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether a prediction has the same DPR tokens as one of the answers."""
    predicted = dpr_tokens(prediction)
    return any(predicted == dpr_tokens(answer) for answer in answers)


def contains(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the words of one of the answers stand in a prediction one after the other, after SQuAD's normalisation;
    no words are only in a prediction without words."""
    held = f" {normalised(prediction)} "
    return any(f" {normalised(answer)} " in held for answer in answers)


def f1(prediction: str, answers: Iterable[str]) -> float:
    """The highest F1 of the words of a prediction and of an answer, after SQuAD's normalisation; 0 without answers.
    Without words, it is 1 if neither has any, else 0 (SQuAD 2.0)."""
    return max((2 * shared / (said + held) for shared, said, held in _shared_words(prediction, answers)), default=0.0)


def token_recall(prediction: str, answers: Iterable[str]) -> float:
    """The largest share of an answer's words in a prediction, after SQuAD's normalisation; without words as `f1`."""
    return max((shared / held for shared, _, held in _shared_words(prediction, answers)), default=0.0)


def _shared_words(prediction: str, answers: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """For each answer: how many words it shares with a prediction, and how many the prediction and the answer have. A
    text without words equals only another such text, as if it were one word."""
    predicted = normalised(prediction).split() or [""]
    for answer in answers:
        gold = normalised(answer).split() or [""]
        yield sum((Counter(predicted) & Counter(gold)).values()), len(predicted), len(gold)


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether the DPR tokens of a text hold those of one of the answers, at least one, one after the other."""
    held = dpr_tokens(text)
    return any(True for answer in answers for _ in _places(held, dpr_tokens(answer)))


def answer_spans(text: str, answers: Iterable[str]) -> list[tuple[int, int]]:
    """The spans of a text with the DPR tokens of an answer, which may overlap: the first character of each, and one
    past the last."""
    tokens, spans = _dpr_tokens_with_spans(text)
    wanted = map(dpr_tokens, answers)
    return sorted({(spans[begin][0], spans[end - 1][1]) for one in wanted for begin, end in _places(tokens, one)})


def _dpr_tokens_with_spans(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """The DPR tokens of a text, and the characters of the text that each was made of."""
    pieces = [(piece, unicodedata.normalize("NFD", piece[0])) for piece in _COMBINED.finditer(text)]
    begins = [piece.start() for piece, own in pieces for _ in own]
    ends = [piece.end() for piece, own in pieces for _ in own]
    places = list(_DPR_TOKEN.finditer("".join(own for _, own in pieces)))
    spans = [(begins[place.start()], ends[place.end() - 1]) for place in places]
    return [place[0].lower() for place in places], spans


def _places(held: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The spans of some tokens in others, one after the other; nothing if there are none."""
    size = len(wanted)
    for begin in range(len(held) - size + 1 if size else 0):
        if held[begin] == wanted[0] and held[begin : begin + size] == wanted:
            yield begin, begin + size


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
