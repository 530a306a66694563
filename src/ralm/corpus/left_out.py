"""What a corpus lacks of its sources, and why. Knows reasons and names; knows nothing of files."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

BROKEN_LINES: Final = "broken lines"
NOT_JSON: Final = "fields of metadata that JSON cannot hold"
NO_TEXT: Final = "documents without text"
_EXAMPLES_KEPT: Final = 5


@dataclass(slots=True)
class LeftOut:
    """Counts what was left out of a corpus by reason, and keeps the first few examples of each reason: the name of a
    file or field, or a sentence that says what is wrong where."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, example: str) -> None:
        """Count one thing that is left out for this reason; equal examples are kept once."""
        self.counts[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES_KEPT and example not in kept:
            kept.append(example)

    def as_json(self) -> dict[str, JsonValue]:
        """For each reason the count and the first examples."""
        return {reason: {"count": count, "examples": [*self.examples[reason]]} for reason, count in self.counts.items()}
