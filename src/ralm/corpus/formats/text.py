"""Reads text, Markdown, reStructuredText, YAML and Jupyter notebooks: a file is a document."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from ralm.corpus import documents, files
from ralm.corpus.structure import find_headings
from ralm.errors import CorpusError
from ralm.records import Document

_MARKDOWN: Final = (".md", ".markdown")
_LINES_READ: Final = 50
_CODE_OR_COMMENT: Final = re.compile(
    r"^[ \t>]*(?P<fence>```|~~~)[^\n]*+\n(?:(?![ \t>]*(?P=fence))[^\n]*+(?:\n|\Z))*+[^\n]*+"
    r"|(?<!`)(?P<ticks>`{1,4})(?!`)[^\n]*?(?<!`)(?P=ticks)(?!`)"
    r"|^ {0,3}(?P<line>\[(?://|comment)\]:[^\n]*+|<!--(?:(?!-->)[\s\S])*+(?:-->)?)"
    r"|<!--(?:(?!-->)[\s\S])*+(?P<end>-->)?",
    re.MULTILINE,
)
_RST_COMMENT: Final = re.compile(
    r"^\.\.[^\S\n]++(?![\[_|]|\S[^\n]*::)[^\n]*+(?:(?:[^\S\n]*+\n)*+[^\S\n]++\S[^\n]*+)*+", re.MULTILINE
)
_FRONT_MATTER: Final = re.compile(r"---[^\S\n]*\n(.{,65536}?\n)(?:---|\.\.\.)[^\S\n]*(?:\n|$)", re.DOTALL)


def text_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the whole file, titled by its front matter, first heading or name; other front matter is metadata."""
    text = files.whole_text(file.path, encoding=file.encoding)
    matter: dict[str, Any] = {}
    if file.suffix in _MARKDOWN:
        matter, text = split_front_matter(text)
        text = _without_comments(text)
    elif file.suffix == ".rst":
        text = _RST_COMMENT.sub("", text)
    has_headings = file.suffix in (*_MARKDOWN, ".rst")
    headings = [*find_headings(text, rst=file.suffix == ".rst")] if has_headings else []
    title = " ".join(documents.name_text(matter.pop("title", "") or "").split())
    if not title:
        top = sum(len(line) + 1 for line in text.split("\n", _LINES_READ)[:_LINES_READ])
        marked = (heading for heading in headings if heading.level == 1 or text.startswith("#", heading.begin))
        title = next((heading.title for heading in marked if heading.begin < top), file.title)
    yield builder.whole(file.id, title, text, matter, headings)


def notebook_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield a notebook as a document: its cells in order, code between fences, without what they print."""
    content = files.whole_text(file.path, encoding=file.encoding)
    try:
        notebook: Any = json.loads(content)
        cells = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorpusError(f"{file.path} is not a Jupyter notebook of format 4, or damaged.") from None
    blocks = (
        f"```\n{source}\n```" if kind == "code" else _without_comments(source) for kind, source in cells if source
    )
    text = "\n\n".join(block for block in blocks if block.strip())
    yield builder.markdown(file, "", text)


def _without_comments(text: str) -> str:
    """Return Markdown without comments, outside of code; one that no `-->` ends is one if it begins a line."""
    if "<!--" not in text and "]:" not in text:
        return text
    return _CODE_OR_COMMENT.sub(lambda part: "" if part["line"] or part["end"] else part[0], text)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the fields of the YAML before a text of Markdown, and the text after it; none if they have aliases."""
    matter = _FRONT_MATTER.match(text if text.startswith("---") else "")
    if matter is None:
        return {}, text
    try:
        fields = yaml.load(matter.group(1), _WithoutAliases)  # noqa: S506  (it is a safe loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text
    if not isinstance(fields, dict):
        return {}, text
    return {str(name): value for name, value in fields.items()}, matter.string[matter.end() :]


class _WithoutAliases(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Reads plain data; aliases, by which a few lines become a million values, are errors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)
