"""A synthetic collection with term frequencies like those of encyclopedic text, and stride queries over it.

Terms are numbers by rank. Document frequencies of the thousand commonest follow WikiText's after Lucene's stop words
and stemmer; beyond them they fall as rank to the power of -1.07. Passages come in articles of about four. A word that
is not among the 300 commonest is drawn from the background (15%), from the article's topic (400 words, 40%), or from
the article's 25 own words (45%), which are rarer than the background and take turns in being frequent. Queries are
windows over new articles that share a topic, and a third of their own words, with an article of the collection.
"""

from typing import Final

import numba as nb
import numpy as np
from numpy.typing import NDArray

from benchmarks.collection import Collection

VOCABULARY: Final = 500_000
_WORDS, _SPREAD, _FEWEST, _MOST = 69, 5, 40, 95
_TOPICS, _TOPIC_WORDS, _OWN_WORDS, _COMMON = 5000, 400, 25, 300
_FROM_BACKGROUND, _FROM_TOPIC = 0.15, 0.55
_RANKS = np.array([1, 2, 3, 6, 10, 20, 50, 100, 200, 500, 1000])
_DOCUMENT_SHARE = np.array([0.47, 0.385, 0.325, 0.257, 0.1895, 0.1329, 0.0889, 0.0625, 0.0432, 0.0227, 0.0116])
_QUERY_ARTICLES, _QUERY_WORDS, _STOP_WORDS, _WINDOW, _STRIDE = 10, 1200, 0.31, 24, 3


def _cumulative(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.cumsum(rates / rates.sum(), dtype=np.float64)
    sums[-1] = 1
    return sums


def _background() -> NDArray[np.float64]:
    """The probability of each rank."""
    ranks = np.arange(1, VOCABULARY + 1)
    rates = np.exp(np.interp(np.log(ranks), np.log(_RANKS), np.log(-np.log1p(-_DOCUMENT_SHARE)))) * 1.1 / _WORDS
    tail = ranks > _RANKS[-1]
    rates[tail] = rates[~tail][-1] * (_RANKS[-1] / ranks[tail]) ** 1.07
    rates[tail] *= (1 - rates[~tail].sum()) / rates[tail].sum()
    return rates


_PROBABILITY = _background()
_ANY = _cumulative(_PROBABILITY)
_RARE = _cumulative(_PROBABILITY[_COMMON:] ** 0.75)
_TURN = _cumulative(1 / np.arange(1, _OWN_WORDS + 1) ** 0.6)
_OF_TOPIC = _cumulative(1 / np.arange(1, _TOPIC_WORDS + 1) ** 0.9)
_TOPIC = _COMMON + np.searchsorted(
    _cumulative(_PROBABILITY[_COMMON:]), np.random.default_rng(1).random((_TOPICS, _TOPIC_WORDS))
).astype(np.int32)


@nb.njit
def _drawn(cumulative: NDArray[np.float64]) -> int:
    return int(np.searchsorted(cumulative, np.random.random()))  # noqa: NPY002  (numba's own generator)


@nb.njit
def _own_words(article: int, topic_T: NDArray[np.int32], rare: NDArray[np.float64]) -> NDArray[np.int32]:
    """The own words of an article."""
    np.random.seed(article)  # noqa: NPY002
    own = np.empty(_OWN_WORDS, np.int32)
    for i in range(_OWN_WORDS):
        of_topic = np.random.random() < 0.4  # noqa: NPY002
        own[i] = topic_T[int(np.random.random() * _TOPIC_WORDS)] if of_topic else _COMMON + _drawn(rare)  # noqa: NPY002
    return own


@nb.njit
def _write(
    words: NDArray[np.int32],
    topic_T: NDArray[np.int32],
    own: NDArray[np.int32],
    any_word: NDArray[np.float64],
    of_topic: NDArray[np.float64],
    turn: NDArray[np.float64],
) -> None:
    """Fill in a passage."""
    first = int(np.random.random() * _OWN_WORDS)  # noqa: NPY002
    for i in range(len(words)):
        words[i] = _drawn(any_word)
        kind = np.random.random()  # noqa: NPY002
        if words[i] >= _COMMON and kind >= _FROM_BACKGROUND:
            words[i] = topic_T[_drawn(of_topic)] if kind < _FROM_TOPIC else own[(_drawn(turn) + first) % _OWN_WORDS]


@nb.njit
def _passages(
    sizes_A: NDArray[np.int64],
    ends_P: NDArray[np.int64],
    topics: NDArray[np.int32],
    any_word: NDArray[np.float64],
    rare: NDArray[np.float64],
    of_topic: NDArray[np.float64],
    turn: NDArray[np.float64],
) -> NDArray[np.int32]:
    words = np.empty(ends_P[-1], np.int32)
    passage, begin = 0, 0
    for article in range(len(sizes_A)):
        topic_T = topics[(article * 7919) % _TOPICS]
        own = _own_words(article, topic_T, rare)
        for _ in range(sizes_A[article]):
            _write(words[begin : ends_P[passage]], topic_T, own, any_word, of_topic, turn)
            begin = ends_P[passage]
            passage += 1
    return words


@nb.njit
def _texts(
    articles: int,
    topics: NDArray[np.int32],
    any_word: NDArray[np.float64],
    rare: NDArray[np.float64],
    of_topic: NDArray[np.float64],
    turn: NDArray[np.float64],
) -> NDArray[np.int32]:
    """New articles, concatenated."""
    words = np.empty(_QUERY_ARTICLES * _QUERY_WORDS, np.int32)
    for number in range(_QUERY_ARTICLES):
        related = (number * 104_729 + 17) % articles
        topic_T = topics[(related * 7919) % _TOPICS]
        shared = _own_words(related, topic_T, rare)
        own = _own_words(1_000_000_000 + number, topic_T, rare)
        own[::3] = shared[::3]
        for begin in range(number * _QUERY_WORDS, (number + 1) * _QUERY_WORDS, 100):
            _write(words[begin : begin + 100], topic_T, own, any_word, of_topic, turn)
    return words


def collection(passages: int) -> Collection:
    """This many passages, and about 4,000 queries of 15 distinct terms."""
    rng = np.random.default_rng(3)
    sizes = rng.geometric(0.25, passages).clip(max=40)
    articles = int(np.searchsorted(np.cumsum(sizes), passages)) + 1
    sizes = sizes[:articles]
    sizes[-1] -= sizes.sum() - passages
    lengths = rng.normal(_WORDS, _SPREAD, passages).astype(np.int64).clip(_FEWEST, _MOST)
    terms = _passages(sizes, np.cumsum(lengths), _TOPIC, _ANY, _RARE, _OF_TOPIC, _TURN)
    text = _texts(articles, _TOPIC, _ANY, _RARE, _OF_TOPIC, _TURN)
    kept = np.random.default_rng(4).random(len(text)) >= _STOP_WORDS
    windows = [slice(i, i + _WINDOW) for i in range(0, len(text) - _WINDOW, _STRIDE)]
    return Collection(
        name="synthetic",
        terms=terms,
        ends=np.cumsum(lengths),
        queries=[text[window][kept[window]].tolist() for window in windows],
    )
