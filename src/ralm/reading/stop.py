"""Text up to the first stop string, as its pieces come.

Knows pieces of text; knows nothing of tokens or models.
"""

from collections.abc import Sequence

from ralm.reading.pieces import GeneratedText


class UntilStop:
    """Hands on pieces that are certain not to belong to a stop string; `found` once there was one.

    The end of the text that could still become a stop string is held back. The stop string itself is left out.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.found = False
        self._stop = stop
        self._held: list[GeneratedText] = []

    def add(self, pieces: Sequence[GeneratedText]) -> list[GeneratedText]:
        """What has become certain with these pieces, in order; nothing after a stop string."""
        certain: list[GeneratedText] = []
        for piece in pieces:
            if not self.found:
                self._held.append(piece)
                certain += self._certain()
        return certain

    def rest(self) -> list[GeneratedText]:
        """What was held back when the writing ended; nothing after a stop string."""
        held, self._held = self._held, []
        return held

    def _certain(self) -> list[GeneratedText]:
        text = "".join(piece.text for piece in self._held)
        ends = [text.index(string) for string in self._stop if string in text]
        self.found = bool(ends)
        if self.found:
            certain, _ = _split(self._held, min(ends))
            self._held = []
        else:
            overlap = max((_overlap(text, string) for string in self._stop), default=0)
            certain, self._held = _split(self._held, len(text) - overlap)
        return certain


def _overlap(text: str, string: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `string`."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


def _split(pieces: Sequence[GeneratedText], length: int) -> tuple[list[GeneratedText], list[GeneratedText]]:
    """The first `length` characters of the pieces, and the others; a piece that is cut leaves its tokens before it."""
    first, others = [], []
    for piece in pieces:
        if length >= len(piece.text):
            first.append(piece)
        elif length > 0:
            first.append(GeneratedText(text=piece.text[:length], passage=piece.passage, tokens=piece.tokens))
            others.append(GeneratedText(text=piece.text[length:], passage=piece.passage))
        else:
            others.append(piece)
        length -= len(piece.text)
    return first, others
