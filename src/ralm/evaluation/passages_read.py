"""What a text was read with, which stands beside every gain: how many of its tokens, and how much of it is copied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, Decontamination
from ralm.corpus.words import bare_words
from ralm.reading.provenance import Contribution
from ralm.records import NO_PASSAGE, Passage, Provenance

COPY: Final = 0.5
"""A passage with a larger share of its runs of 13 words in a text is a copy of a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassagesRead:
    """What targets were read with; `copies` are near duplicates that share more than half of their runs of 13 words."""

    targets: int
    with_passage: int
    passages: int
    near_duplicates: frozenset[int]
    copies: int

    @classmethod
    def of(cls, documents: Sequence[str], provenance: Provenance, passages: Mapping[int, Passage]) -> "PassagesRead":
        """Count the passages that documents were read with."""
        evaluated = overlap_with(tuple(documents))
        overlaps = {number: evaluated.overlap(passage.text) for number, passage in passages.items()}
        return cls(
            targets=len(provenance.passages_TK),
            with_passage=int((provenance.passages_TK != NO_PASSAGE).any(axis=1).sum()),
            passages=len(passages),
            near_duplicates=frozenset(number for number, overlap in overlaps.items() if overlap > 0),
            copies=sum(overlap > COPY for overlap in overlaps.values()),
        )

    def gain_of_near_duplicates(self, contributions: Sequence[Contribution]) -> float:
        """Return what near-duplicates contributed to a gain, in nats."""
        return sum(row.gain for row in contributions if row.passage in self.near_duplicates)

    @property
    def sentences(self) -> list[str]:
        """What was read, in words."""
        read = f"{self.with_passage:,} of {self.targets:,} tokens were read with a passage"
        shared = (
            f"{len(self.near_duplicates):,} of {self.passages:,} passages share {NGRAM} words in a row with the text"
        )
        copied = f"{self.copies:,} of them copy it: the text is in the index; `--decontaminate` leaves it out"
        return [f"{read}; {shared}", *([copied] if self.copies else [])]

    def as_json(self) -> dict[str, JsonValue]:
        """Return the counts."""
        return {
            "targets": self.targets,
            "with_passage": self.with_passage,
            "passages": self.passages,
            "near_duplicates": len(self.near_duplicates),
            "copies": self.copies,
        }


@lru_cache(maxsize=8)
def overlap_with(documents: tuple[str, ...]) -> Decontamination:
    """Find runs of 13 words of documents in passages; none if all documents are shorter."""
    long = [document for document in documents if len(bare_words(document)) >= NGRAM]
    return Decontamination.of(texts=long) if long else Decontamination()
