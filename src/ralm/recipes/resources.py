"""The texts, corpora, questions and models that recipes read: names of the hub, and files made of its data sets."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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
