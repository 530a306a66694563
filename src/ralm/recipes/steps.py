"""Steps: commands of the program, in whose words other steps and resources stand for their files and names. Equal steps
of several recipes are one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ralm.recipes.resources import Resource


@dataclass(frozen=True, slots=True)
class Step:
    """A command without its `--out`, which is a folder, or a file for `retrieve`."""

    command: str
    words: "tuple[Word, ...]"

    @property
    def steps(self) -> "Iterator[Step]":
        """The steps whose results it reads."""
        for part in self._parts:
            if isinstance(part, NameOf):
                yield part.step
            elif isinstance(part, Step):
                yield part

    @property
    def resources(self) -> Iterator[Resource]:
        """The resources that it reads itself."""
        return (part for part in self._parts if isinstance(part, Resource))

    @property
    def _parts(self) -> "Iterator[WordPart]":
        return (part for word in self.words for part in (word if isinstance(word, tuple) else (word,)))


@dataclass(frozen=True, slots=True)
class NameOf:
    """The name of the folder of a step: that of the vectors which `ralm train retriever` adds to its index."""

    step: Step


WordPart: TypeAlias = str | Resource | Step | NameOf
Word: TypeAlias = WordPart | tuple[WordPart, ...]
"""A word of a command, or its parts: `("predictive:cross_encoder=", trained)`."""


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps and all that they need, each once and after what it needs."""
    ordered: dict[Step, None] = {}

    def add(step: Step) -> None:
        if step not in ordered:
            for needed in step.steps:
                add(needed)
            ordered[step] = None

    for last in steps:
        add(last)
    return [*ordered]
