"""What the text of an answer says about its passages: the numbers that it cites, and the words that it quotes.

Needs no log-probabilities. A quote is a run of words of the answer that stands in the passage too:

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

import unicodedata
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeAlias

import regex

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
