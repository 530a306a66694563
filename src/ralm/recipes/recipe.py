"""Recipes: tables whose cells are figures of steps, with the paper's own figures beside them."""

from dataclasses import dataclass, replace
from typing import Final, Literal

from ralm.recipes.measures import Measure
from ralm.recipes.steps import Step, in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a run is: `small` or the paper's; at most `limit_tokens` of a text and `limit` questions are read."""

    small: bool = False
    limit_tokens: int | None = None
    limit: int | None = None


FULL_SCALE: Final = Scale()
STAND_IN_SCALE: Final = Scale(small=True, limit_tokens=2_000, limit=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure of a table: of a `model` that reads as `how` says, in a `column`; in a figure, `at` a place of its x, in
    the `line` of its model by default. `measure` is None if it cannot be measured again; `why_not` says why."""

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


@dataclass(frozen=True, slots=True)
class Figure:
    """How the cells are drawn: lines over `at`, or bars; `over` is the name of the x axis."""

    kind: Literal["lines", "bars"]
    over: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A table or figure of a paper: its cells, its orders, how it is drawn, and how it `differs` from the paper."""

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
        return list(dict.fromkeys([*cells, *(side for order in self.orders for side in (order.better, order.worse))]))

    @property
    def steps(self) -> list[Step]:
        """The steps that it runs, in order."""
        return in_order(step for measure in self.measures for step in measure.steps)

    @property
    def is_analysis(self) -> bool:
        """Whether it is ours, and no table or figure of a paper."""
        return self.name.startswith("analysis/")

    def only(self, model: str) -> "Recipe":
        """Return the part about one model."""
        cells = tuple(cell for cell in self.cells if cell.model == model)
        steps = {step for cell in cells if cell.measure for step in cell.measure.steps}
        orders = tuple(order for order in self.orders if {*order.better.steps, *order.worse.steps} <= steps)
        return replace(self, cells=cells, orders=orders)
