"""Reads text, Markdown and reStructuredText: a file is a document."""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final

from ralm.corpus import documents, files
from ralm.records import Document, Heading

_MARKDOWN: Final = (".md", ".markdown")
_RST: Final = ".rst"
_LINES_READ: Final = 50
_LINE: Final = re.compile(r"[^\n]*\n?")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_MARKDOWN_HEADING: Final = re.compile(r"#{1,6}[ \t]+(.+?)[ \t]*#*\s*$")
_MARKDOWN_UNDERLINE: Final = re.compile(r"={3,}\s*$")
_SETEXT_UNDERLINE: Final = re.compile(r"(=|-)\1{2,}\s*$")
_FRONT_MATTER: Final = re.compile(r"---\n.*?\n---\n", re.DOTALL)
_RST_UNDERLINE: Final = re.compile(r"([=\-~^\"'`#*+:._])\1{2,}\s*$")


def text_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The whole file as a document; its title is the first heading or the file name."""
    text = files.decode(files.content_of(file.path), str(file.path)).removeprefix(files.BYTE_ORDER_MARK)
    headings = list(find_headings(text, file.suffix))
    yield builder.whole(file.id, _title(text, file.suffix, file.title), text, headings=headings)


def find_headings(text: str, suffix: str) -> Iterator[Heading]:
    """The headings of Markdown, outside of code, and of reStructuredText, where each underline has a level in the order
    in which they occur; none of other formats."""
    if suffix not in (*_MARKDOWN, _RST):
        return
    levels = ["=", "-"] if suffix in _MARKDOWN else []
    in_code, before, line = False, 0, ""
    matter = _FRONT_MATTER.match(text)
    for match in _LINE.finditer(text, matter.end() if matter else 0):
        above, line = line, match.group().strip()
        if suffix in _MARKDOWN and _FENCE.match(line):
            in_code = not in_code
        elif in_code:
            line = ""
        elif suffix in _MARKDOWN and (heading := _MARKDOWN_HEADING.match(line)):
            yield Heading(match.start(), match.end(), len(line) - len(line.lstrip("#")), heading.group(1))
            line = ""
        elif above and _is_underlined(above, line, suffix):
            if line[0] not in levels:
                levels.append(line[0])
            yield Heading(before, match.end(), levels.index(line[0]) + 1, above)
            line = ""
        before = match.start()


def _is_underlined(line: str, below: str, suffix: str) -> bool:
    if suffix in _MARKDOWN:
        return _SETEXT_UNDERLINE.match(below) is not None and not line.startswith(("|", "-", "*", "+", ">", "#"))
    return bool(_RST_UNDERLINE.match(below)) and len(below) >= len(line) and not _RST_UNDERLINE.match(line)


def _title(text: str, suffix: str, name: str) -> str:
    """The first heading of a text with this suffix; `name` if it has none or if its format has no headings."""
    lines = [match.group() for match in islice(_LINE.finditer(text), _LINES_READ)]
    if suffix in _MARKDOWN:
        return _markdown_heading(lines) or name
    if suffix == _RST:
        return _underlined(lines, _RST_UNDERLINE) or name
    return name


def _markdown_heading(lines: list[str]) -> str:
    """The first `# heading` outside of code, otherwise the first line underlined with `=`."""
    in_code = False
    for line in lines:
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and (heading := _MARKDOWN_HEADING.match(line)):
            return heading.group(1)
    return _underlined(lines, _MARKDOWN_UNDERLINE)


def _underlined(lines: list[str], underline: re.Pattern[str]) -> str:
    """The first line with an underline at least as long as the line; overlines are not headings."""
    for line, below in pairwise(line.strip() for line in lines):
        if line and underline.match(below) and len(below) >= len(line) and not underline.match(line):
            return line
    return ""
