"""Text up to the first stop string, piece by piece.

Knows pieces of text and the tokens that they are made of; knows nothing of models.
"""

from collections.abc import Sequence

from ralm.protocols import Tokenizer
from ralm.reading.pieces import GeneratedText, GeneratedToken, Pieces
from ralm.records import IntArray


class UntilStop:
    """Passes on pieces that cannot belong to a stop string; `found` is True after a stop string.

    The end of the text is held back while it could still become a stop string. The stop string itself is left out.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.found = False
        self._stop = stop
        self._held: list[GeneratedText] = []

    def add(self, pieces: Sequence[GeneratedText]) -> list[GeneratedText]:
        """The pieces that can now be passed on, in order; nothing after a stop string."""
        certain: list[GeneratedText] = []
        for piece in pieces:
            if not self.found:
                self._held.append(piece)
                certain += self._certain()
        return certain

    def rest(self) -> list[GeneratedText]:
        """The pieces that were held back until the end; nothing after a stop string."""
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


class StoppedText:
    """The text that tokens add to a prompt (int64), up to the first stop string; `found` is True after one."""

    def __init__(self, prompt: IntArray, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._pieces = Pieces(prompt, tokenizer)
        self._until = UntilStop(stop)

    @property
    def found(self) -> bool:
        """Whether a stop string was found."""
        return self._until.found

    def add(self, token: GeneratedToken) -> list[GeneratedText]:
        """The pieces that can be passed on after this token, in order."""
        return self._until.add(self._pieces.add(token))

    def rest(self) -> list[GeneratedText]:
        """The pieces that were held back, or incomplete, until the end."""
        return [*self._until.add(self._pieces.rest()), *self._until.rest()]


def _overlap(text: str, string: str) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of `string`."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


def _split(pieces: Sequence[GeneratedText], length: int) -> tuple[list[GeneratedText], list[GeneratedText]]:
    """The first `length` characters of the pieces, and the rest; the tokens of a cut piece go with its first part."""
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
