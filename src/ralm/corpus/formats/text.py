"""Reads text, Markdown and reStructuredText: a file is a document."""

from collections.abc import Iterator

from ralm.corpus.formats.file import File, content_of
from ralm.corpus.headings import title_of
from ralm.corpus.maker import DocumentMaker
from ralm.corpus.text import BYTE_ORDER_MARK, decode
from ralm.records import Document


def text_documents(file: File, maker: DocumentMaker) -> Iterator[Document]:
    """The whole file as a document; its title is the first heading or the file name (`title_of`)."""
    text = decode(content_of(file.path), str(file.path)).removeprefix(BYTE_ORDER_MARK)
    yield maker.whole(file.id, title_of(text, file.suffix, file.title), text)
