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

from ralm.answering.quotes import Quote, TextSpan, citations_of, cited_numbers, copied_spans, quotes, word_spans
from ralm.reading.provenance import TracedText, attributed, contributions, passage_as_json
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
    nats, the posterior times the gain over the same prompt without passages; both are None if they are not measured.
    `spans` are the parts of the answer that it is credited with. `number` is its number in the prompt if that numbers
    passages, `cited` the parts of the answer that name it, `quotes` the words of the answer that stand in the passage.
    """

    passage: Passage
    share: float | None = None
    gain: float | None = None
    spans: Sequence[TextSpan] = ()
    number: int | None = None
    cited: Sequence[TextSpan] = ()
    quotes: Sequence[Quote] = ()

    @classmethod
    def of_text(cls, answer: str, passages: Sequence[Passage], prompt: str, *, numbered: bool) -> "list[AnswerSource]":
        """Return what an answer says about the passages of a prompt; `prompt` is its text without them."""
        cited = cited_numbers(answer, len(passages), prompt) if numbered else {}
        sources = []
        for number, passage in enumerate(passages, 1):
            elsewhere = [other.contents for other in passages if other.document_id != passage.document_id]
            quoted = quotes(answer, passage.text, prompt, elsewhere)
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
        quoted = [quote.answer for quote in self.quotes]
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
        return [self.passage.text[slice(*quote.passage)] for quote in self.quotes]

    def as_json(self) -> dict[str, JsonValue]:
        """Return how the source is known; share and gain are null unless it is measured."""
        is_measured = self.known == "measured"
        return {
            "passage": self.passage.number,
            "known": self.known,
            "evidence": self.evidence,
            "share": self.share if is_measured else None,
            "gain": self.gain if is_measured else None,
            "spans": [[*span] for span in self.spans],
            "number": self.number,
            "cited": [[*span] for span in self.cited],
            "quotes": [{"answer": [*quote.answer], "passage": [*quote.passage]} for quote in self.quotes],
        }

    def with_passage(self) -> JsonValue:
        """Return the passage and its text, and how the source is known."""
        return {**passage_as_json(self.passage), "text": self.passage.text, **self.as_json()}


def citations(
    text: TracedText, prompt: str = "", alone: Mapping[int, float] | None = None
) -> dict[int, Sequence[TextSpan]]:
    """Credit passages with parts of an answer, by the rule of this module.

    Args:
        text: The answer with its provenance and gains.
        prompt: The text of the prompt without passages, whose words count for nobody.
        alone: The gain in nats of the whole answer after some passages alone; only a large one credits them.

    Returns:
        The spans of each credited passage by its number, largest gain first. Spans are ascending, do not overlap, and
        count characters from the beginning of the text, what is `before` the first token included.
    """
    if not np.isfinite(text.gain_T).all():
        return {}
    gain_T = np.where(_copied_tokens(text, prompt), 0, text.gain_T)
    rows = contributions(text.provenance, gain_T)
    gains = {row.passage: row.gain for row in rows if row.gain > CREDITED}
    credited = [number for number, gain in gains.items() if (alone or {}).get(number, gain) > CREDITED]
    spans: dict[int, list[TextSpan]] = {number: [] for number in credited}
    gained_TK = attributed(text.provenance, gain_T)
    gained = {number: np.where(text.provenance.passages_TK == number, gained_TK, 0).sum(axis=1) for number in credited}
    written, ends = "".join(text.texts), [*accumulate(map(len, text.texts), initial=0)]
    for (begin, end), number in _runs(gained, _whole_words(written, ends)):
        run = written[ends[begin] : ends[end]]
        if run.strip():
            first = len(text.before) + ends[begin]
            spans[number].append((first + len(run) - len(run.lstrip()), first + len(run.rstrip())))
    return {number: runs for number, runs in spans.items() if runs}


def _copied_tokens(text: TracedText, prompt: str) -> NDArray[np.bool_]:
    """Return whether each token (bool, T) is in words of the prompt without passages, or in a citation."""
    written = "".join(text.texts)
    ends = accumulate(map(len, text.texts))
    spans = [*copied_spans(written, prompt), *(citation.span() for citation in citations_of(written))]
    rows = [
        any(begin < end and end - len(token_text) < until for begin, until in spans)
        for token_text, end in zip(text.texts, ends, strict=True)
    ]
    return np.array(rows, dtype=np.bool_)


def _whole_words(written: str, ends: Sequence[int]) -> list[int]:
    """Return the first token of each whole word, given where tokens begin, and the number of tokens."""
    inside = {place for begin, end in word_spans(written) for place in range(begin + 1, end)}
    return [number for number, place in enumerate(ends) if place not in inside]


def _runs(gained: Mapping[int, DoubleArray], words: Sequence[int]) -> list[tuple[TextSpan, int]]:
    """Return the runs that passages are cited for, ascending, given what each gave to each token (float64, T)."""
    if not gained:
        return []
    gained_PW = np.add.reduceat([*gained.values()], words[:-1], axis=1)
    owner_W = np.where(gained_PW.max(axis=0) > 0, gained_PW.argmax(axis=0), _NO_ONE)
    runs = []
    for row, number in enumerate(gained):
        value_W = np.where(
            (owner_W == row) | (owner_W == _NO_ONE), gained_PW[row] - _OF_A_TOKEN * np.diff(words), -np.inf
        )
        runs += [((words[begin], words[end]), number) for begin, end in _best_runs(value_W.tolist())]
    return sorted(runs)


def _best_runs(values: Sequence[float]) -> Iterator[TextSpan]:
    """Yield the run of the largest sum, if that is positive; beside it the best ones of at least one bit."""
    parts, minimum = [(0, len(values))], 0.0
    while parts:
        begin, end = parts.pop()
        total, first, last = _best_run(values, begin, end)
        if total > 0 and total >= minimum:
            yield first, last
            parts += [(begin, first), (last, end)]
            minimum = ONE_BIT


def _best_run(values: Sequence[float], begin: int, end: int) -> tuple[float, int, int]:
    """Return the largest sum of a run, its first token and the one past its last; 0 if none is positive."""
    best, total, first = (0.0, begin, begin), 0.0, begin
    for place in range(begin, end):
        if total <= 0:
            total, first = 0.0, place
        total += values[place]
        if total > best[0]:
            best = (total, first, place + 1)
    return best
