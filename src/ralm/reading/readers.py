"""Readers: how the passages of a row stand before its text.

In-context reads the best passage (In-Context RALM, Eq. 2), an ensemble each of several alone (REPLUG, Eq. 2, which
`ralm.reading.mixture` computes), a concatenation several in one context (In-Context RALM, section 8). The paper does
not say in what order the latter come or what separates them. Both published codes that read several documents at once
put the best first, and REPLUG's joins them with a newline; so does this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ralm.options import Option, Part
from ralm.protocols import Documents
from ralm.records import PromptPrefix

MIN_TEMPERATURE: Final = 1e-6
"""The lowest temperature: the best document has all the weight, and the most likely token is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext(Part):
    """Read the best passage of each row (In-Context RALM, Eq. 2)."""

    named: ClassVar = ("reader", "in-context")
    hits: ClassVar[int] = 1

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """Return the best passage alone."""
        number, _ = hits[0]
        return [PromptPrefix(documents[number], (number,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble(Part):
    """Read each of the first `documents` hits of a row alone (REPLUG, Eq. 2; 10 documents as in the paper).

    The scores of its prompt prefixes are similarity / `temperature`, with temperature 1 as in the paper.
    """

    named: ClassVar = ("reader", "ensemble")

    documents: Annotated[int, Option("Passages that are read together.")] = 10
    temperature: Annotated[
        float,
        Option(
            "Temperature of the softmax over scores.",
            minimum=MIN_TEMPERATURE,
            maximum=1 / MIN_TEMPERATURE,
        ),
    ] = 1.0

    @property
    def hits(self) -> int:
        """The number of passages that are retrieved for a row."""
        return self.documents

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """Return one prompt prefix for each of the first `documents` passages, with its score over the temperature."""
        return [
            PromptPrefix(documents[number], (number,), score / self.temperature)
            for number, score in hits[: self.documents]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation(Part):
    """Put the first `documents` hits of a row before the context; the papers' question answering reads 2.

    Each passage is cut to the plan's `document_tokens`; with `cut_together` all of them are cut as one text, as in
    REPLUG's code.
    """

    named: ClassVar = ("reader", "concatenation")

    documents: Annotated[int, Option("Passages that are read together.")] = 2
    cut_together: Annotated[bool, Option("Cut all passages together to `document_tokens` (REPLUG's code).")] = False

    @property
    def hits(self) -> int:
        """The number of passages that are retrieved for a row."""
        return self.documents

    @property
    def joined(self) -> int:
        """The number of passages of full length in one prompt prefix."""
        return 1 if self.cut_together else self.documents

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """Return one prompt prefix of all passages, credited to the best of them.

        The first begins with the special tokens; each further one follows a newline, which counts as part of it. With
        `cut_together` they are one text, and passages of which the cut leaves nothing are not in the prefix.
        """
        numbers = tuple(number for number, _ in hits[: self.documents])
        first, *further = numbers
        contents = [documents.passage(number).contents for number in further]
        if self.cut_together and contents:
            texts = [documents.passage(first).contents, *contents]
            tokens = documents.encode("\n".join(texts))
            beginnings = ("\n".join(texts[:count]) for count in range(1, len(texts)))
            numbers = numbers[: 1 + sum(len(documents.encode(text)) < len(tokens) for text in beginnings)]
        else:
            tokens = np.concatenate([documents[first], *(documents.encode_next(f"\n{text}") for text in contents)])
        return [PromptPrefix(tokens, numbers)]
