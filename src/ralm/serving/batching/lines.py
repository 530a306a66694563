"""What is read next of the texts that many threads wait for: a little of each, so that no long one holds up the others.

A line is the texts that one thread is continuing. Texts that grew by a token take part in every step. Other texts, such
as a new prompt or one with a new passage in front, are read in chunks between the steps of the others: half of a chunk
goes to the line that waits longest, half to the one with the least left.

Works on token ids; knows nothing of threads or models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ralm.lm.prefixes import shared_tokens
from ralm.records import IntArray


@dataclass(slots=True, eq=False)
class Line:
    """The texts (int64) that one thread waits for, how many tokens of each are read, and what is held of them.

    `held` are the texts whose keys and values the model has. Without `texts` nothing is waited for, and the line is
    idle.
    """

    texts: Sequence[IntArray] = ()
    held: Sequence[IntArray] = ()
    read: list[int] = field(default_factory=list)

    def wait_for(self, texts: Sequence[IntArray]) -> None:
        """Wait for the next tokens of these texts; what they share with the texts held is read."""
        self.texts = texts
        self.read = [self._shared(place, text) for place, text in enumerate(texts)]

    def drop(self) -> None:
        """Forget what is held."""
        self.held, self.read = (), [0] * len(self.texts)

    @property
    def left(self) -> int:
        """Tokens to read before the next tokens of all its texts are known."""
        return sum(len(text) - read for text, read in zip(self.texts, self.read, strict=True))

    @property
    def grew(self) -> bool:
        """Whether no text has more than one token to read."""
        return all(len(text) - read <= 1 for text, read in zip(self.texts, self.read, strict=True))

    @property
    def columns(self) -> int:
        """Tokens of its longest text."""
        return max(map(len, self.texts or self.held), default=0)

    def advance(self, tokens: int) -> None:
        """Read this many tokens more, of the first texts first."""
        for place, text in enumerate(self.texts):
            new = min(tokens, len(text) - self.read[place])
            self.read[place] += new
            tokens -= new
        self.held = [text[:read] for text, read in zip(self.texts, self.read, strict=True) if read]

    @property
    def complete(self) -> bool:
        """Whether all of its texts are held whole."""
        return all(read == len(text) for text, read in zip(self.texts, self.read, strict=True))

    def _shared(self, place: int, text: IntArray) -> int:
        """How many tokens a text shares with one that is held, but for its last."""
        grown = place < len(self.held) and np.array_equal(self.held[place], text[:-1])
        if grown:
            return len(text) - 1
        return min(max((shared_tokens(one, text) for one in self.held), default=0), len(text) - 1)


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """`most` divided among wishes, the oldest first in the list: half goes to the oldest, the rest to the smallest.

    So a small wish is soon fulfilled, a large one is not put off for good, and few are fulfilled in small parts.
    """
    places = range(len(wanted))
    oldest = _poured(wanted, places, most - most // 2)
    left = [want - given for want, given in zip(wanted, oldest, strict=True)]
    smallest = _poured(left, sorted(places, key=left.__getitem__), most - sum(oldest))
    return [first + more for first, more in zip(oldest, smallest, strict=True)]


def _poured(wanted: Sequence[int], order: Iterable[int], most: int) -> list[int]:
    """`most` divided among wishes: each gets, in this order, what it wants of what is left."""
    given = [0] * len(wanted)
    for place in order:
        given[place] = min(wanted[place], most)
        most -= given[place]
    return given


def that_fit(lines: Iterable[Line], tokens: int) -> list[Line]:
    """The lines, in order, whose texts fit into a cache of this many tokens when padded to the longest; the first one
    always."""
    fit: list[Line] = []
    rows = longest = 0
    for line in lines:
        more = rows + len(line.texts or line.held)
        wide = max(longest, line.columns)
        if not fit or more * wide <= tokens:
            fit.append(line)
            rows, longest = more, wide
    return fit
