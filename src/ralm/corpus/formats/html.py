"""Reads HTML: the text that a browser shows, with line breaks between blocks. Needs the extra `files`.

The parser reports tags and texts as it meets them, so broken markup and deep nesting are no problem.
"""

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Final

from lxml import etree

from ralm.corpus import documents, files
from ralm.errors import CorpusError
from ralm.records import Document

_HIDES, _KEEPS, _DRAWS, _TITLE, _HEADING = "hides", "keeps white space", "draws", "title", "h1"
_ROLES: Final = {
    **dict.fromkeys(("script", "style", "template", "noscript"), _HIDES),
    **dict.fromkeys(("pre", "textarea", "listing"), _KEEPS),
    "svg": _DRAWS,
    "title": _TITLE,
    "h1": _HEADING,
}
"""How some tags change the text within them."""
_INLINE: Final = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q ruby rb rp rt s samp small "
    "span strike strong sub sup time tt u var wbr".split()
)
_LEVELS: Final = frozenset(f"h{level}" for level in range(1, 7))
_LINK_SIGNS: Final = ("#", "\N{PILCROW SIGN}", "\N{SECTION SIGN}")
"""The texts of links to a heading, which end it and are no part of its title."""
_EMPTY_HEADING: Final = re.compile(rf"({documents.HEADING_MARK}\d)\n+")
"""The mark of a heading whose text is in a block within it."""
_CELLS: Final = frozenset({"td", "th"})
_EMPTY: Final = re.compile(r"<([a-zA-Z][\w:-]*)((?:\s[^<>]*?)?)/>")
_VOID: Final = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_SPACES: Final = re.compile(r"[ \t\n\r\f]{2,}|[\t\n\r\f]")  # a single space is left as it is, which is faster
_CELL_BREAKS: Final = re.compile(r" *\t[ \t]*")
_NEVER_USED: Final = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
_CHARSET: Final = re.compile(rb"""<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*["']?\s*([\w:.-]+)""", re.IGNORECASE)
_BEFORE_CHARSET: Final = 4096
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_BROWSER_ENCODINGS: Final = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gbk",
    "utf-16": "utf-8",
    "utf-16-le": "utf-8",
}
"""The encodings that browsers use for pages that name these."""


def html_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The page as a document. Its title is that of the page, otherwise its first h1, otherwise the file name; its
    canonical address becomes the metadata `url`."""
    try:
        page = read_page(_decoded(files.content_of(file.path), file), is_xml=file.suffix == ".xhtml")
    except etree.LxmlError as error:
        raise CorpusError(f"{file.path} cannot be read as HTML: {error}.") from None
    title = page.title(_TITLE) or page.title(_HEADING) or file.title
    text, headings = documents.take_headings(page.marked_text)
    yield builder.whole(file.id, title, text, page.metadata, headings)


def read_page(text: str, *, is_xml: bool = False) -> "_Page":
    """The page that HTML describes. Raises `etree.LxmlError`."""
    if is_xml or text.lstrip().startswith("<?xml"):
        text = _EMPTY.sub(_opened_and_closed, text)
    page = _Page()
    parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True)
    parser.feed(text.encode("utf-8", "replace"))
    parser.close()
    return page


class _Page:
    """Receives the tags and texts of a page in order."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self._shown: list[str] = []
        self._last = 0  # how many of these there are up to the last that is not white space
        self._headings: list[tuple[int, str]] = []
        """The places in `_shown` where headings begin, and their levels; without a level, where a title ends."""
        self._titles: dict[str, list[str]] = {_TITLE: [], _HEADING: []}
        self._finished: set[str] = set()
        self._within = dict.fromkeys(_ROLES.values(), 0)

    def title(self, role: str) -> str:
        return " ".join("".join(self._titles[role]).split())

    @property
    def marked_text(self) -> str:
        """The text, with marks of headings."""
        marked, begin = list[str](), 0
        for place, level in self._headings:
            marked += self._shown[begin:place]
            marked.append(f"{documents.HEADING_MARK}{level}")
            begin = place
        marked += self._shown[begin:]
        lines = (_without_empty_cells(line) for line in "".join(marked).split("\n") if line)
        return _EMPTY_HEADING.sub(r"\1", "\n".join(line for line in lines if line))

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if role := _ROLES.get(tag):
            self._within[role] += 1
        elif tag == "link" and "canonical" in attributes.get("rel", "").lower().split():
            self.metadata.setdefault("url", attributes.get("href", "").strip())
        self._break(tag)
        if tag in _LEVELS:
            self._headings.append((len(self._shown), tag[1]))

    def end(self, tag: str) -> None:
        if tag in _LEVELS and self._headings:
            begin = self._headings[-1][0]
            if self._last <= begin:
                self._headings.pop()
            elif self._shown[-1] in _LINK_SIGNS and "\n" not in "".join(self._shown[begin:]):
                self._headings.append((len(self._shown) - 1, ""))
        if role := _ROLES.get(tag):
            self._within[role] = max(0, self._within[role] - 1)
            if self._titles.get(role):
                self._finished.add(role)
        self._break(tag)

    def data(self, text: str) -> None:
        if self._within[_HIDES]:
            return
        if documents.HEADING_MARK in text:
            text = text.replace(documents.HEADING_MARK, "")
        is_title = self._within[_TITLE]
        if (is_title or self._within[_HEADING]) and not self._within[_DRAWS]:
            for role in (_TITLE, _HEADING):
                if self._within[role] and role not in self._finished and (self._titles[role] or not text.isspace()):
                    self._titles[role].append(text)
        if not is_title:
            self._show(text)

    def comment(self, text: str) -> None:
        """Comments are not shown."""

    def pi(self, target: str, data: str) -> None:
        """Instructions are not shown."""

    def close(self) -> "_Page":
        return self

    def _show(self, text: str) -> None:
        """Add text; outside of preformatted text, white space is one space, and none begins a line."""
        if not self._within[_KEEPS]:
            text = _SPACES.sub(" ", text)
            if not self._shown or self._shown[-1] in "\t\n":
                text = text.lstrip(" ")
        if text:
            self._shown.append(text)
            self._last = self._last if text.isspace() else len(self._shown)

    def _break(self, tag: str) -> None:
        if tag in _CELLS:
            self._shown.append("\t")
        elif tag not in _INLINE:
            self._shown.append("\n")


def _without_empty_cells(line: str) -> str:
    return (_CELL_BREAKS.sub("\t", line).strip("\t") if "\t" in line else line).rstrip()


def _opened_and_closed(tag: re.Match[str]) -> str:
    """An empty element of XML, such as `<script src="x"/>`, as HTML, where it would include the rest of the page."""
    name, attributes = tag.groups()
    return f"<{name}{attributes}>" if name.lower() in _VOID else f"<{name}{attributes}></{name}>"


def _decoded(content: bytes, file: files.File) -> str:
    """The text of a page in the encoding of its byte order mark, else the one that it names, else UTF-8."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decode_as(content, encoding, file)
    declared = _CHARSET.search(content[:_BEFORE_CHARSET])
    if declared is None:
        return files.decode(content, str(file.path))
    name = declared[1].decode("ascii")
    try:
        encoding = codecs.lookup(name).name
    except LookupError:
        encoding = name
    return _decode_as(content, _BROWSER_ENCODINGS.get(encoding, encoding), file)


def _decode_as(content: bytes, encoding: str, file: files.File) -> str:
    try:
        if encoding in _NEVER_USED:
            raise LookupError
        return content.decode(encoding)
    except UnicodeError as error:
        raise CorpusError(f"{file.path} is not in the encoding {encoding} that it names: {error}.") from None
    except LookupError:
        raise CorpusError(f"{file.path} names an encoding that is unknown, {encoding}.") from None
