"""Reads text, Markdown, reStructuredText and YAML: a file is a document."""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from ralm.corpus import documents, files
from ralm.records import Document, Heading

_MARKDOWN: Final = (".md", ".markdown")
_RST: Final = ".rst"
_LINES_READ: Final = 50
_FENCES: Final = ("```", "~~~")
_RULES: Final = "=-~^\"'`#*+:._"
_MARKDOWN_HEADING: Final = re.compile(r"#{1,6}[ \t]+(.)(.*)")
_SETEXT_UNDERLINE: Final = re.compile(r"(=|-)\1{2,}\s*$")
_FRONT_MATTER: Final = re.compile(r"---[^\S\n]*\n(.{,65536}?\n)(?:---|\.\.\.)[^\S\n]*(?:\n|$)", re.DOTALL)
_RST_UNDERLINE: Final = re.compile(r"([=\-~^\"'`#*+:._])\1{2,}\s*$")


def text_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The whole file as a document. Its title is that of its front matter, else its first heading, else the file name;
    the other fields of the front matter are metadata."""
    text = files.decode(files.content_of(file.path), str(file.path)).removeprefix(files.BYTE_ORDER_MARK)
    matter, text = split_front_matter(text) if file.suffix in _MARKDOWN else ({}, text)
    headings = list(find_headings(text, file.suffix))
    title = " ".join(str(matter.pop("title", "") or "").split())
    if not title:
        top = sum(len(line) + 1 for line in text.split("\n", _LINES_READ)[:_LINES_READ])
        marked = (one for one in headings if one.level == 1 or text.startswith("#", one.begin))  # not by a rule below
        title = next((one.title for one in marked if one.begin < top), file.title)
    yield builder.whole(file.id, title, text, matter, headings)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The fields of the YAML before a text of Markdown, and the text after it; a text that begins with no YAML object,
    or with one that has aliases, stays whole."""
    found = _FRONT_MATTER.match(text.replace("\r\n", "\n") if text.startswith("---") else "")
    if found is None:
        return {}, text
    try:
        fields = yaml.load(found.group(1), _WithoutAliases)  # noqa: S506  (it is a safe loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text
    if not isinstance(fields, dict):
        return {}, text
    return {str(name): value for name, value in fields.items()}, found.string[found.end() :]


class _WithoutAliases(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Reads plain data; aliases, by which a few lines become a million values, are errors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def find_headings(text: str, suffix: str) -> Iterator[Heading]:
    """The headings of Markdown, outside of code, and of reStructuredText, where each underline has a level in the order
    in which they occur; none of other formats."""
    if suffix not in (*_MARKDOWN, _RST):
        return
    is_markdown = suffix in _MARKDOWN
    levels = ["=", "-"] if is_markdown else []
    in_code, before, line = False, 0, ""
    begin = end = 0
    for raw in text.split("\n"):
        begin, end = end, min(end + len(raw) + 1, len(text))
        above, line = line, raw.strip()
        if is_markdown and line.startswith(_FENCES):
            in_code = not in_code
        elif in_code:
            line = ""
        elif is_markdown and line.startswith("#") and (heading := _MARKDOWN_HEADING.match(line)):
            title = heading.group(1) + heading.group(2).rstrip("#").rstrip(" \t")
            yield Heading(begin, end, len(line) - len(line.lstrip("#")), title)
            line = ""
        elif above and line and line[0] in _RULES and _is_underlined(above, line, suffix):
            if line[0] not in levels:
                levels.append(line[0])
            yield Heading(before, end, levels.index(line[0]) + 1, above)
            line = ""
        before = begin


def _is_underlined(line: str, below: str, suffix: str) -> bool:
    if suffix in _MARKDOWN:
        return _SETEXT_UNDERLINE.match(below) is not None and not line.startswith(("|", "-", "*", "+", ">", "#"))
    return bool(_RST_UNDERLINE.match(below)) and len(below) >= len(line) and not _RST_UNDERLINE.match(line)
