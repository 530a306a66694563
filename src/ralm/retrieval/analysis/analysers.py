"""The analysers: Lucene's StandardAnalyzer, EnglishAnalyzer and CJKAnalyzer, and one for each language of Snowball.

Each splits a text into words by the Unicode standard (UAX #29), as Lucene's StandardTokenizer does, and lower-cases
them. English also removes possessives and 33 stop words and applies the original Porter stemmer. CJK replaces
full-width Latin and half-width katakana, and replaces Han, hiragana, katakana and Hangul characters that are direct
neighbours by all pairs of neighbours; a character without neighbours and words in other scripts stay as they are.

The languages of Snowball compose characters (NFC), make apostrophes straight, as the stemmers expect, and stem; stop
words stay. A few have rules of their own: articles that an apostrophe joins to the next word, the suffixes of Turkish
names, the two letters i of Turkish.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from string import punctuation
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import normalize

import Stemmer

from ralm.corpus.words import PlainPart, characters, compiled, plain_parts, plain_text, split_dense
from ralm.retrieval.analysis import LUCENE, TermsOfRun

if TYPE_CHECKING:
    import regex

_MAX_WORD: Final = 255
"""Longer words are cut into pieces of this many UTF-16 units, as StandardTokenizer does."""

_PICTOGRAPHS: Final = (
    r"\p{Extended_Pictographic}\u2388\u2605\u2607-\u2612\u2616-\u2685\u2690-\u2704\u270e-\u2711\u2765-\u2767"
    r"\U0001f000-\U0001f0f5\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f16f\U0001f1ad-\U0001f1ae"
    r"\U0001f260-\U0001f3f6\U0001f4fe\U0001f546-\U0001f5f9\U0001f6c6-\U0001f6f2\U0001f774-\U0001f77f"
    r"\U0001f7d5-\U0001f7ff\U0001f8b0-\U0001f90b\U0001fa00-\U0001fbff"
)
"""Extended_Pictographic as of Unicode 12, the version that Lucene uses: later ones, as in `regex`, leave out signs that
texts have, such as the flat sign of music."""


_ASCII_WORDS: Final = re.compile(
    r"_*+[A-Za-z0-9]\w*+(?:(?:(?<=[A-Za-z])[.:'](?=[A-Za-z])|(?<=[0-9])[.,;'](?=[0-9]))\w++)*+", re.ASCII
)
"""UAX #29 on ASCII: letters, digits and underscores run together; . : ' join letters, and . , ; ' join digits."""
_ASCII_MARKS: Final = punctuation.replace("_", "")
"""What no word begins or ends with."""


@cache
def _unicode_words() -> "regex.Pattern[str]":
    """Return UAX #29 as StandardTokenizer's grammar states it; a Han or Hiragana character is a word of its own."""
    extend = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
    kinds = {
        "letter": r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}]",
        "hebrew": r"\p{WB=Hebrew_Letter}",
        "digit": r"[\p{WB=Numeric}\uff10-\uff19]",
        "katakana": r"\p{WB=Katakana}",
        "joint": r"\p{WB=ExtendNumLet}",
        "in_word": r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}:]",
        "in_number": r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]",
        "han": r"\p{Script=Han}",
        "hiragana": r"\p{Script=Hiragana}",
        "complex": r"\p{Line_Break=Complex_Context}",
        "region": r"\p{WB=Regional_Indicator}",
    }
    x = {name: f"(?:{kind}{extend})" for name, kind in kinds.items()}
    number = "{digit}(?:(?:{joint}*|{in_number}){digit})*".format(**x)
    word = "{letter}(?:(?:{joint}*|{in_word}){letter})*".format(**x)
    hebrew = "{hebrew}(?:'|\"{hebrew})".format(**x)
    katakana = "{katakana}(?:{joint}*{katakana})*".format(**x)
    part = f"(?:{katakana}|(?:{hebrew}|{number}|{word})+)"
    emoji = rf"[{_PICTOGRAPHS}]\ufe0f?[\U0001f3fb-\U0001f3ff]?(?:\u200d[{_PICTOGRAPHS}]\ufe0f?)*+"
    keycap = r"[0-9#*]\ufe0f?\u20e3"
    flags = "{region}{{2}}".format(**x)
    pattern = "{joint}*{part}(?:{joint}+{part})*{joint}*|{complex}+|{han}|{hiragana}|{emoji}|{flags}".format(
        part=part, emoji=emoji, flags=flags, **x
    )
    return compiled(f"{keycap}|{pattern}")


def terms_of_run(name: str) -> TermsOfRun:
    """Return a function that returns the terms of a run of characters without white space, by the analyser's name."""
    exact = _terms_as_in_lucene(name.removeprefix(LUCENE))
    return exact if name.startswith(LUCENE) else partial(_terms_of_plain, exact)


def _terms_of_plain(terms: TermsOfRun, run: str) -> tuple[str, ...]:
    """Return the terms of a run as plain text; characters of dense scripts are paired with their neighbours."""
    if run.isascii():
        return terms(run)
    plain_terms: list[str] = []
    for _, part, dense in split_dense(plain_text(run)):
        plain_terms += _pairs([character[0] for character in characters(part)]) if dense else terms(part)
    return tuple(plain_terms)


def _terms_as_in_lucene(name: str) -> TermsOfRun:
    """Return a function that returns the terms of a run, by the name of the language."""
    match name:
        case "english":
            return _english_terms()
        case "standard":
            return lambda run: tuple([lower_case(word) for word in words(run)])
        case "cjk":
            return _cjk_terms
        case language:
            return _snowball_terms(language)


def words(text: str) -> list[str]:
    """Return the words of a text, unchanged."""
    if not text.isascii():
        matches = _unicode_words().findall(text)
    elif (core := text.strip(_ASCII_MARKS)).isalnum():  # as most are; the pattern takes ten times as long
        matches = [core]
    else:
        matches = _ASCII_WORDS.findall(text)
    if len(text) <= _MAX_WORD or all(len(word) <= _MAX_WORD for word in matches):
        return matches
    return [piece for word in matches for piece in _pieces(word)]


class PlacedWord(NamedTuple):
    """A word of a text, its bounds, and whether it follows the one before without a space, so both may be a term."""

    begin: int
    end: int
    word: str
    follows: bool


def placed_words(name: str, text: str) -> Iterator[PlacedWord]:
    """Yield the words that an analyser finds in a text, in order."""
    exact = name.startswith(LUCENE)
    parts = [PlainPart(place, place + 1, text[place]) for place in range(len(text))] if exact else [*plain_parts(text)]
    part_of = [part for part in parts for _ in part.plain]
    plain = "".join(part.plain for part in parts)
    pieces = [(0, plain, False)] if exact else split_dense(plain)
    last = 0
    for first, piece, dense in pieces:
        marked = ((character.start(), character[0]) for character in characters(piece)) if dense else _placed(piece)
        for begin, word in marked:
            place, end = first + begin, first + begin + len(word)
            yield PlacedWord(part_of[place].begin, part_of[end - 1].end, word, place == last)
            last = end


def _placed(text: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a text, each after the position of its first character."""
    for match in (_ASCII_WORDS if text.isascii() else _unicode_words()).finditer(text):
        begin = match.start()
        for piece in _pieces(match.group()):
            yield begin, piece
            begin += len(piece)


def lower_case(word: str) -> str:
    """Lower-case by character, as Java does: no final sigma, and a dotted capital I becomes a plain i."""
    return word.lower() if word.isascii() else word.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()


def _pieces(word: str) -> list[str]:
    """Return a word, cut into pieces of at most `_MAX_WORD` UTF-16 units if it is longer."""
    if 2 * len(word) <= _MAX_WORD:
        return [word]
    units = word.encode("utf-16-le", "surrogatepass")
    size = 2 * _MAX_WORD
    return [units[i : i + size].decode("utf-16-le", "replace") for i in range(0, len(units), size)]


_STOP_WORDS: Final = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()
)
_APOSTROPHES: Final = "'\u2019\uff07"


def _english_terms() -> TermsOfRun:
    """Return a function that returns the terms of a run; stop words have none."""
    porter: Callable[[str], str] = Stemmer.Stemmer("porter", 0).stemWord

    def terms(run: str) -> tuple[str, ...]:
        stems = []
        for word in words(run):
            is_possessive = word[-1] in "sS" and word[-2:-1] in tuple(_APOSTROPHES)
            plain = lower_case(word[:-2] if is_possessive else word)
            if plain and plain not in _STOP_WORDS:
                stems.append(_stem(plain, porter))
        return tuple(stems)

    return terms


def _stem(word: str, porter: Callable[[str], str]) -> str:
    """Stem by Porter as in Lucene, with two rules that the library lacks: BLI -> BLE and LOGI -> LOG in step 2."""
    if len(word) <= 2:
        return word
    stem = porter(word)
    if stem.endswith("logi") and _has_measure(stem[:-4]):
        return porter(stem[:-1])
    if stem.endswith("bli") and _has_measure(stem[:-3]):
        return porter(stem[:-1] + "e")
    return stem


def _has_measure(stem: str) -> bool:
    """Return whether Porter's measure m is above 0: whether some consonant follows a vowel."""
    vowel_before = False
    consonant_before = False
    for letter in stem:
        vowel = letter in "aeiou" or (letter == "y" and consonant_before)
        if vowel_before and not vowel:
            return True
        vowel_before = vowel_before or vowel
        consonant_before = not vowel
    return False


_CJK_STOP_WORDS: Final = (_STOP_WORDS | {"s", "t", "www"}) - {"an"}

_IDEOGRAPH: Final = r"[\p{Script=Han}\p{Script=Hiragana}--\p{WB=ALetter}]"
_MARK: Final = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]"


@cache
def _ideographs() -> "regex.Pattern[str]":
    """Return the pattern of characters that are words in any context; most of a text needs only this one."""
    return compiled(rf"{_IDEOGRAPH}+(?!{_MARK})")


@cache
def _paired() -> "regex.Pattern[str]":
    """Return the pattern of words whose characters are paired with their neighbours."""
    hangul = rf"(?:[\p{{Script=Hangul}}&&\p{{WB=ALetter}}]{_MARK}*)+"
    return compiled(rf"{_IDEOGRAPH}{_MARK}*|(?:\p{{WB=Katakana}}{_MARK}*)+|{hangul}")


_VOICING_MARKS: Final = {0xFF9E: "\u3099", 0xFF9F: "\u309a"}
_WIDTHS: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    code: normalize("NFKC", chr(code)) for code in range(0xFF65, 0xFF9E)
}
_VOICED: Final = re.compile("[\u30a6-\u30fd][\uff9e\uff9f]")


class _Part(NamedTuple):
    """Part of a run, from `begin` to `end`: a word, or characters that are paired with their neighbours."""

    begin: int
    end: int
    characters: str
    paired: bool


def _cjk_terms(run: str) -> tuple[str, ...]:
    """Return the terms of a run of characters without white space; stop words have none."""
    terms: list[str] = []
    neighbours, end = "", 0
    for part in _parts(run):
        if neighbours and not (part.paired and part.begin == end):
            terms += _pairs(neighbours)
            neighbours = ""
        if part.paired:
            neighbours += part.characters
            end = part.end
        else:
            terms.append(lower_case(part.characters))
    terms += _pairs(neighbours)
    return tuple([term for term in terms if term not in _CJK_STOP_WORDS])


def _parts(run: str) -> Iterator[_Part]:
    begin = 0
    for ideographs in () if run.isascii() else _ideographs().finditer(run):
        yield from _words(run, begin, ideographs.start())
        begin = ideographs.end()
        yield _Part(ideographs.start(), begin, ideographs.group(), paired=True)
    yield from _words(run, begin, len(run))


def _words(run: str, begin: int, end: int) -> Iterator[_Part]:
    """Yield the words in a part of a run."""
    if begin < end:
        for position, word in _placed(run[begin:end]):
            first = begin + position
            yield _Part(first, first + len(word), _in_one_width(word), paired=_paired().fullmatch(word) is not None)


def _pairs(neighbours: Sequence[str]) -> list[str]:
    """Return all pairs of neighbours; a single character stays alone."""
    return [first + second for first, second in pairwise(neighbours)] or list(neighbours)


def _in_one_width(word: str) -> str:
    """Replace full-width ASCII by ASCII, and half-width katakana by katakana, which a voicing mark becomes part of."""
    if word.isascii():
        return word
    wide = _VOICED.sub(lambda pair: normalize("NFC", pair[0].translate(_VOICING_MARKS)), word.translate(_WIDTHS))
    return wide.translate(_VOICING_MARKS)


_STRAIGHT: Final = str.maketrans({"\u2019": "'", "\uff07": "'"})
_ARTICLES: Final = {
    "catalan": "d l m n s t",
    "french": "c d j jusqu l lorsqu m n puisqu qu quoiqu s t",
    "irish": "b d m",
    "italian": "agl all c coll d dagl dall degl dell gl l m negl nell pell s sugl sull t un v",
}
"""The articles before an apostrophe, as in "l'avion"; the lists are those of Lucene's analysers."""
_CEDILLAS: Final = str.maketrans("\u0218\u0219\u021a\u021b", "\u015e\u015f\u0162\u0163")
"""Maps Romanian letters with a comma below to those with a cedilla, which every version of the stemmer accepts."""


def _snowball_terms(language: str) -> TermsOfRun:
    """Return a function that returns the terms of a run; a word of which the stemmer leaves nothing stays whole."""
    stem: Callable[[str], str] = Stemmer.Stemmer(language, 0).stemWord
    plain = _plain(language)

    def terms(run: str) -> tuple[str, ...]:
        text = run if run.isascii() else normalize("NFC", run).translate(_STRAIGHT)
        return tuple([stem(word) or word for raw in words(text) if (word := plain(raw))])

    return terms


def _plain(language: str) -> Callable[[str], str]:
    """Return the function that prepares the words of a language for the stemmer."""
    if language in _ARTICLES:
        lower = _lower_irish if language == "irish" else lower_case
        return partial(_without_article, frozenset(_ARTICLES[language].split()), lower)
    match language:
        case "romanian":
            return lambda word: lower_case(word.translate(_CEDILLAS))
        case "turkish":
            return _plain_turkish
    return lower_case


def _without_article(articles: frozenset[str], lower: Callable[[str], str], word: str) -> str:
    article, apostrophe, rest = word.partition("'")
    return lower(rest if apostrophe and lower_case(article) in articles else word)


def _lower_irish(word: str) -> str:
    """Lower-case, with a hyphen between an initial n or t and a capital vowel: nAthair becomes n-athair."""
    prefixed = word[0] in "nt" and word[1:2] in tuple("AEIOU\u00c1\u00c9\u00cd\u00d3\u00da")
    return f"{word[0]}-{lower_case(word[1:])}" if prefixed else lower_case(word)


def _plain_turkish(word: str) -> str:
    """Lower-case with a dotless small i for the dotless capital, and without the suffixes of a name: Ankara'da."""
    return lower_case(word.partition("'")[0].replace("I", "\u0131"))
