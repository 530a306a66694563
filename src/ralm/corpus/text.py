"""Reading text files: UTF-8, or one sentence that says what is wrong."""

from pathlib import Path
from typing import Final

from ralm.errors import CorpusError, InputError, TextError

BYTE_ORDER_MARK: Final = "\ufeff"


def read_text(path: Path) -> str:
    """A text to evaluate, as it is in the file, line ends and all.

    Raises TextError where the file is missing, unreadable, empty or not UTF-8.
    """
    if not path.is_file():
        what = "is a folder, not a text file" if path.is_dir() else "does not exist"
        raise TextError(f"{path} {what}.")
    text = read_utf8(path, TextError)
    if not text.strip():
        raise TextError(f"{path} is empty.")
    return text


def read_utf8(path: Path, error: type[InputError] = CorpusError) -> str:
    """The whole of a file as text, or `error` where it cannot be opened or is not UTF-8."""
    try:
        content = path.read_bytes()
    except OSError as refused:
        raise error(f"{path} cannot be read: {refused.strerror}.") from None
    return decode(content, str(path), error)


def decode(content: bytes, where: str, error: type[InputError] = CorpusError, *, offset: int = 0) -> str:
    """Bytes as UTF-8 text, with line ends as they are.

    `where` names the file in the message of `error`, and `offset` says at which byte of it `content` begins.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise error(
            f"{where} is not UTF-8: byte {offset + bad.start:,} is 0x{content[bad.start]:02x}. Convert it, for "
            "instance with iconv -f latin1 -t utf-8."
        ) from None
