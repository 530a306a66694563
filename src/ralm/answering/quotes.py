"""What the text of an answer says about its passages: the numbers that it cites, and the words that it quotes.

Needs no log-probabilities. A quote is a run of words of the answer that stands in the passage too:

1. Words are compared without case, in composed form (NFC). Dots, underscores and hyphens inside a word belong to it, as
   in np.log2 or gooseberry-fool, but for hyphens between digits; a character of a script without spaces is a word. What
   is between words does not count.
2. Of all common runs the longest is a quote, the first of equals; then the longest on either side of it, and so on.
3. A run is a quote if it has three words that do not stand in the prompt without passages, its instruction and
   question; or one such word that is a number, a name or rare; or if it is the whole answer, and not all of it stands
   there. A name has at least three letters, never begins with a small one in the answer or the passage, and begins no
   sentence in one of them. A word is rare if no other document at hand has it and it is an identifier, with a capital
   after a small letter or an underscore or dot inside, or a compound of twelve letters or more.
4. Two words or more that stand one after the other in the prompt without passages are no part of a quote.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
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
_NUMBERS: Final = r"\^?\d{1,4}(?:\s*[-\u2010-\u2015\u2212\uff0d~\uff5e]\s*\^?\d{1,4})?"
"""A number of a citation, or a range of them, as in 1-3."""
_CITATION: Final = regex.compile(
    rf"[\[\uff3b\u3010]\s*(?P<numbers>{_NUMBERS})(?:\s*[,;\uff0c\uff1b\u3001]\s*(?P<numbers>{_NUMBERS}))*\s*"
    r"(?:\u2020[^\[\]\u3010\u3011\n]*)?[\]\uff3d\u3011]"
)
"""A citation, as in [1], [2, 3], [1-3] or [^1], in brackets and digits of any width; a name may follow a dagger."""
_OPERATOR: Final = r"(?:[=+<>]=?|(?<=\s)\*(?=\s))"
_INDEX: Final = r"(?:\[[^\[\]\n]{0,60}\])+"
_INDEXED: Final = rf"\b[A-Za-z_]\w*{_INDEX}"
_NAME_OF_CODE: Final = r"(?:(?<![^\s(,=])(?<!\d\s)[a-z]|\b[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+)"
"""A letter alone that is no unit as in 5 m, or a name with underscores."""
_CODE: Final = regex.compile(
    r"(?ms)^ {0,3}(?P<fence>```+|~~~+).*?(?:^ {0,3}(?P=fence)|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=ticks)(?!`)"
    rf"|(?<=\S[ \t]?{_OPERATOR}[ \t]?){_INDEXED}|{_INDEXED}(?=[ \t]?{_OPERATOR}[ \t]?\S|\.[a-z_])"
    rf"|(?<=\w\(){_INDEXED}|{_NAME_OF_CODE}{_INDEX}"
)
"""Code, where numbers in brackets cite nothing: fenced blocks, inline code, and indexes beside an operator, in a call,
before a member, or after a name of code."""
_CONTINUES: Final = regex.compile(r"[\p{L}\p{N}\p{M},;)'\u2019\u201d][ \t]*\Z")
"""The end of a text whose next word begins no sentence."""
_WORDS: Final = 3
"""A run of so many words is a quote, whatever they are."""
_OWN_WORDS: Final = 2
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
        """The characters from a word to the one before `end`."""
        return self.spans[begin][0], self.spans[end - 1][1]


def cited_numbers(answer: str, count: int, own: str = "") -> dict[int, list[TextSpan]]:
    """The numbers from 1 to `count` that an answer cites, as in [1] or [2, 3], each with the spans of its citations.
    Those in words that stand in `own`, the prompt without passages, are copied and cite nothing."""
    found: dict[int, list[TextSpan]] = {}
    copied = own_spans(answer, own)
    for citation in _citations(answer):
        if any(begin < citation.end() and citation.start() < end for begin, end in copied):
            continue
        for numbers in citation.captures("numbers"):
            ends = [int(number) for number in regex.findall(r"\d+", numbers)]
            if ends[0] >= 1 and ends[-1] <= count:
                for number in range(ends[0], ends[-1] + 1):
                    found.setdefault(number, []).append(citation.span())
    return {number: [*dict.fromkeys(spans)] for number, spans in sorted(found.items())}


def quotes(answer: str, passage: str, own: str = "", others: Sequence[str] = ()) -> list[Quote]:
    """What an answer quotes from a passage, by the rule of this module, in the order of the answer; `own` is the prompt
    without passages, and `others` are the passages of other documents."""
    said, read, asked = _Words.of(answer), _Words.of(passage), _Words.of(own)
    own_places = [place for run in _runs(said.forms, asked.forms, _OWN_WORDS) for place in run[:2]]
    known, elsewhere = {*asked.forms}, _form("\n".join(others))
    found = []
    for part_begin, part_end in zip([0, *own_places[1::2]], [*own_places[::2], len(said.forms)], strict=True):
        for begin, end, at in _runs(said.forms[part_begin:part_end], read.forms, 1):
            run, length = range(part_begin + begin, part_begin + end), end - begin
            new = [place for place in run if said.forms[place] not in known]
            words = [answer[slice(*said.spans[place])] for place in new]
            if (
                len(new) >= _WORDS
                or (new and length == len(said.forms))
                or any(_is_name(said.forms[place], (answer, said), (passage, read)) for place in new)
                or any(_RARE.search(word) and _form(word) not in elsewhere for word in words)
            ):
                found.append(Quote(said.characters(run.start, run.stop), read.characters(at, at + length)))
    return found


def word_spans(text: str) -> list[TextSpan]:
    """The spans of the words of a text."""
    return [word.span() for word in _WORD.finditer(text)]


def own_spans(answer: str, own: str) -> list[TextSpan]:
    """The spans of two words or more of an answer that stand one after the other in the prompt without passages."""
    said = _Words.of(answer)
    return [said.characters(begin, end) for begin, end, _ in _runs(said.forms, _Words.of(own).forms, _OWN_WORDS)]


def citation_spans(answer: str) -> list[TextSpan]:
    """The spans of all that has the form of a citation, whatever its numbers."""
    return [one.span() for one in _citations(answer)]


def _citations(answer: str) -> "Iterator[regex.Match[str]]":
    """The citations of an answer, without those in code."""
    return _CITATION.finditer(_CODE.sub(lambda code: "." * len(code[0]), answer))


def _form(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _is_name(form: str, *texts: tuple[str, _Words]) -> bool:
    """Whether a word of these texts is a number or a name."""
    if any(one.isdecimal() for one in form):
        return True
    places = [(text, span[0]) for text, words in texts for one, span in zip(*words, strict=True) if one == form]
    is_capital = len(form) >= _LETTERS and all(text[begin].isupper() for text, begin in places)
    return is_capital and any(_CONTINUES.search(text, 0, begin) for text, begin in places)


def _runs(words: Sequence[str], others: Sequence[str], least: int) -> list[tuple[int, int, int]]:
    """Common runs of at least `least` words: the longest first, then those on either side of it; each with its first
    place, one past its last, and its first place in the others; in ascending order."""
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    parts, found = [(0, len(words))], []
    while parts:
        begin, end = parts.pop()
        first, place, length = matcher.find_longest_match(begin, end)
        if length >= least:
            found.append((first, first + length, place))
            parts += [(begin, first), (first + length, end)]
    return sorted(found)
