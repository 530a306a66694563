"""Plain text: the letters that people type, for what only looks like them, or has characters that nobody sees.

Compatibility forms become plain letters and digits (Unicode NFKC): ligatures, full width, Roman numerals, subscripts.
Letters with combining marks become one character where there is one. Apostrophes become straight. Characters without
width go, such as soft hyphens; a zero-width space in a script without spaces is a space.

Signs that NFKC would join to the word beside them stand alone: `UNIX\u2122` is `UNIX TM`. A word with a superscript
stands with and without it, since that may be a power or a footnote: `km\u00b2` is `km2 km`.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import category, decomposition, is_normalized, normalize

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
_SPACE: Final = rf"(?<={_DENSE})\u200b+(?={_DENSE})"
_PART: Final = rf"(?P<space>{_SPACE})|{_SUPERSCRIPT}|(?s:.)(?:{_MARK}|(?!{_SPACE})[{_UNSEEN}])*+"


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
        text = compiled(_SPACE).sub(" ", text)
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
