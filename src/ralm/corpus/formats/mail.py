"""Reads messages of e-mail: the text, with sender, recipients and date as metadata."""

from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Final

from ralm.corpus import documents, files
from ralm.errors import CorpusError, short_message
from ralm.records import Document, Heading

_FIELDS: Final = ("from", "to", "cc", "date")


def mail_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The message as a document, without attachments; its title is the subject, otherwise the file name.

    Raises CorpusError if it cannot be decoded.
    """
    try:
        message = message_from_bytes(files.content_of(file.path), policy=policy.default)
        body = message.get_body(("plain", "html"))
        text = "" if body is None else str(body.get_content())
        metadata = {name: str(message[name]) for name in _FIELDS if message[name]}
        title = " ".join(str(message["subject"] or file.title).split())
        is_html = body is not None and body.get_content_subtype() == "html"
    except CorpusError:
        raise
    except Exception as error:  # noqa: BLE001  # the parser of the standard library raises many kinds
        raise CorpusError(f"{file.path} is not a message of e-mail, or damaged: {short_message(error)}.") from None
    headings: list[Heading] = []
    if is_html:
        from ralm.corpus.formats.html import read_page

        text, headings = documents.take_headings(read_page(text).marked_text)
    yield builder.whole(file.id, title, text, metadata, headings)
