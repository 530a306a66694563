"""A synthetic collection of passages whose terms are as frequent as in encyclopedic text, and stride queries over it.

Terms are numbers by rank. Document frequencies of the thousand commonest follow WikiText's after Lucene's stop words
and stemmer; beyond them they fall as rank to the power of -1.07. Passages come in articles of about four, each with a
topic of 400 words and 25 words of its own, which take turns with the background where the background is not common.
Queries are windows over articles that share a topic, and a third of their own words, with an article of the collection.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

VOCABULARY: Final = 500_000
WORDS: Final = 70
_TOPICS, _TOPIC_WORDS, _OWN_WORDS, _COMMON = 5000, 400, 25, 300
_RANKS = np.array([1, 2, 3, 6, 10, 20, 50, 100, 200, 500, 1000])
_DOCUMENT_SHARE = np.array([0.47, 0.385, 0.325, 0.257, 0.1895, 0.1329, 0.0889, 0.0625, 0.0432, 0.0227, 0.0116])


def _background() -> NDArray[np.float64]:
    """The cumulative probability of each rank."""
    ranks = np.arange(1, VOCABULARY + 1)
    rates = np.exp(np.interp(np.log(ranks), np.log(_RANKS), np.log(-np.log1p(-_DOCUMENT_SHARE)))) * 1.1 / WORDS
    tail = ranks > _RANKS[-1]
    rates[tail] = rates[~tail][-1] * (_RANKS[-1] / ranks[tail]) ** 1.07
    rates[tail] *= (1 - rates[~tail].sum()) / rates[tail].sum()
    return np.cumsum(rates)


_CUMULATIVE = _background()


def _rare(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Words of the background that are not common."""
    below = _CUMULATIVE[_COMMON - 1]
    drawn: NDArray[np.int64] = np.searchsorted(_CUMULATIVE, below + (_CUMULATIVE[-1] - below) * rng.random(shape))
    return drawn.clip(max=VOCABULARY - 1)


_TOPIC = _rare(np.random.default_rng(1), (_TOPICS, _TOPIC_WORDS))


def _own_words(article: int, topic: int) -> NDArray[np.int64]:
    rng = np.random.default_rng([2, article])
    return np.where(rng.random(_OWN_WORDS) < 0.4, rng.choice(_TOPIC[topic], _OWN_WORDS), _rare(rng, (_OWN_WORDS,)))


def _topic_of(article: int) -> int:
    return (article * 7919) % _TOPICS


def _text(rng: np.random.Generator, topic: int, own: NDArray[np.int64], words: int) -> NDArray[np.int64]:
    drawn = np.searchsorted(_CUMULATIVE, rng.random(words) * _CUMULATIVE[-1]).clip(max=VOCABULARY - 1)
    kind = rng.random(words)
    from_topic = _TOPIC[topic, (rng.random(words) ** 2.5 * _TOPIC_WORDS).astype(np.int64)]
    from_own = own[(rng.random(words) ** 1.5 * _OWN_WORDS).astype(np.int64)]
    return np.where((drawn < _COMMON) | (kind < 0.15), drawn, np.where(kind < 0.55, from_topic, from_own))


def passages(count: int) -> Iterator[NDArray[np.int64]]:
    """So many passages as term numbers (int64); a larger collection begins with the smaller."""
    rng = np.random.default_rng(3)
    article = 0
    while count > 0:
        topic = _topic_of(article)
        own = _own_words(article, topic)
        for _ in range(min(count, int(rng.geometric(0.25)))):
            yield _text(rng, topic, rng.permutation(own), int(rng.normal(WORDS, 5)))
            count -= 1
        article += 1


def queries(articles: int = 4, words: int = 1200, window: int = 24, stride: int = 3) -> list[list[int]]:
    """Windows over new articles as term numbers; 31% of the words are stop words, which no index has."""
    found = []
    for number in range(articles):
        rng = np.random.default_rng([4, number])
        related = (number * 104_729 + 17) % 20_000
        topic = _topic_of(related)
        own = _own_words(100_000_000 + number, topic)
        own[::3] = _own_words(related, topic)[::3]
        text = _text(rng, topic, own, words)
        kept = rng.random(words) >= 0.31
        found += [text[i : i + window][kept[i : i + window]].tolist() for i in range(0, words - window, stride)]
    return found
