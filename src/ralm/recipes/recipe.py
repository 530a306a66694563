"""What a recipe is: a table or figure of a paper, whose cells are figures of steps with the paper's own beside them.

A step is a command. Resources are the texts, corpora, questions and models that steps read.
"""

import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

ResourceKind = Literal[
    "text", "corpus", "titles", "questions", "demonstrations", "choices", "choice-demonstrations", "model", "encoder"
]
FileForm = Literal["", "joined", "wikitext", "articles", "lines", "titles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One data set or model that a recipe reads: `source` is the hub name or file that a command takes.

    If `form` is set, the data set is written to a file first: `joined` and `wikitext` make one text of all rows,
    `articles` and `lines` JSON Lines of documents, `titles` a list of the titles in texts of WikiText (`made_of`).
    `only` keeps the rows in which a field, such as `meta.pile_set_name`, has a value. `note` has the licence, and what
    replaces data that is no longer public. A model has a `label`, its name in the papers, and `billions` of parameters.
    """

    name: str
    kind: ResourceKind
    source: str = ""
    form: FileForm = ""
    made_of: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    max_rows: int | None = None
    note: str = ""
    label: str = ""
    billions: float = 0


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_TABLES: Final[dict[Any, dict[str, dict[str, Any]]]] = tomllib.loads(
    Path(__file__).with_name("resources.toml").read_text(encoding="utf-8")
)
RESOURCES: Final = {
    name: Resource(name=name, kind=kind, **{key: _frozen(value) for key, value in keys.items()})
    for kind, table in _TABLES.items()
    for name, keys in table.items()
}
"""Every resource by name."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that makes a folder or file at `path` from the results of the steps it `needs`; equal by its path.

    `reads` has the resources in it, each with the file or name that the command takes.
    """

    path: Path
    words: tuple[str, ...] = field(compare=False)
    needs: "tuple[Step, ...]" = field(default=(), compare=False)
    reads: tuple[tuple[Resource, str], ...] = field(default=(), compare=False)

    @property
    def command(self) -> str:
        """The command as one types it."""
        return shlex.join(self.words)

    @property
    def is_done(self) -> bool:
        """Whether its result exists; it appears at once, when it is complete."""
        return self.path.exists()


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps and all that they need, each once and after what it needs."""
    ordered: dict[Step, None] = {}

    def add(step: Step) -> None:
        if step not in ordered:
            for needed in step.needs:
                add(needed)
            ordered[step] = None

    for last in steps:
        add(last)
    return [*ordered]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of finished steps: a function of measures.py by name, of the paths of their results and of `options`."""

    name: str
    steps: tuple[Step, ...]
    options: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure of a table, or at a place (`at`) of a figure's x axis, in the `line` of its model by default.

    `measure` is None if it cannot be measured again; `why_not` says why.
    """

    model: str
    how: str
    column: str
    measure: Measure | None
    published: float | None = None
    at: float | None = None
    line: str | None = None
    why_not: str = ""

    @property
    def reads(self) -> list[tuple[Resource, str]]:
        """The resources that its steps read, each with what takes its place."""
        return [pair for step in in_order(self.measure.steps if self.measure else ()) for pair in step.reads]

    @property
    def model_read(self) -> str:
        """The name of its model, after the one that takes its place."""
        for resource, source in self.reads:
            if self.model in (resource.name, resource.label) and source != resource.source:
                return f"{Path(source).name} for {self.model}"
        return self.model


@dataclass(frozen=True, slots=True)
class Order:
    """An order that the paper reports: one figure is better than another."""

    better: Measure
    worse: Measure
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A table or figure of a paper; a figure is drawn `over` the places of its cells, or the ways of reading."""

    name: str
    paper: str
    about: str
    cells: tuple[Cell, ...]
    orders: tuple[Order, ...] = ()
    differs: tuple[str, ...] = ()
    over: str = ""
    logarithmic: bool = False

    @property
    def models(self) -> list[str]:
        """The models that `--only` can choose."""
        return list(dict.fromkeys(cell.model for cell in self.cells if cell.measure))

    @property
    def measures(self) -> list[Measure]:
        """The measures of its cells, which are those of its orders, each once."""
        return list(dict.fromkeys(cell.measure for cell in self.cells if cell.measure))

    @property
    def steps(self) -> list[Step]:
        """The steps that it runs, in order."""
        return in_order(step for measure in self.measures for step in measure.steps)

    @property
    def resources(self) -> dict[str, Resource]:
        """The resources that it reads, by name."""
        return {resource.name: resource for cell in self.cells for resource, _ in cell.reads}

    def only(self, model: str) -> "Recipe":
        """Return the part about one model."""
        part = replace(self, cells=tuple(cell for cell in self.cells if cell.model == model))
        orders = (order for order in self.orders if {order.better, order.worse} <= {*part.measures})
        return replace(part, orders=tuple(orders))
