"""All recipes by name."""

from typing import Final

from ralm.errors import UsageError
from ralm.recipes import (
    analyses,
    icr_figures_3_4_5_6_7_8_9_10,
    icr_tables_1_2_3_4_5,
    replug_figures_4_5_6_7_8,
    replug_tables_1_2_3,
)
from ralm.recipes.folder import nearest_names
from ralm.recipes.recipe import FULL_SCALE, Declaration, Recipe, Scale
from ralm.recipes.resources import Resource
from ralm.recipes.steps import Step

_DECLARED: Final = [
    one
    for module in (
        icr_tables_1_2_3_4_5,
        icr_figures_3_4_5_6_7_8_9_10,
        replug_tables_1_2_3,
        replug_figures_4_5_6_7_8,
        analyses,
    )
    for one in vars(module).values()
    if isinstance(one, Declaration)
]


def recipes(scale: Scale = FULL_SCALE) -> dict[str, Recipe]:
    """Every recipe at a scale, by name."""
    return {one.name: one.at(scale) for one in _DECLARED}


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
