"""Steps: commands of the program, in whose words other steps and resources stand for their files and names. Equal steps
of several recipes are one. Resources are the texts, corpora, questions and models that recipes read."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

ResourceKind = Literal[
    "text", "corpus", "titles", "questions", "demonstrations", "choices", "choice-demonstrations", "model", "encoder"
]
FileForm = Literal["", "joined", "wikitext", "articles", "lines", "titles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One data set or model that a recipe reads: `source` is the hub name or file that a command takes. If `form` is
    set, the data set is written to a file first: `joined` and `wikitext` make one text of all rows, `articles` and
    `lines` JSON Lines of documents, `titles` a list of the titles in texts of WikiText (`made_of`). `only` keeps the
    rows in which a field, such as `meta.pile_set_name`, has a value; `max_rows` keeps the first ones. `note` has the
    licence, and what replaces data that is no longer public. A model has a `label`, its name in the papers, and
    `billions` of parameters."""

    name: str
    kind: ResourceKind
    source: str = ""
    form: FileForm = ""
    made_of: "tuple[Resource, ...]" = ()
    only: tuple[str, ...] = ()
    max_rows: int | None = None
    note: str = ""
    label: str = ""
    billions: float = 0


def _resources(tables: dict[Any, dict[str, dict[str, Any]]]) -> dict[str, Resource]:
    read: dict[str, Resource] = {}
    for kind, table in tables.items():
        for name, keys in table.items():
            parts = {"made_of": tuple(read[part] for part in keys.get("made_of", ())), "only": (*keys.get("only", ()),)}
            read[name] = Resource(name=name, kind=kind, **{**keys, **parts})
    return read


RESOURCES: Final = _resources(tomllib.loads(Path(__file__).with_name("resources.toml").read_text(encoding="utf-8")))
"""Every resource by name."""


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
