"""Characters that act on a terminal instead of being seen, made visible.

Escape sequences retitle windows and fill clipboards, carriage returns write over lines, and bidirectional overrides
show a text in another order than it has. Passages, titles and file names come from anywhere, so what is printed for a
person goes through here. Knows characters alone; knows nothing of streams.
"""

import os
import re
from typing import Final

_BEYOND_ASCII: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Delete and the C1 controls, marks and overrides of direction, separators of lines, and halves of characters."""
_ACTING: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{_BEYOND_ASCII}]|\r(?!\n)")
_ACTING_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
_BREAKS: Final = re.compile(r"\r\n|[\n\t]")


def visible(text: str) -> str:
    """The text with every character that acts on a terminal as an escape, `\\x1b`; lines and tabs stay as they are."""
    return _ACTING.sub(lambda found: _escape(found[0]), text)


def one_line(text: str) -> str:
    """The same for a name or a message, whose line ends and tabs are shown as escapes too."""
    return _BREAKS.sub(lambda found: _escape(found[0]), visible(text))


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that any file can record: bytes of it that are not UTF-8 as escapes, `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def printable_json(json: str) -> str:
    """JSON as `json.dumps` writes it, with these characters as JSON's own escapes: any reader reads the same text."""
    return _ACTING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def _escape(characters: str) -> str:
    return characters.encode("unicode_escape").decode()
