"""Recipes: tables whose cells are figures of steps, with the paper's own figures beside them.

A recipe is declared as a function of a scale, the paper's or a small one for stand-ins (`STAND_IN_SCALE`), that yields
its cells and orders. Both scales give the same graph of steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, Literal, TypeAlias

from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import Measure
from ralm.recipes.steps import Step, in_order
from ralm.training.options import ExampleOptions, RerankerOptions, RetrieverTrainingOptions, TrainingOptions

ICR_CANDIDATES: Final = 16
REPLUG_DOCUMENTS: Final = 10
_PAPERS = {"in-context-ralm": "In-Context RALM", "replug": "REPLUG", "analysis": "Analysis"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a run is. `limit_tokens` of a text and `limit` of questions are read; None is all. With `small`,
    windows are blocked and short, trainings are a few steps, and fewer candidates and shots are used."""

    small: bool = False
    limit_tokens: int | None = None
    limit: int | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers that the texts of recipes name."""
        return {
            "candidates": self.candidates(ICR_CANDIDATES),
            "documents": self.documents(REPLUG_DOCUMENTS),
            "few_shots": self.shots(5),
            "shots": self.shots(16),
        }

    def plan(self, plan: PlanOptions) -> PlanOptions:
        """What is read for a stride."""
        if not self.small:
            return plan
        if plan.windows == "rolling":
            return replace(plan, stride=33, query_tokens=31, document_tokens=64, max_length=224)
        return replace(plan, windows="blocked", block=64, document_tokens=128, max_length=384)

    def candidates(self, number: int) -> int:
        """Among how many passages a reranker chooses."""
        return min(number, 6) if self.small else number

    def documents(self, number: int) -> int:
        """How many passages an ensemble reads."""
        return min(number, 4) if self.small else number

    def limit_each(self, parts: int) -> int | None:
        """How many questions of each of several subjects."""
        return None if self.limit is None else max(1, self.limit // parts)

    def shots(self, number: int) -> int:
        """How many demonstrations are shown."""
        return min(number, 2) if self.small else number

    def training(self, training: TrainingOptions) -> TrainingOptions:
        """How long a small model is trained: for all steps."""
        training = replace(training, budget=0)
        few = replace(training, steps=12, batch=8, evaluate_every=6, checkpoint_every=6, learning_rate=1e-4)
        return few if self.small else training

    def reranker(self, options: RerankerOptions) -> RerankerOptions:
        """What a reranker reads."""
        return replace(options, max_length=128) if self.small else options

    def examples(self, examples: ExampleOptions) -> ExampleOptions:
        """What is sampled to learn from."""
        if not self.small:
            return examples
        few = replace(examples, examples=64, seed=0)
        if examples.continuation_tokens > 4:
            return replace(few, continuation_tokens=32, prefix_tokens=32, sequence_tokens=64, query_tokens=32)
        return replace(few, prefix_tokens=64, sequence_tokens=128)

    def retriever(self, both: RetrieverTrainingOptions) -> RetrieverTrainingOptions:
        """How both encoders are trained."""
        return replace(both, candidates=4, refresh_every=8) if self.small else both


FULL_SCALE = Scale()
STAND_IN_SCALE = Scale(small=True, limit_tokens=2_000, limit=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure of a table: of a `model` that reads as `how` says, in a `column`; in a figure, `at` a place of its x.

    In a figure, `line` is the one that it is drawn in, by default that of its model. `measure` is None if the figure
    cannot be measured again; `why_not` says why.
    """

    model: str
    how: str
    column: str
    measure: Measure | None
    published: float | None = None
    at: float | None = None
    line: str | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """An order that the paper reports: one figure is better than another."""

    better: Measure
    worse: Measure
    text: str


Entries: TypeAlias = Iterable[Cell | Order]


def cells_of(
    model: str,
    column: str,
    measured: Mapping[str, Measure],
    published: Sequence[float | None] = (),
    *,
    at: float | None = None,
    line: str | None = None,
) -> list[Cell]:
    """A cell for each way of reading, by its name, with the paper's figures in the same order, if it has any."""
    return [
        Cell(model=model, how=how, column=column, measure=measure, published=figure, at=at, line=line)
        for (how, measure), figure in zip_longest(measured.items(), published)
    ]


def line_of(model: str, column: str, how: str, measured: Mapping[int, Measure]) -> list[Cell]:
    """The cells of a line, by their place on the x axis."""
    return [cell for at, measure in measured.items() for cell in cells_of(model, column, {how: measure}, at=at)]


def published_only(model: str, column: str, published: Mapping[str, float], why_not: str) -> list[Cell]:
    """The cells of a model that cannot be run, by the name of the way of reading."""
    return [
        Cell(model=model, how=how, column=column, measure=None, published=value, why_not=why_not)
        for how, value in published.items()
    ]


def orders_of(label: str, measured: Mapping[str, Measure], *pairs: tuple[str, str]) -> list[Order]:
    """The orders among ways of reading: pairs of names, the better one first. Pairs with unknown names are skipped."""
    return [
        Order(
            measured[one],
            measured[other],
            f"{label}{': ' if label else ''}{one} {'<' if measured[one].smaller_is_better else '>'} {other}",
        )
        for one, other in pairs
        if one in measured
    ]


@dataclass(frozen=True, slots=True)
class Figure:
    """How the cells are drawn: lines over `at`, or bars; `over` is the name of the x axis."""

    kind: Literal["lines", "bars"]
    over: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A table or figure of a paper: its cells, the orders that it shows, and how it is drawn.

    `differs` says what this recipe does otherwise than the paper, and why.
    """

    name: str
    paper: str
    about: str
    cells: tuple[Cell, ...]
    orders: tuple[Order, ...] = ()
    figure: Figure | None = None
    differs: tuple[str, ...] = ()

    @property
    def models(self) -> list[str]:
        """The models that `--only` can choose."""
        return list(dict.fromkeys(cell.model for cell in self.cells if cell.measure))

    @property
    def measures(self) -> list[Measure]:
        """The measures of its cells and orders, each once."""
        cells = [cell.measure for cell in self.cells if cell.measure]
        return list(dict.fromkeys([*cells, *(one for order in self.orders for one in (order.better, order.worse))]))

    @property
    def steps(self) -> list[Step]:
        """The steps that it runs, in order."""
        return in_order([step for measure in self.measures for step in measure.steps])

    @property
    def is_analysis(self) -> bool:
        """Whether it is ours, and no table or figure of a paper."""
        return self.name.startswith("analysis/")

    def only(self, model: str) -> "Recipe":
        """The part about one model."""
        cells = tuple(cell for cell in self.cells if cell.model == model)
        steps = {step for cell in cells if cell.measure for step in cell.measure.steps}
        orders = tuple(order for order in self.orders if {*order.better.steps, *order.worse.steps} <= steps)
        return replace(self, cells=cells, orders=orders)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A recipe as a function of the scale; its docstring says what the recipe is about, with the numbers of the scale
    in braces, as in `differs`."""

    entries: Callable[[Scale], Entries]
    name: str
    paper: str
    figure: Figure | None
    differs: tuple[str, ...]

    def at(self, scale: Scale) -> Recipe:
        """The recipe at a scale."""
        entries, numbers = [*self.entries(scale)], scale.numbers
        return Recipe(
            name=self.name,
            paper=self.paper,
            about=" ".join((self.entries.__doc__ or "").split()).format_map(numbers),
            cells=tuple(one for one in entries if isinstance(one, Cell)),
            orders=tuple(one for one in entries if isinstance(one, Order)),
            figure=self.figure,
            differs=tuple(one.format_map(numbers) for one in self.differs),
        )


def recipe(
    name: str, title: str = "", *, figure: Figure | None = None, differs: Sequence[str] = ()
) -> Callable[[Callable[[Scale], Entries]], Declaration]:
    """Declares a recipe by its name, such as `replug/table-1`, with the title of its table or figure if it is another
    than that in the name."""
    paper, _, item = name.partition("/")
    title = title or item.replace("-", " ").capitalize()
    joined = f"{_PAPERS[paper]}{':' if paper == 'analysis' else ','} {title}"
    return lambda entries: Declaration(entries, name, joined, figure, tuple(differs))
