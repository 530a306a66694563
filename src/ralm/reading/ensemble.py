"""REPLUG's ensemble: each passage is read alone, and the predictions are averaged (REPLUG, Eq. 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.options import Option, check_options
from ralm.protocols import DistributionMixer, Documents, Mixer
from ralm.reading.mixers import SimilarityWeights
from ralm.records import PromptPrefix
from ralm.validation import config_of

MIN_TEMPERATURE: Final = 1e-6
"""The lowest temperature: the best document has all the weight, and the most likely token is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Reads each of the first `documents` hits of a row alone (REPLUG, Eq. 2; 10 documents as in the paper).

    The scores of its prompt prefixes are similarity / `temperature`, with temperature 1 as in the paper; `mixer` makes
    weights of them, by default their softmax.

    Raises UsageError if a value is out of range, or if one document is read by a mixer that weighs several.
    """

    documents: Annotated[int, Option("Passages that are read together.")] = 10
    temperature: Annotated[
        float,
        Option(
            "Temperature of the softmax over scores.",
            minimum=MIN_TEMPERATURE,
            maximum=1 / MIN_TEMPERATURE,
            flag="weights-temperature",
        ),
    ] = 1.0
    mixer: Mixer | DistributionMixer = field(default_factory=SimilarityWeights)

    def __post_init__(self) -> None:
        check_options(self)
        if self.documents == 1 and isinstance(self.mixer, Mixer) and self.mixer.evidence:
            raise UsageError(
                f"the mixer {type(self.mixer).__name__} weighs several passages: set `documents` to 2 or more."
            )

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        mixer = config_of(self.mixer, "mixer")
        return {"reader": "ensemble", "documents": self.documents, "temperature": self.temperature, "mixer": mixer}

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
