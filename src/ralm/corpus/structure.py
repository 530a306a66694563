"""Splits documents where their text is: at headings, paragraphs, list items, table rows, code blocks and sentences.

A passage has at most so many words, unless a single sentence, row or line has more. It is a slice of its document; rows
of a table that follow a split have the header of the table before them. Needs the extra `files` for sentences.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ralm.corpus.words import count_words, runs_of_words
from ralm.errors import extra
from ralm.records import Heading

_BLANK: Final = re.compile(r"\n[^\S\n]*\n\s*")
_BLANK_LINES: Final = re.compile(r"(?:[^\S\n]*+\n)*+")
_LINE: Final = re.compile(r"\n+")
_FENCE_LINE: Final = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_ITEM: Final = re.compile(r"^[^\S\n]*(?:[-*+\N{BULLET}]|\d{1,3}[.)]|#\.)[^\S\n]+\S", re.MULTILINE)
_RULE: Final = re.compile(r"[\s|:+=-]+")
_BORDERS: Final = ("|", "+-", "+=")
_ROW: Final = re.compile(r"\t|^(?:\||\+[-=])", re.MULTILINE)
"""What rows of tables in texts begin with."""
_FENCES: Final = ("```", "~~~")
_MARKDOWN_HEADING: Final = re.compile(r"#{1,6} +(.)(.*)")
_SETEXT_UNDERLINE: Final = re.compile(r"(=|-)\1{2,}\s*$")
_RST_UNDERLINE: Final = re.compile(r"([=\-~^\"'`#*+:._])\1{2,}\s*$")
_MARKUP: Final = re.compile(r"^(?=[^\S\n]*(?:#{1,6} |```|~~~|(?:={3,}|-{3,})[^\S\n]*$))", re.MULTILINE)
_SENTENCES: Final = 2000
"""Characters that are split into sentences at once: the time rises with their square."""
_SENTENCE: Final = 16_000  # and as many in which no sentence ends: a longer one is looked at in parts
_SHORT: Final = 4
"""A passage goes on under the next heading if it has fewer than 1/4 of its words."""


class Piece(NamedTuple):
    """The text of a passage, its place in its document, and the headings above it, the outermost first."""

    text: str
    begin: int
    end: int
    path: tuple[str, ...] = ()


class _Unit(NamedTuple):
    """A part of a text that is not split; `words` is at most one more than a passage may have."""

    begin: int
    end: int
    words: int
    header: str = ""
    heading: Heading | None = None


def find_headings(text: str, *, rst: bool = False) -> Iterator[Heading]:
    """Yield the headings of Markdown outside of code, or of reStructuredText, whose underlines rank as they occur."""
    is_underlined = _is_underlined_rst if rst else _is_underlined
    levels = [] if rst else ["=", "-"]
    in_code, before, line = False, 0, ""
    begin = end = 0
    for raw in text.split("\n"):
        begin, end = end, min(end + len(raw) + 1, len(text))
        above, line = line, raw.strip()
        if not rst and line.startswith(_FENCES):
            in_code = not in_code
        elif in_code:
            line = ""
        elif not rst and line.startswith("#") and (heading := _MARKDOWN_HEADING.match(line)):
            title = heading.group(1) + heading.group(2).rstrip("#").rstrip(" \t")
            yield Heading(begin, end, len(line) - len(line.lstrip("#")), title)
            line = ""
        elif above and line and is_underlined(above, line):
            if line[0] not in levels:
                levels.append(line[0])
            yield Heading(before, end, levels.index(line[0]) + 1, above)
            line = ""
        before = begin


def _is_underlined(line: str, below: str) -> bool:
    return _SETEXT_UNDERLINE.match(below) is not None and not line.startswith(("|", "-", "*", "+", ">", "#"))


def _is_underlined_rst(line: str, below: str) -> bool:
    return bool(_RST_UNDERLINE.match(below)) and len(below) >= len(line) and not _RST_UNDERLINE.match(line)


def plain_markdown(text: str) -> str:
    """Return a text with a backslash before what `find_headings` would read as a heading or as code."""
    return _MARKUP.sub(r"\\", text)


def split_by_structure(text: str, headings: Sequence[Heading], words: int, overlap: int = 0) -> Iterator[Piece]:
    """Return the passages of a text: whole blocks of a section; `overlap` words at most stand in the next one again."""
    return _packed(text, _units(text, headings, words), words, overlap)


def split_by_sentences(text: str, words: int, overlap: int = 0) -> Iterator[Piece]:
    """Return the passages of a text: whole sentences; each repeats at most `overlap` words of the one before."""
    units = (
        unit for begin, end in _between(text, 0, len(text), _BLANK) for unit in _sentences(text, begin, end, words)
    )
    return _packed(text, units, words, overlap)


def _packed(text: str, units: Iterable[_Unit], words: int, overlap: int) -> Iterator[Piece]:
    """Units, joined to passages; headings stand with what follows them."""
    packed: list[_Unit] = []
    under: list[Heading] = []
    path: tuple[str, ...] = ()
    count = body = 0  # of `packed`: its words, and its units without headings at its end
    for unit in units:
        _, _, more, _, heading = unit
        if body and heading is None and count + more <= words:  # most units
            packed.append(unit)
            count += more
            body = len(packed)
            continue
        is_section = unit.heading is not None and body == len(packed)
        if body and (count + unit.words > words or (is_section and count >= words // _SHORT)):
            yield _piece(text, packed[:body], path)
            rest = packed[body:]
            room = 0 if rest or unit.heading else min(overlap, words - unit.words)
            packed = rest or _last(packed, room)
            count, body = sum(kept.words for kept in packed), 0 if rest else len(packed)
        if not packed:
            count = count_words(unit.header, words)
        if unit.heading is not None:
            under = [*(outer for outer in under if outer.level < unit.heading.level), unit.heading]
        packed.append(unit)
        count += unit.words
        if unit.heading is None:
            path = path if body else tuple(outer.title for outer in under)
            body = len(packed)
    if packed and (last := _piece(text, packed, path if body else tuple(outer.title for outer in under))).text:
        yield last


def _last(units: Sequence[_Unit], words: int) -> list[_Unit]:
    """Return the last units that have at most so many words together, without headings."""
    kept: list[_Unit] = []
    for unit in reversed(units):
        words -= unit.words
        if words < 0 or unit.heading is not None:
            break
        kept.insert(0, unit)
    return kept


def _piece(text: str, units: Sequence[_Unit], path: tuple[str, ...]) -> Piece:
    begin, end, header = units[0].begin, units[-1].end, units[0].header
    body = text[begin:end].strip()
    return Piece(f"{header}\n{body}" if header else body, begin, end, path)


def _units(text: str, headings: Sequence[Heading], words: int) -> Iterator[_Unit]:
    begin = 0
    for heading in headings:
        yield from _blocks(text, begin, heading.begin, words)
        yield _Unit(heading.begin, heading.end, count_words(heading.title, words), heading=heading)
        begin = heading.end
    yield from _blocks(text, begin, len(text), words)


def _blocks(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    """Yield the units of a section: code between fences, then paragraphs, which are lines if no line is blank."""
    bounds = [match.start() for match in _FENCE_LINE.finditer(text, begin, end)]
    for opened, closed in zip(bounds[::2], bounds[1::2], strict=False):
        yield from _plain_blocks(text, begin, opened, words)
        begin = text.find("\n", closed, end) + 1 or end
        yield from _whole_or(_lines, text, opened, begin, words)
    yield from _plain_blocks(text, begin, end, words)


def _plain_blocks(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    begin = _BLANK_LINES.match(text, begin, end).end()  # type: ignore[union-attr]  # it matches nothing, too
    by_lines = _BLANK.search(text, begin, end) is None
    if by_lines and not _ROW.search(text, begin, end):  # most text of HTML: an item is a line
        for first, last in _between(text, begin, end, _LINE):
            count = count_words(text, words, first, last)
            if count > words:
                yield from _sentences(text, first, last, words)
            elif count:
                yield _Unit(first, last, count)
        return
    rows: list[tuple[int, int]] = []
    for first, last in _between(text, begin, end, _LINE if by_lines else _BLANK):
        if text.find("\t", first, last) >= 0 or text.startswith(_BORDERS, first):
            rows += _between(text, first, last, _LINE)
            if by_lines:
                continue
        yield from _table(text, rows, words)
        if not rows or by_lines:
            yield from _items(text, first, last, words)
        rows = []
    yield from _table(text, rows, words)


def _table(text: str, rows: Sequence[tuple[int, int]], words: int) -> Iterator[_Unit]:
    """Yield the rows of a table, the first ones together, with the header before each of the others."""
    if not rows:
        return
    top = 1 + sum(1 for begin, end in rows[1:2] if _RULE.fullmatch(text, begin, end))
    header = text[rows[0][0] : rows[top - 1][1]]
    if count_words(header, words) > words // 2:
        header = ""
    first = rows[min(top, len(rows) - 1)][1]
    yield _unit(text, rows[0][0], first, words)
    for begin, end in rows[top + 1 :]:
        yield _unit(text, begin, end, words, header)


def _items(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    """Yield the items of a list, or a paragraph as a whole."""
    starts = [match.start() for match in _ITEM.finditer(text, begin, end)]
    for first, last in pairwise([begin, *(start for start in starts if start > begin), end]):
        yield from _whole_or(_sentences, text, first, last, words)


def _whole_or(
    split: Callable[[str, int, int, int], Iterator[_Unit]], text: str, begin: int, end: int, words: int
) -> Iterator[_Unit]:
    """Yield a part of a text as one unit, or split if it has too many words."""
    unit = _unit(text, begin, end, words)
    if unit.words > words:
        yield from split(text, begin, end, words)
    elif unit.words:
        yield unit


def _lines(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    for first, last in _between(text, begin, end, _LINE):
        yield from _whole_or(_words, text, first, last, words)


def _sentences(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    """Yield the sentences of a paragraph."""
    with extra("files", "sentences need", ("sentencex",)):
        from sentencex import get_sentence_boundaries
    at, size = begin, _SENTENCES
    while at < end:
        ends = [at + last["end_index"] for last in get_sentence_boundaries("en", text[at : min(end, at + size)])]
        if at + size < end:  # the last sentence may go on
            ends.pop()
        at = ends[-1] if ends else at if size < _SENTENCE else at + size
        for after in ends:
            yield from _whole_or(_words, text, begin, after, words)
            begin = after
        size = _SENTENCES if ends else min(2 * size, _SENTENCE)


def _words(text: str, begin: int, end: int, words: int) -> Iterator[_Unit]:
    """Yield the parts of a sentence or line that has too many words."""
    for match in runs_of_words(text, words, begin, end):
        yield _unit(text, match.start(), match.end(), words)


def _unit(text: str, begin: int, end: int, words: int, header: str = "") -> _Unit:
    return _Unit(begin, end, count_words(text, words, begin, end), header)


def _between(text: str, begin: int, end: int, separator: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text between separators, without empty ones."""
    for match in separator.finditer(text, begin, end):
        if match.start() > begin:
            yield begin, match.start()
        begin = match.end()
    if end > begin:
        yield begin, end
