"""Which passages an answer cites, and for which words: by what each gave to the answer, measured token by token.

What a passage gave to a token is its posterior times the gain of the token over the prompt without passages, in nats
(`ralm.reading.provenance`). The rule:

1. A passage is cited only if it gave the answer at least one bit (ln 2 nats) in all: with it, the answer is at least
   twice as likely. That is little beside what a passage that holds the answer gives, and much beside rounding errors.
2. Each token goes to that one of these passages that gave it most, if the passage made it likelier.
3. A passage is cited for the runs of tokens to which it gave most, on balance: each token counts what the passage gave
   it, less 0.1 nats, so that a run ends where tokens are as likely without the passage; a run holds no token that goes
   to another passage. The best run counts, and all others of at least one bit. A passage without a run is not cited.
4. Runs are widened to whole words, as far as no other run is there, and white space at their ends is left out. A run
   that has no other characters is left out.

Where the model tells no log-probabilities, nothing was measured and nothing is cited. Works on texts and numbers; knows
nothing of models or servers.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, TypeAlias
from unicodedata import category, east_asian_width

import numpy as np

from ralm.reading.provenance import TracedText, attributed
from ralm.records import DoubleArray, Passage
from ralm.terminal import one_line

ONE_BIT: Final = math.log(2)
"""The least that a passage gives to an answer that cites it, in nats."""
_OF_A_TOKEN: Final = 0.1
"""What a passage has to give to a token, in nats, for a run of tokens to go on because of it."""
_NO_ONE: Final = -1
_OF_WORDS: Final = "LMN"
"""What words consist of: letters, marks and numbers;"""
_WIDE: Final = ("W", "F")
"""but not those of scripts without spaces."""
_ADDRESSES: Final = ("url", "source", "link", "uri")
"""Metadata in which the address of a document stands, the first of them first."""
_WEB: Final = re.compile(r"https?://[^\s\x00-\x1f]+", re.IGNORECASE)

Span: TypeAlias = tuple[int, int]
"""The first and one past the last of some tokens, or of some characters."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that an answer cites: what it gave in nats, and the first and one past the last character of each part
    of the text that it is cited for, in ascending order."""

    passage: Passage
    gain: float
    spans: Sequence[Span]


def citations(text: TracedText) -> list[Citation]:
    """The passages that an answer cites, largest gain first, by the rule of this module.

    Characters count from the beginning of the text, what is `before` the first token included. No two spans overlap.
    """
    if not np.isfinite(text.gain_T).all():
        return []
    gains = {row.passage: row.gain for row in text.contributions if row.gain >= ONE_BIT}
    spans: dict[int, list[Span]] = {number: [] for number in gains}
    runs = _runs(_given(text, list(gains)))
    for (_, row), span in zip(runs, _words(text, [run for run, _ in runs]), strict=True):
        if span[0] < span[1]:
            spans[list(gains)[row]].append(span)
    return [Citation(text.passages[number], gain, spans[number]) for number, gain in gains.items() if spans[number]]


def _given(text: TracedText, passages: Sequence[int]) -> DoubleArray:
    """What each of P passages gave to each token (float64, P x T), in nats."""
    given_TK = attributed(text.provenance, text.gain_T)
    rows = [np.where(text.provenance.passages_TK == number, given_TK, 0).sum(axis=1) for number in passages]
    return np.array(rows, dtype=np.float64).reshape(len(passages), len(text))


def _runs(given_PT: DoubleArray) -> list[tuple[Span, int]]:
    """The runs of tokens for which passages are cited, each with the row of its passage, in ascending order."""
    if not given_PT.size:
        return []
    owner_T = np.where(given_PT.max(axis=0) > 0, given_PT.argmax(axis=0), _NO_ONE)
    found = []
    for row, given_T in enumerate(given_PT):
        worth_T = np.where((owner_T == row) | (owner_T == _NO_ONE), given_T - _OF_A_TOKEN, -np.inf)
        found += [(run, row) for run in _best_runs(worth_T.tolist())]
    return sorted(found)


def _best_runs(worths: Sequence[float]) -> Iterator[Span]:
    """The run of the largest sum, if that is positive; beside it the best ones of at least one bit."""
    parts, least = [(0, len(worths))], 0.0
    while parts:
        begin, end = parts.pop()
        total, first, last = _best_run(worths, begin, end)
        if total > 0 and total >= least:
            yield first, last
            parts += [(begin, first), (last, end)]
            least = ONE_BIT


def _best_run(worths: Sequence[float], begin: int, end: int) -> tuple[float, int, int]:
    """The largest sum of a run of some tokens, its first token and the one past its last; 0 if none is positive."""
    best, total, first = (0.0, begin, begin), 0.0, begin
    for place in range(begin, end):
        if total <= 0:
            total, first = 0.0, place
        total += worths[place]
        if total > best[0]:
            best = (total, first, place + 1)
    return best


def _words(text: TracedText, runs: Sequence[Span]) -> Iterator[Span]:
    """The characters of runs of tokens, in ascending order: whole words, as far as no other run is there."""
    written = text.before + "".join(text.texts)
    ends = list(accumulate(map(len, text.texts), initial=len(text.before)))
    exact = [(ends[begin], ends[end]) for begin, end in runs]
    free = len(text.before)
    for (begin, end), (until, _) in pairwise([*exact, (len(written), len(written))]):
        while begin > free and _joined(written, begin):
            begin -= 1
        while end < until and _joined(written, end):
            end += 1
        free = end
        words = written[begin:end]
        yield begin + len(words) - len(words.lstrip()), begin + len(words.rstrip())


def _joined(text: str, place: int) -> bool:
    """Whether the characters before and after a place belong to one word."""
    return 0 < place < len(text) and all(
        category(one)[0] in _OF_WORDS and east_asian_width(one) not in _WIDE for one in text[place - 1 : place + 1]
    )


def web_address(passage: Passage) -> str | None:
    """Where a passage can be read in the web, as its document's metadata say; None if they do not."""
    found = (passage.metadata.get(name) for name in _ADDRESSES)
    return next((one for one in found if isinstance(one, str) and _WEB.fullmatch(one)), None)


def name_of(passage: Passage) -> str:
    """The title of a passage, or else the id of its document, as one line."""
    return one_line(" ".join(passage.title.split()) or passage.document_id)


def sources_text(cited: Sequence[Citation], addresses: Sequence[str]) -> str:
    """The sources of an answer as text to stand behind it, each with its address; empty without sources."""
    lines = [
        f"\n[{place}] {name_of(one.passage)}: {address}"
        for place, (one, address) in enumerate(zip(cited, addresses, strict=True), 1)
    ]
    return "\n\nSources:" + "".join(lines) if lines else ""
