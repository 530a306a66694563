"""REPLUG's reader: each passage alone before the text. `ralm.reading.mixture` averages the predictions (Eq. 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from ralm.options import Option, Part
from ralm.protocols import Documents
from ralm.records import PromptPrefix

MIN_TEMPERATURE: Final = 1e-6
"""The lowest temperature: the best document has all the weight, and the most likely token is drawn."""


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
