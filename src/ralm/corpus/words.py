"""Words of texts, as passages and overlaps count them: what stands between white space.

In scripts without spaces, such as Chinese, Japanese and Thai, two characters with their marks count as a word.
Punctuation belongs to the word before.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

import numpy as np

from ralm.corpus.plain import compiled, plain_text

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
