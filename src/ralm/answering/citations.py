"""Answers with their sources: how each is known, what it gave to an answer, and which words of it cite which passage.

A source is `measured` if it is credited with a part of the gain of the answer, `cited` if the model wrote its number,
`quoted` if words of the answer stand in it, else only `retrieved`.

What a passage gave to a token is its posterior times the gain of the token over the same prompt without passages, in
nats (`ralm.reading.provenance`): the instruction stays, so that only the passages differ. The rule of credit:

1. Tokens of words that stand in the prompt without passages, in runs of two or more, count for nobody, nor do those of
   citations, as in [1].
2. A passage is credited only if it gave the answer more than ln 20 nats in all. An answer drawn without passages
   becomes 20 times as likely with them in at most 5% of all cases (Markov's inequality); of one drawn with them the
   threshold is a convention.
3. Tokens are taken together as whole words. Each word goes to that one of these passages that
   gave it most, if the passage made it likelier.
4. A passage is cited for the runs of words to which it gave most, on balance: each token counts what the passage gave
   it, less 0.1 nats, so that a run ends where tokens are as likely without the passage; a run holds no word that goes
   to another passage. The best run counts, and all others of at least one bit (ln 2). A passage without a run is not
   credited.
5. White space at the ends of runs is left out, and a run that has no other characters too.

Nothing is measured if the model returns no log-probabilities of given texts.

A quote is a run of words of the answer that stands in the passage too, whatever its log-probability:

1. Words are compared without case, in composed form (NFC). Dots, underscores and hyphens inside a word belong to it, as
   in np.log2 or gooseberry-fool, but for hyphens between digits; a character of a script without spaces is a word. What
   is between words does not count.
2. Of all common runs the longest is a quote, the first of equals; then the longest on either side of it, and so on.
3. A run is a quote if it has three words that do not stand in the prompt without passages, its instruction and
   question; or one such word that is a number, a name or rare; or if it is the whole answer, and not all of it stands
   there. A number of a list of the answer does not count as one, nor a single digit beside no other such word. A name
   has at least three letters, never begins with a small one in the answer or the passage, and begins no sentence in one
   of them. A word is rare if no other document at hand has it and it is an identifier, with a capital after a small
   letter or an underscore or dot inside, or a compound of twelve letters or more.
4. Two words or more that stand one after the other in the prompt without passages are no part of a quote.
"""

import math
import unicodedata
from bisect import bisect, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import regex
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.reading.provenance import TracedText, attributed, contributions, passage_as_json
from ralm.records import DoubleArray, Passage

TextSpan: TypeAlias = tuple[int, int]
"""The first and one past the last of some characters, or of some tokens."""
_SINGLE: Final = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""A character of a script without spaces."""
_SPACED: Final = rf"[[\p{{L}}\p{{N}}\p{{M}}]--{_SINGLE}]+"
_JOINED: Final = r"(?:\.|_+|[\-\u2010\u2011](?!\p{N})|(?<!\p{N})[\-\u2010\u2011])"
_WORD: Final = regex.compile(rf"(?V1){_SINGLE}\p{{M}}*|(?<!_)_*{_SPACED}(?:{_JOINED}{_SPACED})*_*")
_RARE: Final = regex.compile(
    r"\p{Ll}\p{Lu}|[\p{L}\p{N}]_+[\p{L}\p{N}]|\p{L}{2}\.\p{L}{2}"
    r"|^(?=(?:\P{L}*\p{L}){12}).*\p{L}{4}[\-\u2010\u2011]\p{L}{4}"
)
"""The form of a rare word; state-of-the-art, and shorter compounds such as long-term, are common."""
_DASH: Final = r"[-\u2010-\u2015\u2212\uff0d~\uff5e]"
_NUMBERS: Final = rf"\^?\d{{1,4}}(?:(?:\s*{_DASH}\s*|[\]\uff3d\u3011]{_DASH}[\[\uff3b\u3010])\^?\d{{1,4}})?"
"""A number of a citation, or a range of them, as in 1-3 or 1]-[3."""
_CITATION: Final = regex.compile(
    rf"[\[\uff3b\u3010]\s*(?P<numbers>{_NUMBERS})(?:\s*[,;\uff0c\uff1b\u3001]\s*(?P<numbers>{_NUMBERS}))*\s*"
    r"(?:\u2020[^\[\]\u3010\u3011\n]*)?[\]\uff3d\u3011]"
)
"""A citation, as in [1], [2, 3], [1-3], [1]-[3] or [^1], in brackets and digits of any width; after a dagger a name."""
_OPERATOR: Final = r"(?:[=+<>]=?|(?<=\s)\*(?=\s))"
_INDEX: Final = r"(?:\[[^\[\]\n]{0,60}\])+"
_INDEXED: Final = rf"\b[A-Za-z_]\w*{_INDEX}"
_OPERAND: Final = rf"\b(?![A-Z][A-Za-z0-9]+\[){_INDEXED}"
"""An indexed name, but for names of the world, as in H2O[1] = ice."""
_CODE: Final = regex.compile(
    r"(?ms)^ {0,3}(?P<fence>```+|~~~+).*?(?:^ {0,3}(?P=fence)|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=ticks)(?!`)"
    rf"|(?<=\S[ \t]?{_OPERATOR}[ \t]?){_OPERAND}|{_OPERAND}(?=[ \t]?{_OPERATOR}[ \t]?\S)"
    rf"|(?<=\w\([^()\n]{{0,60}}){_INDEXED}|{_INDEXED}(?=\.[a-z_])"
)
"""Code, where numbers in brackets cite nothing: fenced blocks, inline code, and indexes beside an operator, in a call,
or before a member."""
_LISTED: Final = regex.compile(r"(?m)(?:^|[.!?:;])[ \t>*#-]*\(?\K\d{1,2}(?=[.)]\s)")
"""A number of a list, as in 1. or (2)."""
_CONTINUES: Final = regex.compile(r"[\p{L}\p{N}\p{M},;)'\u2019\u201d][ \t]*\Z")
"""The end of a text whose next word begins no sentence."""
_WORDS: Final = 3
"""A run of so many words is a quote, whatever they are."""
_COPIED_WORDS: Final = 2
_LETTERS: Final = 3
"""The letters that a name has at least."""
Known = Literal["measured", "cited", "quoted", "retrieved"]
"""How a source is known, the surest first."""
CREDITED: Final = math.log(20)
"""The gain of a credited passage is larger, in nats."""
ONE_BIT: Final = math.log(2)
"""The minimum gain of a second run of tokens, in nats."""
_OF_A_TOKEN: Final = 0.1
"""The gain of a token, in nats, above which it extends a run of tokens."""
_NOBODY: Final = -1


class Quote(NamedTuple):
    """The characters of an answer that quote a passage, and those of the passage."""

    answer: TextSpan
    passage: TextSpan


class _Words(NamedTuple):
    """The words of a text: in the form that is compared, and their characters."""

    forms: list[str]
    spans: list[TextSpan]

    @classmethod
    def of(cls, text: str) -> "_Words":
        spans = word_spans(text)
        return cls([_form(text[slice(*span)].strip("_")) for span in spans], spans)

    def characters(self, begin: int, end: int) -> TextSpan:
        return self.spans[begin][0], self.spans[end - 1][1]


def cited_numbers(answer: str, count: int, prompt: str = "") -> dict[int, list[TextSpan]]:
    """Return the spans of the citations of each number from 1 to `count`, without those copied from the `prompt`."""
    cited: dict[int, list[TextSpan]] = {}
    copied = {place for span in copied_spans(answer, prompt) for place in range(*span)}
    for citation in citations_of(answer):
        if not copied.isdisjoint(range(*citation.span())):
            continue
        for numbers in citation.captures("numbers"):
            ends = [int(number) for number in regex.findall(r"\d+", numbers)]
            if ends[0] >= 1 and ends[-1] <= count:
                for number in range(ends[0], ends[-1] + 1):
                    cited.setdefault(number, []).append(citation.span())
    return {number: [*dict.fromkeys(spans)] for number, spans in sorted(cited.items())}


def quotes(answer: str, passage: str, prompt: str = "", elsewhere: Sequence[str] = ()) -> list[Quote]:
    """Return what an answer quotes from a passage, in its order; `prompt` has no passages, `elsewhere` all others."""
    said, read, asked = _Words.of(answer), _Words.of(passage), _Words.of(prompt)
    names, listed = _names((answer, said), (passage, read)), {number.start() for number in _LISTED.finditer(answer)}
    copied = {place for begin, end, _ in _runs(said.forms, asked.forms, _COPIED_WORDS) for place in range(begin, end)}
    free = ["" if place in copied else form for place, form in enumerate(said.forms)]
    asked_forms, other_forms, quoted = {*asked.forms}, _form("\n".join(elsewhere)), []
    for begin, end, at in _runs(free, read.forms, 1):
        new = [place for place in range(begin, end) if said.forms[place] not in asked_forms]
        words = [answer[slice(*said.spans[place])] for place in new]
        told = [said.forms[place] for place in new if said.spans[place][0] not in listed]
        if (
            len(new) >= _WORDS
            or (new and end - begin == len(said.forms))
            or any(form in names and (len(form) > 1 or len(new) > 1) for form in told)
            or any(_RARE.search(word) and _form(word) not in other_forms for word in words)
        ):
            quoted.append(Quote(said.characters(begin, end), read.characters(at, at + end - begin)))
    return quoted


def word_spans(text: str) -> list[TextSpan]:
    """Return the spans of the words of a text."""
    return [word.span() for word in _WORD.finditer(text)]


def copied_spans(answer: str, prompt: str) -> list[TextSpan]:
    """Return the spans of two words or more of an answer that stand together in the prompt without passages."""
    said = _Words.of(answer)
    return [said.characters(begin, end) for begin, end, _ in _runs(said.forms, _Words.of(prompt).forms, _COPIED_WORDS)]


def citations_of(answer: str) -> "Iterator[regex.Match[str]]":
    """Return the citations of an answer, whatever their numbers, without those in code."""
    return _CITATION.finditer(_CODE.sub(lambda code: "." * len(code[0]), answer))


def _form(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _names(*texts: tuple[str, _Words]) -> set[str]:
    places: dict[str, list[tuple[str, int, int]]] = {}
    for text, (forms, spans) in texts:
        for form, (begin, _), (previous, _) in zip(forms, spans, [(0, 0), *spans], strict=False):
            places.setdefault(form, []).append((text, previous, begin))
    capitals = {form for form, at in places.items() if all(text[begin].isupper() for text, _, begin in at)}
    inside = {form for form in capitals if any(_CONTINUES.search(*place) for place in places[form])}
    numbers = {form for form in places if any(letter.isdecimal() for letter in form)}
    return numbers | {form for form in inside if len(form) >= _LETTERS}


def _runs(words: Sequence[str], source: Sequence[str], least: int) -> list[tuple[int, int, int]]:
    """Return first place, end and place in the source of common runs, taken longest first, then on either side."""
    letters = {word: chr(number) for number, word in enumerate({*words}.intersection(source), 2)}
    said, read = ("".join(letters.get(word, rest) for word in text) for text, rest in ((words, "\0"), (source, "\1")))
    waiting, starts, covered, runs, end = [], [len(said)], set[int](), list[tuple[int, int, int]](), 0
    for begin in range(len(said)):
        end, at = max(begin, end), 0
        while end < len(said) and (at := read.find(said[begin : end + 1], at)) >= 0:
            end += 1
        waiting.append((begin - end, begin))
    heapify(waiting)
    while waiting:
        length, begin = heappop(waiting)
        end = min(begin - length, starts[bisect(starts, begin)])
        if end - begin < -length and begin not in covered:
            heappush(waiting, (begin - end, begin))
        elif end - begin >= least and begin not in covered:
            runs.append((begin, end, read.find(said[begin:end])))
            covered.update(range(begin, end))
            insort(starts, begin)
    return sorted(runs)


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
    for (begin, end), number in _cited_runs(gained, _whole_words(written, ends)):
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


def _cited_runs(gained: Mapping[int, DoubleArray], words: Sequence[int]) -> list[tuple[TextSpan, int]]:
    """Return the runs that passages are cited for, ascending, given what each gave to each token (float64, T)."""
    if not gained:
        return []
    gained_PW = np.add.reduceat([*gained.values()], words[:-1], axis=1)
    owner_W = np.where(gained_PW.max(axis=0) > 0, gained_PW.argmax(axis=0), _NOBODY)
    runs = []
    for row, number in enumerate(gained):
        value_W = np.where(
            (owner_W == row) | (owner_W == _NOBODY), gained_PW[row] - _OF_A_TOKEN * np.diff(words), -np.inf
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
