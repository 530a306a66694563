"""Reads messages of e-mail: the text, with sender, recipients and date as metadata."""

from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, MIMEPart
from email.policy import EmailPolicy, default
from typing import Any, Final

from ralm.corpus import documents, files
from ralm.errors import CorpusError, RalmError, short_message
from ralm.records import Document

_FIELDS: Final = ("from", "to", "cc", "date")
_ASCII: Final = ("us-ascii", "ascii")
_MAX_STEPS: Final = 1 << 31  # some seconds: a header takes the square of its length, and is parsed twice


def mail_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """Yield the message, without attachments, titled by its subject or the file name; CorpusError if it is damaged."""
    try:
        content = files.content_of(file.path)
        lines = content.count(b"\n") + content.count(b"\r")
        message = message_from_bytes(content, policy=_bounded_policy(f"{file.path}", lines))
        body = message.get_body(("plain", "html"))
        text = "" if body is None else _content(body)
        metadata = {name: str(message[name]) for name in _FIELDS if message[name]}
        title = str(message["subject"] or file.title)
        is_html = body is not None and body.get_content_subtype() == "html"
    except RalmError:
        raise
    except Exception as error:  # noqa: BLE001  # the parser of the standard library raises many kinds
        raise CorpusError(f"{file.path} is not a message of e-mail, or damaged: {short_message(error)}.") from None
    if is_html:
        from ralm.corpus.formats.html import read_page, shown_markdown

        yield builder.markdown(file, title, shown_markdown(read_page(text, str(file.path))), metadata)
    else:
        yield builder.whole(file.id, " ".join(title.split()), files.line_feeds(text), metadata)


def _content(body: MIMEPart) -> str:
    """Return the text of a message; it is UTF-8 if its charset is ASCII, missing or unknown."""
    content = body.get_payload(decode=True)
    assert isinstance(content, bytes), "a body has no parts"
    charset = body.get_content_charset("us-ascii")
    try:
        return content.decode("utf-8" if charset in _ASCII else charset, "replace")
    except (LookupError, ValueError):
        return content.decode("utf-8", "replace")


def _bounded_policy(where: str, lines: int) -> "EmailPolicy[EmailMessage]":
    """Return how a message of so many lines is parsed; a CorpusError, naming `where`, ends what would take long."""
    steps = lines << 9

    def count(more: int) -> None:
        nonlocal steps
        steps += more
        if steps > _MAX_STEPS:
            raise CorpusError(f"{where} has too long headers, or too many headers, parts or lines.")

    def header(name: str, value: str) -> Any:
        count(len(value) ** 2)
        return default.header_factory(name, value)

    def part(policy: Any) -> EmailMessage:
        count((lines << 5) + (1 << 15))  # a line is compared with the boundaries of all parts that it is in
        return EmailMessage(policy)

    return default.clone(header_factory=header, message_factory=part)
