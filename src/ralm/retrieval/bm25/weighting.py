"""Weights of query terms by how near they stand to the end of the query, and the folder that keeps them.

A term of weight 3 counts as if it occurred three times in its place. So a weighted query is still a list of terms, its
scores are the same sums of integers, and every way of searching stays exact. From one query of a stream to the next,
only terms that enter, leave or move into another group change.

Knows nothing of how weights are learned (`ralm.training.bm25`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.errors import DamagedFolderError, UsageError
from ralm.storage.manifest import opened_at_once, read_manifest

NEAREST: Final = (0, 4, 8)
"""The groups of terms, by how many terms stand behind them: up to 3, 4 to 7, and 8 or more."""
MOST_WEIGHT: Final = 4
"""With heavier terms, queries would not fit into the bounds of a stream, so they would be scanned. None were better."""

KIND: Final = "weighting"
FORMAT_VERSION: Final = 1
_SETTING: Final = "weighting"


@dataclass(frozen=True, slots=True)
class Weighting:
    """The weight of the query terms of each group of `NEAREST`: whole numbers from 1 to `MOST_WEIGHT`.

    Terms are counted after analysis, so stop words do not count. `analysis`: the analyser that the weights were learned
    for, as indexes record it; None if they suit any. Raises UsageError if the weights are invalid.
    """

    weights: tuple[int, ...] = (1,) * len(NEAREST)
    analysis: str | None = None

    def __post_init__(self) -> None:
        whole = all(type(one) is int and 1 <= one <= MOST_WEIGHT for one in self.weights)
        if len(self.weights) != len(NEAREST) or not whole:
            raise UsageError(
                f"`weights` must be {len(NEAREST)} whole numbers from 1 to {MOST_WEIGHT}, not {[*self.weights]}."
            )

    @property
    def is_plain(self) -> bool:
        """Whether all terms weigh the same, so that nothing differs from BM25."""
        return len(set(self.weights)) == 1

    def repeated(self, words: Sequence[str]) -> list[str]:
        """A query with each of its terms as often as it weighs."""
        ends = [len(words) - nearest for nearest in NEAREST]
        query: list[str] = []
        for begin, end, weight in zip([*ends[1:], 0], ends, self.weights, strict=True):
            query += [word for word in words[max(0, begin) : max(0, end)] for _ in range(weight)]
        return query

    def as_settings(self) -> dict[str, JsonValue]:
        """What a manifest says of it."""
        return {_SETTING: {"weights": [*self.weights], "analysis": self.analysis}}


def open_weighting(path: Path | str) -> Weighting:
    """Read a folder that `ralm train bm25` wrote.

    Raises NotAFolderOfThisKindError, NewerFormatError or DamagedFolderError.
    """
    path = Path(path)
    manifest = opened_at_once(path, lambda: read_manifest(path, kind=KIND, format_version=FORMAT_VERSION))
    match manifest.settings.get(_SETTING):
        case {"weights": [*weights], "analysis": str() as analysis}:
            try:
                return Weighting(tuple(weights), analysis)  # type: ignore[arg-type]
            except UsageError as error:
                raise DamagedFolderError(f"{path} is damaged: {error}") from error
    raise DamagedFolderError(f"{path} is damaged: its manifest does not say the weights; train it again.")
