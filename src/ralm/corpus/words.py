"""Plain text: the letters that people type, for what only looks like them, and the words of texts.

Compatibility forms become plain letters and digits (Unicode NFKC): ligatures, full width, Roman numerals, subscripts.
Letters with combining marks become one character where there is one. Apostrophes become straight. Characters without
width go, such as soft hyphens; a zero-width space in a script without spaces is a space. Signs that NFKC would join to
the word beside them stand alone: `UNIX\u2122` is `UNIX TM`. A word with a superscript stands with and without it, since
that may be a power or a footnote: `km\u00b2` is `km2 km`.

A word, as passages and overlaps count them, is what stands between white space. In scripts without spaces, such as
Chinese, Japanese and Thai, two characters with their marks count as a word. Punctuation belongs to the word before.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unicodedata import category, decomposition, is_normalized, normalize

import numpy as np

if TYPE_CHECKING:
    import regex

_UNSEEN: Final = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""The characters that Unicode calls default ignorable."""
_APOSTROPHES: Final = "\u2019\u201b\u02bc\uff07"
_TYPED: Final = {**dict.fromkeys(map(ord, _APOSTROPHES), "'"), ord("\u2044"): "/"}
_CHANGED: Final = re.compile(f"[{_UNSEEN}{_APOSTROPHES}]")
_DROPPED: Final = re.compile(f"[{_UNSEEN}]+")
_MARK: Final = r"[\p{M}\uff9e\uff9f\u1160-\u11ff]"
_RAISED: Final = "\xb9\xb2\xb3\u2070\u2074-\u2079"
_SUPERSCRIPT: Final = rf"((?!{_MARK})\p{{L}}[\p{{L}}\p{{M}}{_UNSEEN}]*+)([{_RAISED}]++)(?![{_UNSEEN}]*+{_MARK})"
_POWERS: Final = re.compile(f"[{_RAISED}]")
_SIGNS: Final = (range(0xA0, 0x100), range(0x2070, 0x2500), range(0x3100, 0x3400), range(0x1F100, 0x1F300))
"""Where Unicode has signs that NFKC writes with letters or digits."""
_DENSE: Final = r"[[\p{Line_Break=Complex_Context}\p{Script=Javanese}\p{Script=Balinese}]&&[\p{L}\p{M}]]"
"""A letter or mark of a script without spaces, and with words of several characters."""
_MAY_BE_DENSE: Final = re.compile("[\u0e00-\u1bff\ua900-\uaaff\U00011700-\U0001174f]")
"""The blocks of these scripts and others, which are found ten times faster."""
_DENSE_SPACE: Final = rf"(?<={_DENSE})\u200b+(?={_DENSE})"
_PART: Final = rf"(?P<space>{_DENSE_SPACE})|{_SUPERSCRIPT}|(?s:.)(?:{_MARK}|(?!{_DENSE_SPACE})[{_UNSEEN}])*+"
_SPACELESS: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0ecf\u0edc-\u0edf\u0f00-\u0f1f\u0f34-\u0fff\u1000-\u103f\u1050-\u108f"
    "\u1780-\u17d3\u1950-\u19cf\u1a20-\u1a7f\u1b00-\u1b4f\u3005-\u3007\u3021-\u3029\u3040-\u30ff"
    "\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua980-\ua9cf\ua9e0-\ua9ef\uaa60-\uaadf"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters and marks of scripts without spaces."""
_FIRST_BYTE, _DASHES = 0xE0, 0xE2
"""The least byte that such a letter begins with in UTF-8, and the one that dashes and quotes begin with."""
_SPACE: Final = r"\s\x1c-\x1f"
"""White space as for `str.split`."""
_IS_SPACELESS: Final = re.compile(f"[{_SPACELESS}]")
_CHARACTER: Final = rf"(?=[{_SPACELESS}])\X"
_WORD: Final = rf"(?:(?:{_CHARACTER}){{1,2}}|(?:(?![{_SPACE}{_SPACELESS}])\X)++)(?:(?![{_SPACELESS}])[^\w{_SPACE}])*+"
_BARE: Final = rf"{_CHARACTER}|(?:(?![{_SPACELESS}])[\p{{L}}\p{{M}}\p{{N}}])++"
_BREAK: Final = r"(?<=\w[-\xad\u2010])\s*\n\s*(?=\w)"
_BROKEN: Final = re.compile(r"(?<=\w)[-\xad\u2010]\s*\n\s*(?=\w)")
"""Where a hyphen breaks a word; in `_BREAK` the white space after it."""
_BARE_ASCII: Final = re.compile(r"[^\W_]+")


class PlainPart(NamedTuple):
    """A part of a text, from character `begin` to `end`, as plain text."""

    begin: int
    end: int
    plain: str


def plain_text(text: str) -> str:
    """Return a text as plain text."""
    if text.isascii() or (is_normalized("NFKC", text) and not _CHANGED.search(text)):
        return text
    if "\u200b" in text:
        text = compiled(_DENSE_SPACE).sub(" ", text)
    if _POWERS.search(text):
        text = compiled(_SUPERSCRIPT).sub(lambda word: f"{word[1]}{normalize('NFKC', word[2])} {word[1]}", text)
    seen = _DROPPED.sub("", text)
    plain = normalize("NFKC", seen.translate(_apart())).translate(_TYPED)
    return plain.replace("\u0e4d\u0e32", "\u0e33").replace("\u0ecd\u0eb2", "\u0eb3")  # one letter when it is typed


def plain_parts(text: str) -> Iterator[PlainPart]:
    """Yield the plain text of a text in parts, each of a character with its marks, or a word with a superscript."""
    for part in compiled(_PART).finditer(text):
        plain, begin = " " if part["space"] else plain_text(part[0]), part.start()
        if plain == part[0]:
            yield from (PlainPart(place, place + 1, text[place]) for place in range(begin, part.end()))
        else:
            yield PlainPart(begin, part.end(), plain)


def split_dense(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the parts of a text: the place where each begins, its text, and whether its script has no spaces."""
    end = 0
    for dense in compiled(f"{_DENSE}+").finditer(text) if _MAY_BE_DENSE.search(text) else ():
        yield end, text[end : dense.start()], False
        yield dense.start(), dense[0], True
        end = dense.end()
    yield end, text[end:], False


def characters(text: str) -> "Iterator[regex.Match[str]]":
    """Return the matches of the characters of a text, each with its marks."""
    return compiled(r"\X").finditer(text)


@cache
def compiled(pattern: str) -> "regex.Pattern[str]":
    """Return a pattern of `regex`, which knows properties of characters; compiling takes 50 ms, ASCII needs none."""
    import regex

    matcher: regex.Pattern[str] = regex.compile(pattern, regex.V1)
    return matcher


@cache
def _apart() -> dict[int, str]:
    """Return the signs that stand alone, as plain text between spaces."""
    return {code: f" {normalize('NFKC', chr(code))} " for codes in _SIGNS for code in codes if _stands_alone(chr(code))}


def _stands_alone(sign: str) -> bool:
    form = decomposition(sign)
    return category(sign) in ("So", "No") and form.startswith("<") and not form.startswith("<sub>")


def count_words(text: str, most: int, begin: int = 0, end: int | None = None) -> int:
    """Return the number of words of a part of a text, at most one more than `most`."""
    if not _has_spaceless(text):
        return len(text[begin:end].split(None, most))
    last = len(text) if end is None else end
    return sum(1 for _ in islice(compiled(_WORD).finditer(text, begin, last), most + 1))


def runs_of_words(text: str, words: int, begin: int = 0, end: int | None = None) -> Iterator[Any]:
    """Return the matches of runs of so many words in a part of a text; the last one may have fewer."""
    last = len(text) if end is None else end
    if _has_spaceless(text):
        return compiled(_run(_WORD, f"[{_SPACE}]*+", words)).finditer(text, begin, last)
    return _spaced(words).finditer(text, begin, last)


def bare_words(text: str, *, joined: bool = False) -> list[str]:
    """Return the words of a text in lower case, without punctuation; `joined`: words broken at line ends are whole."""
    plain = plain_text(_BROKEN.sub("", text) if joined else text).lower()
    return _BARE_ASCII.findall(plain) if plain.isascii() else compiled(_BARE).findall(plain)


def readings_of(text: str) -> list[bool]:
    """Return whether words that are broken at the ends of lines are joined, for each way to read a text."""
    return [False, True] if _BROKEN.search(text) else [False]


def placed_bare_words(text: str, *, joined: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yield the same words, each after the places in the text where what has it begins and ends."""
    run = _WORD if _has_spaceless(text) else r"\S++"
    for match in compiled(rf"{run}(?:{_BREAK}{run})*+" if joined else run).finditer(text):
        for word in bare_words(match[0], joined=joined):
            yield *match.span(), word


def is_spaceless(text: str) -> bool:
    """Return whether more than half of the letters of a text are of scripts without spaces."""
    return _has_spaceless(text) and 2 * len(_IS_SPACELESS.findall(text)) > sum(map(str.isalpha, text))


@lru_cache(maxsize=2)
def _has_spaceless(text: str) -> bool:
    """Return whether a text has letters of scripts without spaces; it is asked for each part of a document."""
    if text.isascii():
        return False
    bytes_B = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    return bool(((bytes_B >= _FIRST_BYTE) & (bytes_B != _DASHES)).any()) and _IS_SPACELESS.search(text) is not None


@cache
def _spaced(words: int) -> re.Pattern[str]:
    return re.compile(_run(r"\S++", r"\s++", words))


def _run(word: str, space: str, words: int) -> str:
    """Return the pattern of so many words, or fewer at the end."""
    return rf"{word}(?:{space}{word}){{0,{words - 1}}}+"  # possessive, to avoid backtracking
