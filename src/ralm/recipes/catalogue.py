"""All recipes by name."""

from typing import Final

from ralm.errors import UsageError
from ralm.recipes.analyses import paper_or_code, recipes as analyses
from ralm.recipes.in_context_ralm import families, questions, retrievers, strides, table_1, table_3
from ralm.recipes.place import nearest
from ralm.recipes.recipe import FULL, Builder, Recipe, Scale
from ralm.recipes.replug import pile, questions as replug_questions, wikitext
from ralm.recipes.resources import Resource
from ralm.recipes.steps import Step

_BUILDERS: Final[tuple[Builder, ...]] = (
    table_1.recipe,
    families.table_2,
    table_3.recipe,
    questions.table_4,
    families.table_5,
    retrievers.figure_3,
    families.figure_4,
    strides.figure_5,
    retrievers.figure_6,
    strides.figure_7,
    questions.figure_8,
    retrievers.figure_9,
    retrievers.figure_10,
    pile.table_1,
    replug_questions.table_2,
    replug_questions.table_3,
    pile.figure_4,
    wikitext.figure_5,
    wikitext.figure_6,
    analyses.figure_7,
    wikitext.figure_8,
    analyses.gain_by_token,
    analyses.contamination,
    analyses.oracle_by_candidates,
    paper_or_code.recipe,
)


def recipes(scale: Scale = FULL) -> dict[str, Recipe]:
    """Every recipe at a scale, by name."""
    built = [build(scale) for build in _BUILDERS]
    return {recipe.name: recipe for recipe in built}


def recipe_named(name: str, scale: Scale = FULL, *, only: str | None = None) -> Recipe:
    """A recipe, or its part about one model; UsageError with the nearest names if there is none."""
    known = recipes(scale)
    if name not in known:
        raise UsageError(f"there is no recipe {name!r}; {nearest(name, [*known])}.")
    recipe = known[name]
    if only is None:
        return recipe
    if only not in recipe.models:
        raise UsageError(f"{name} has no model {only!r} that can be run; {nearest(only, recipe.models)}.")
    return recipe.only(only)


def resources_of(steps: list[Step]) -> dict[str, Resource]:
    """The resources that steps read, by name."""
    found = {resource.name: resource for step in steps for resource in step.resources}
    for resource in [*found.values()]:
        found |= {one.name: one for one in resource.of}
    return found
