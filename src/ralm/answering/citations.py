"""Answers with their sources: how each is known, what it gave to an answer, and which words of it cite which passage.

A source is `measured` if it is credited with a part of the gain of the answer, `cited` if the model wrote its number,
`quoted` if words of the answer stand in it (`ralm.answering.quotes`), else only `retrieved`.

What a passage gave to a token is its posterior times the gain of the token over the same prompt without passages, in
nats (`ralm.reading.provenance`): the instruction stays, so that only the passages differ. The rule of credit:

1. Tokens of words that stand in the prompt without passages, in runs of two or more, count for nobody, nor do those of
   citations, as in [1].
2. A passage is credited only if it gave the answer more than ln 20 nats in all. An answer drawn without passages
   becomes 20 times as likely with them in at most 5% of all cases (Markov's inequality); of one drawn with them the
   threshold is a convention.
3. Tokens are taken together as whole words (`ralm.answering.quotes`). Each word goes to that one of these passages that
   gave it most, if the passage made it likelier.
4. A passage is cited for the runs of words to which it gave most, on balance: each token counts what the passage gave
   it, less 0.1 nats, so that a run ends where tokens are as likely without the passage; a run holds no word that goes
   to another passage. The best run counts, and all others of at least one bit (ln 2). A passage without a run is not
   credited.
5. White space at the ends of runs is left out, and a run that has no other characters too.

Nothing is measured if the model returns no log-probabilities of given texts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering.quotes import Quote, TextSpan, citations_of, cited_numbers, own_spans, quotes, word_spans
from ralm.reading.provenance import TracedText, attributed, contributions
from ralm.records import DoubleArray, Passage

Known = Literal["measured", "cited", "quoted", "retrieved"]
"""How a source is known, the surest first."""
CREDITED: Final = math.log(20)
"""The gain of a credited passage is larger, in nats."""
ONE_BIT: Final = math.log(2)
"""The minimum gain of a second run of tokens, in nats."""
_OF_A_TOKEN: Final = 0.1
"""The gain of a token, in nats, above which it extends a run of tokens."""
_NO_ONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """A passage that an answer was read with.

    `share` is the part of the answer's probability that came from it, the mean over tokens; `gain` is what it gave in
    nats: over all tokens, the posterior times the gain over the same prompt without passages. Both are None for an
    answer of no tokens, and if they are not measured. `spans` are the parts of the answer that it is credited with.

    `number` is its number in the prompt, None if the prompt does not number its passages. `cited` are the parts of the
    answer that name this number, `quotes` the words of the answer that stand in the passage.
    """

    passage: Passage
    share: float | None = None
    gain: float | None = None
    spans: Sequence[TextSpan] = ()
    number: int | None = None
    cited: Sequence[TextSpan] = ()
    quotes: Sequence[Quote] = ()

    @classmethod
    def of_text(cls, answer: str, passages: Sequence[Passage], own: str, *, numbered: bool) -> "list[AnswerSource]":
        """What the text of an answer says about the passages of its prompt, in their order there; `own` is the prompt
        without passages."""
        cited = cited_numbers(answer, len(passages), own) if numbered else {}
        sources = []
        for number, passage in enumerate(passages, 1):
            others = [other.contents for other in passages if other.document_id != passage.document_id]
            quoted = quotes(answer, passage.text, own, others)
            name = number if numbered else None
            sources.append(cls(passage=passage, number=name, cited=cited.get(number, ()), quotes=quoted))
        return sources

    @property
    def known(self) -> Known:
        """How it is known that the answer comes from this passage."""
        if self.spans:
            return "measured"
        return "cited" if self.cited else "quoted" if self.quotes else "retrieved"

    @property
    def answer_spans(self) -> Sequence[TextSpan]:
        """The characters of the answer that come from this passage, as far as it is known."""
        quoted = [one.answer for one in self.quotes]
        return {"measured": self.spans, "cited": self.cited, "quoted": quoted, "retrieved": ()}[self.known]

    @property
    def evidence(self) -> str:
        """How it is known, in words; what is measured says nothing of the words of the answer."""
        if self.known != "measured":
            return self.known
        words = "" if self.quotes else ", though no words are quoted from it"
        return f"measured: the answer is {self.gain:.2f} nats likelier with this passage{words}"

    @property
    def quoted_words(self) -> list[str]:
        """The words of the passage that the answer quotes."""
        return [self.passage.text[slice(*one.passage)] for one in self.quotes]

    def as_json(self) -> dict[str, JsonValue]:
        """How the source is known; share and gain are null unless it is measured."""
        is_measured = self.known == "measured"
        return {
            "passage": self.passage.number,
            "known": self.known,
            "evidence": self.evidence,
            "share": self.share if is_measured else None,
            "gain": self.gain if is_measured else None,
            "spans": [[*one] for one in self.spans],
            "number": self.number,
            "cited": [[*one] for one in self.cited],
            "quotes": [{"answer": [*one.answer], "passage": [*one.passage]} for one in self.quotes],
        }


def citations(
    text: TracedText, own: str = "", alone: Mapping[int, float] | None = None
) -> dict[int, Sequence[TextSpan]]:
    """The numbers of the passages that an answer cites, largest gain first, by the rule of this module, each with the
    spans of the text that it is cited for, in ascending order.

    `own` is the prompt without passages, and `alone` the gain in nats of the whole answer after some passages alone,
    which credits these only if it is large enough too. Characters count from the beginning of the
    text, what is `before` the first token included. No two spans overlap.
    """
    if not np.isfinite(text.gain_T).all():
        return {}
    gain_T = np.where(_own_tokens(text, own), 0, text.gain_T)
    rows = contributions(text.provenance, gain_T)
    gains = {row.passage: row.gain for row in rows if row.gain > CREDITED}
    credited = [number for number, gain in gains.items() if (alone or {}).get(number, gain) > CREDITED]
    spans: dict[int, list[TextSpan]] = {number: [] for number in credited}
    given_TK = attributed(text.provenance, gain_T)
    given = {number: np.where(text.provenance.passages_TK == number, given_TK, 0).sum(axis=1) for number in credited}
    written, ends = "".join(text.texts), [*accumulate(map(len, text.texts), initial=0)]
    for (begin, end), number in _runs(given, _whole_words(written, ends)):
        run = written[ends[begin] : ends[end]]
        if run.strip():
            first = len(text.before) + ends[begin]
            spans[number].append((first + len(run) - len(run.lstrip()), first + len(run.rstrip())))
    return {number: runs for number, runs in spans.items() if runs}


def _own_tokens(text: TracedText, own: str) -> NDArray[np.bool_]:
    """Whether each token (bool, T) belongs to words that stand in the prompt without passages, or to a citation."""
    written = "".join(text.texts)
    ends = accumulate(map(len, text.texts))
    spans = [*own_spans(written, own), *(citation.span() for citation in citations_of(written))]
    rows = [
        any(begin < end and end - len(one) < until for begin, until in spans)
        for one, end in zip(text.texts, ends, strict=True)
    ]
    return np.array(rows, dtype=np.bool_)


def _whole_words(written: str, ends: Sequence[int]) -> list[int]:
    """The first tokens of whole words, of tokens that begin at these `ends` of others; then the number of tokens."""
    inside = {place for begin, end in word_spans(written) for place in range(begin + 1, end)}
    return [number for number, place in enumerate(ends) if place not in inside]


def _runs(given: Mapping[int, DoubleArray], words: Sequence[int]) -> list[tuple[TextSpan, int]]:
    """The runs of tokens for which passages are cited, each with its passage, in ascending order. `given` is what each
    passage gave to each token (float64, T), in nats; `words` are the first tokens of words, and the last of all."""
    if not given:
        return []
    given_PW = np.add.reduceat([*given.values()], words[:-1], axis=1)
    owner_W = np.where(given_PW.max(axis=0) > 0, given_PW.argmax(axis=0), _NO_ONE)
    found = []
    for row, number in enumerate(given):
        value_W = np.where(
            (owner_W == row) | (owner_W == _NO_ONE), given_PW[row] - _OF_A_TOKEN * np.diff(words), -np.inf
        )
        found += [((words[begin], words[end]), number) for begin, end in _best_runs(value_W.tolist())]
    return sorted(found)


def _best_runs(values: Sequence[float]) -> Iterator[TextSpan]:
    """The run of the largest sum, if that is positive; beside it the best ones of at least one bit."""
    parts, minimum = [(0, len(values))], 0.0
    while parts:
        begin, end = parts.pop()
        total, first, last = _best_run(values, begin, end)
        if total > 0 and total >= minimum:
            yield first, last
            parts += [(begin, first), (last, end)]
            minimum = ONE_BIT


def _best_run(values: Sequence[float], begin: int, end: int) -> tuple[float, int, int]:
    """The largest sum of a run of some tokens, its first token and the one past its last; 0 if none is positive."""
    best, total, first = (0.0, begin, begin), 0.0, begin
    for place in range(begin, end):
        if total <= 0:
            total, first = 0.0, place
        total += values[place]
        if total > best[0]:
            best = (total, first, place + 1)
    return best
