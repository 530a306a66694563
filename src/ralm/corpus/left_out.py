"""What a corpus lacks of its sources, and why. Knows reasons and names; knows nothing of files."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

BROKEN_LINES: Final = "broken lines, objects or pages"
BROKEN_FILES: Final = "files that cannot be read"
EMPTY_FILES: Final = "empty files"
NO_TEXT: Final = "documents without text"
NO_TEXT_PAGES: Final = "pages without text"
UNKNOWN: Final = "files of an unknown kind"
LINKS: Final = "links that lead to nothing new"
HIDDEN: Final = "hidden files and folders"
NOT_JSON: Final = "fields of metadata that JSON cannot hold"
CRASHES: Final = "lines or files that end the process that reads them"
_EXAMPLES_KEPT: Final = 5
_KINDS_COUNTED: Final = 20
_OTHER_KINDS: Final = "other"
_SHOWN: Final = 3


@dataclass(slots=True)
class LeftOut:
    """Counts what was left out of a corpus by reason, and keeps the first few examples of each reason: the name of a
    file or field, or a sentence that says what is wrong where. `kinds` counts the files of unknown kinds by suffix."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, example: str) -> None:
        """Count one thing that is left out for this reason; equal examples are kept once."""
        self.counts[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES_KEPT and example not in kept:
            kept.append(example)

    def add_unknown(self, name: str, suffix: str) -> None:
        """Count a file of an unknown kind."""
        self.add(UNKNOWN, name)
        self._add_kind(suffix, 1)

    def take_in(self, other: "LeftOut") -> None:
        """Add what another part of the corpus lacks."""
        self.counts += other.counts
        for reason, examples in other.examples.items():
            kept = self.examples.setdefault(reason, [])
            kept += [one for one in examples if one not in kept][: _EXAMPLES_KEPT - len(kept)]
        for suffix, count in other.kinds.items():
            self._add_kind(suffix, count)

    def _add_kind(self, suffix: str, count: int) -> None:
        self.kinds[suffix if suffix in self.kinds or len(self.kinds) < _KINDS_COUNTED else _OTHER_KINDS] += count

    def lines(self) -> list[str]:
        """For each reason a line with the count and the first examples, for a person."""
        return [
            f"{reason}: {count:,}{self._kinds(reason)}, such as {'; '.join(self.examples[reason][:_SHOWN])}"
            for reason, count in self.counts.items()
        ]

    def as_json(self) -> dict[str, JsonValue]:
        """For each reason the count and the first examples; for unknown kinds also the counts by suffix."""
        return {
            reason: {
                "count": count,
                "examples": [*self.examples[reason]],
                **({"kinds": dict(self.kinds)} if reason == UNKNOWN else {}),
            }
            for reason, count in self.counts.items()
        }

    def _kinds(self, reason: str) -> str:
        if reason != UNKNOWN:
            return ""
        kinds = [f"{suffix or 'without suffix'} {count:,}" for suffix, count in self.kinds.most_common(_SHOWN)]
        return f" ({', '.join(kinds)}{', ...' if len(self.kinds) > _SHOWN else ''})"
