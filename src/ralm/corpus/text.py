"""Reading text files: UTF-8, or one sentence that says what is wrong."""

from pathlib import Path

from ralm.errors import CorpusError, InputError, TextError


def read_text(path: Path) -> str:
    """A text to evaluate, as it is in the file.

    Raises TextError where the file is missing, empty or not UTF-8.
    """
    if not path.is_file():
        what = "is a folder, not a text file" if path.is_dir() else "does not exist"
        raise TextError(f"{path} {what}.")
    text = decode(path.read_bytes(), str(path), TextError)
    if not text.strip():
        raise TextError(f"{path} is empty.")
    return text


def decode(content: bytes, where: str, error: type[InputError] = CorpusError) -> str:
    """Bytes as UTF-8 text, with line ends as they are; `where` names the file in the message of `error`."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise error(
            f"{where} is not UTF-8: byte {bad.start:,} is 0x{content[bad.start]:02x}. Convert it, for instance with "
            "iconv -f latin1 -t utf-8."
        ) from None
