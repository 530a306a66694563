"""All recipes by name."""

from typing import Final

from ralm.errors import UsageError
from ralm.recipes.analyses import oracle_by_candidates, paper_or_code
from ralm.recipes.folder import nearest_names
from ralm.recipes.icr_figures_3_5_6_7_9_10 import (
    icr_figure_3,
    icr_figure_5,
    icr_figure_6,
    icr_figure_7,
    icr_figure_9,
    icr_figure_10,
)
from ralm.recipes.icr_tables_1_2_3_4_5_figures_4_8 import (
    icr_figure_4,
    icr_figure_8,
    icr_table_1,
    icr_table_2,
    icr_table_3,
    icr_table_4,
    icr_table_5,
)
from ralm.recipes.recipe import FULL_SCALE, Builder, Recipe, Scale
from ralm.recipes.replug_figures_5_6_7_8 import (
    contamination,
    gain_by_token,
    replug_figure_5,
    replug_figure_6,
    replug_figure_7,
    replug_figure_8,
)
from ralm.recipes.replug_tables_1_2_3_figure_4 import replug_figure_4, replug_table_1, replug_table_2, replug_table_3
from ralm.recipes.resources import Resource
from ralm.recipes.steps import Step

_BUILDERS: Final[tuple[Builder, ...]] = (
    icr_table_1,
    icr_table_2,
    icr_table_3,
    icr_table_4,
    icr_table_5,
    icr_figure_3,
    icr_figure_4,
    icr_figure_5,
    icr_figure_6,
    icr_figure_7,
    icr_figure_8,
    icr_figure_9,
    icr_figure_10,
    replug_table_1,
    replug_table_2,
    replug_table_3,
    replug_figure_4,
    replug_figure_5,
    replug_figure_6,
    replug_figure_7,
    replug_figure_8,
    gain_by_token,
    contamination,
    oracle_by_candidates,
    paper_or_code,
)


def recipes(scale: Scale = FULL_SCALE) -> dict[str, Recipe]:
    """Every recipe at a scale, by name."""
    built = [build(scale) for build in _BUILDERS]
    return {recipe.name: recipe for recipe in built}


def recipe_named(name: str, scale: Scale = FULL_SCALE, *, only: str | None = None) -> Recipe:
    """A recipe, or its part about one model; UsageError with the nearest names if there is none."""
    known = recipes(scale)
    if name not in known:
        raise UsageError(f"there is no recipe {name!r}; {nearest_names(name, [*known])}.")
    recipe = known[name]
    if only is None:
        return recipe
    if only not in recipe.models:
        raise UsageError(f"{name} has no model {only!r} that can be run; {nearest_names(only, recipe.models)}.")
    return recipe.only(only)


def resources_of(steps: list[Step]) -> dict[str, Resource]:
    """The resources that steps read, by name."""
    found = {resource.name: resource for step in steps for resource in step.resources}
    for resource in [*found.values()]:
        found |= {one.name: one for one in resource.made_of}
    return found
