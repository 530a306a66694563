"""Reads HTML as Markdown: what a browser shows, without links, pictures and emphasis. Needs the extra `files`.

turbohtml decodes and parses as browsers do, in time and memory that grow with the page, however deep its tags are.
"""

import re
from collections.abc import Iterator
from typing import Final

from turbohtml import Element, Markdown, parse

from ralm.corpus import documents, files
from ralm.errors import CorpusError
from ralm.records import Document

_MAX_PAGE: Final = 1 << 25  # a tree of it takes up to 60 times as many bytes
_HIDDEN: Final = (
    "title, noscript, template, [hidden], dialog:not([open]), "
    "canvas, object, audio, video, iframe, svg desc, svg metadata, annotation, annotation-xml, "  # for older browsers
    "nav, [role=navigation i], div.sphinxsidebar, div.related, .sidebar-drawer, .toc-drawer, .related-pages"
)
_HIDING_STYLE: Final = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|(?:content-)?visibility\s*:\s*(?:hidden|collapse)"
    r"|(?:opacity|font-size)\s*:\s*(?:0+\.?|0*\.0+)(?:[a-z]+|%)?)\s*(?:!\s*important\s*)?(?:;|$)",
    re.IGNORECASE,
)
_CSS_COMMENT: Final = re.compile(r"/\*(?:[^*]|\*(?!/))*+(?:\*/)?")
_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
_LINK_SIGNS: Final = ("#", "\N{PILCROW SIGN}", "\N{SECTION SIGN}")
"""The texts of links to a heading, which are no part of it."""


def _cell(_: object, text: str) -> str:
    """Return a cell of a row; one of several lines, as in a table that lays out a page, is a block of its own."""
    text = text.strip()
    return f"\n\n{text}\n\n" if "\n" in text else f"{text}\t"


def _row(_: object, cells: str) -> str:
    return "\t".join(cell.strip(" ") for cell in cells.rstrip("\t").split("\t")) + "\n"


def _block(_: object, text: str) -> str:
    return f"\n\n{text}\n\n"


def _heading(heading: Element, text: str) -> str:
    title = " ".join(text.split())
    return f"\n\n{'#' * int(heading.tag[1])} {title}\n\n" if title else ""


_MARKDOWN: Final = Markdown(
    links=Markdown.Links(ignore=True),
    images=Markdown.Images(mode="ignore"),
    inline=Markdown.Inline(ignore_emphasis=True),
    escaping=Markdown.Escaping(mode="none", asterisks=False, underscores=False),
    strip=("code", "blockquote"),
    converters={
        "td": _cell,
        "th": _cell,
        "tr": _row,
        **dict.fromkeys(("table", "caption"), _block),
        **dict.fromkeys(_HEADINGS, _heading),
    },
)
_BLANKS: Final = re.compile(r"(?<![ \t])[ \t]++$|\n(?=\n\n)", re.MULTILINE)
_EMPTY: Final = re.compile(rb"<([a-zA-Z][\w:-]*)((?:\s[^<>]*?)?)/>")
_XML_ENCODING: Final = re.compile(rb"""\A\s*<\?xml[^>]*?\bencoding\s*=\s*["']([\w.:-]+)[^>]*>""")
_VOID: Final = frozenset(b"area base br col embed hr img input link meta param source track wbr".split())


def html_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the page, titled by its title, its first heading or its name; its canonical address is metadata.

    Raises CorpusError if it would take gigabytes.
    """
    content = files.content_of(file.path)
    if len(content) > _MAX_PAGE:
        raise CorpusError(f"{file.path} has more than {_MAX_PAGE >> 20} MiB of HTML; split it.")
    if file.suffix == ".xhtml" or content.lstrip().startswith(b"<?xml"):
        content = _EMPTY.sub(_opened_and_closed, _XML_ENCODING.sub(rb'<meta charset="\1">', content))
    page = parse(content, positions=False)
    title = next((title.text for title in page.select("title:not(svg *)") if title.text.strip()), "")
    canonical = page.select_one('link[rel~="canonical" i]')
    url = str(canonical.attrs.get("href") or "").strip() if canonical else ""
    for hidden in page.select(_HIDDEN):
        hidden.decompose()
    for styled in page.select("[style]:not(html, body)"):  # scripts show a whole page
        if _HIDING_STYLE.search(_CSS_COMMENT.sub(" ", str(styled.attrs["style"]))):
            styled.decompose()
    for link in page.select(f":is({', '.join(_HEADINGS)}) a"):
        if link.text.strip() in _LINK_SIGNS:
            link.decompose()
    yield builder.markdown(file, title, _BLANKS.sub("", page.to_markdown(_MARKDOWN)).strip(), {"url": url})


def _opened_and_closed(tag: re.Match[bytes]) -> bytes:
    """Return an empty element of XML, such as `<script src="x"/>`, closed as HTML needs it."""
    name, attributes = tag.groups()
    return b"<%b%b>" % (name, attributes) if name.lower() in _VOID else b"<%b%b></%b>" % (name, attributes, name)
