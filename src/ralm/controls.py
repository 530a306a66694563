"""Makes characters visible that would otherwise control the terminal.

Escape sequences can retitle windows and fill clipboards, carriage returns can overwrite lines, and bidirectional
overrides can show a text in a different order. Passages, titles and file names are untrusted, so everything that is
printed for a person goes through here. Knows only characters; knows nothing of streams.
"""

import os
import re
from typing import Final

_BEYOND_ASCII: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Delete and the C1 controls, direction marks and overrides, line separators, and surrogates."""
_ACTING: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f{_BEYOND_ASCII}]|\r(?!\n)")
_ACTING_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
_BREAKS: Final = re.compile(r"\r\n|[\n\t]")


def visible(text: str) -> str:
    """The text with control characters as escapes such as `\\x1b`; line breaks and tabs stay as they are."""
    return _ACTING.sub(lambda found: _escape(found[0]), text)


def one_line(text: str) -> str:
    """The same for a name or a message: line breaks and tabs become escapes too."""
    return _BREAKS.sub(lambda found: _escape(found[0]), visible(text))


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that any file can hold: bytes that are not UTF-8 become escapes such as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def printable_json(json: str) -> str:
    """Output of `json.dumps` with these characters as JSON escapes, so that any reader decodes the same text."""
    return _ACTING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def _escape(characters: str) -> str:
    return characters.encode("unicode_escape").decode()
