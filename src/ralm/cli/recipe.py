"""`ralm recipe`: runs tables and figures of the papers."""

import io
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ralm.cli import options
from ralm.cli.flags import Output
from ralm.errors import UsageError
from ralm.options import Option

if TYPE_CHECKING:
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.recipe import Recipe
    from ralm.recipes.runner import Estimate

Name = Annotated[str, options.argument("Recipe, as `ralm recipe list` names it.", "NAME")]
_OUT, _STAND_IN_OUT = Path("ralm-recipes"), Path("ralm-recipes-stand-in")


def list_command() -> Output:
    """List the recipes: tables and figures of the papers, and further analyses."""
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipes

    known = recipes()
    width = max(map(len, known))
    return Output(
        lambda: [
            {"name": name, "paper": one.paper, "about": one.about, "models": [*one.models]}
            for name, one in known.items()
        ],
        lambda: print_line("\n".join(f"{name:<{width}}  {one.about}" for name, one in known.items())),
    )


def show_command(name: Name) -> Output:
    """Show a recipe: its inputs, its models, differences from the paper, and its commands."""
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.runner import command_text

    recipe = recipe_named(name)
    folder = RecipeFolder(_OUT)
    read = resources_of(recipe.steps)
    lines = [command_text(folder.command_line(step)) for step in recipe.steps]

    def print_recipe() -> None:
        print_line(f"{recipe.paper}: {recipe.about}")
        print_line(f"\nModels, for --only: {', '.join(recipe.models)}")
        print_line("\nReads, each of which --use NAME=PATH replaces:")
        for one in read.values():
            source = one.source or f"made from {', '.join(part.name for part in one.made_of)}"
            print_line(f"  {one.name:<26} {source}{f' ({one.note})' if one.note else ''}")
        if recipe.differs:
            print_line("\nWhat differs from the paper:")
            for said in recipe.differs:
                print_line(f"  - {said}")
        print_line("\nCommands:")
        for line in lines:
            print_line(f"  {line}")

    return Output(
        lambda: {
            "name": recipe.name,
            "paper": recipe.paper,
            "about": recipe.about,
            "models": [*recipe.models],
            "reads": {one.name: {"kind": one.kind, "source": one.source, "note": one.note} for one in read.values()},
            "differs": [*recipe.differs],
            "commands": [*lines],
        },
        print_recipe,
    )


def run_command(
    *,
    name: Name,
    only: Annotated[str | None, Option("Run one model of the recipe alone.", default_text="all models")] = None,
    given: Annotated[
        tuple[str, ...],
        Option("NAME=VALUE: read this file, folder or hub name for a resource; repeatable.", flag="use"),
    ] = (),
    out: Annotated[
        Path | None,
        Option("Folder for steps and tables, which recipes share.", default_text=f"{_OUT}; {_STAND_IN_OUT}"),
    ] = None,
    stand_in: Annotated[
        bool, Option("Run the same steps on small local data and models, to see what the recipe does.")
    ] = False,
    limit_tokens: Annotated[
        int | None,
        Option(
            "Use only this many tokens from the beginning of a text.",
            minimum=2,
            default_text="the whole text; 2,000 with --stand-in",
        ),
    ] = None,
    model: options.Model,
    ray: options.Ray = None,
    steps: Annotated[
        bool, Option("Show the steps, what is done, and what the rest will take, and run nothing.", flag="dry-run")
    ] = False,
) -> Output:
    """Run a recipe: every step that is not done yet, then the paper's table with our figures beside.

    Rerun the command to go on after an interruption. Recipes in one folder share their steps.
    """
    from ralm.cli import program
    from ralm.cli.models import release_models, sharing_models
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import CommandOptions, RecipeFolder, check_replacements
    from ralm.recipes.recipe import FULL_SCALE, STAND_IN_SCALE
    from ralm.recipes.results import as_markdown, measure_recipe, result_as_json, write_result
    from ralm.recipes.runner import run_steps
    from ralm.runs.run import check_plot

    scale = STAND_IN_SCALE if stand_in else FULL_SCALE
    if limit_tokens is not None:
        scale = replace(scale, limit_tokens=limit_tokens)
    recipe = recipe_named(name, scale, only=only)
    resources = resources_of(recipe.steps)
    if limit_tokens is not None and not any(resource.kind == "text" for resource in resources.values()):
        raise UsageError(f"`limit_tokens` has no effect: {name} reads questions, not texts.")
    replaced = _replaced(given)
    check_replacements(replaced, resources)
    changes = [f"{one} is {value}" for one, value in replaced.items()]
    changes += [] if limit_tokens is None else [f"texts have {limit_tokens:,} tokens"]
    out = out or (_STAND_IN_OUT if stand_in else _OUT)
    folder = RecipeFolder(out, replaced, stand_in=stand_in, options=CommandOptions(model=model, ray=ray))
    folder.check()
    if steps:
        return _steps_left(recipe, folder)
    if recipe.figure is not None:
        check_plot()

    def perform(line: list[str]) -> None:
        release_models(needed=line)
        with redirect_stdout(io.StringIO()):
            program()(line, standalone_mode=False)

    with sharing_models():
        run_steps(recipe.steps, folder, perform)
    result = measure_recipe(folder.as_run(recipe), folder, changes, is_partial=limit_tokens is not None)
    written = write_result(result, only)
    table, _, _ = as_markdown(result).partition("\n## Where the figures come from")
    return Output(
        partial(result_as_json, result, written),
        partial(print_line, f"{table}\nWith the command and folder of every figure: {written}"),
    )


def _replaced(given: tuple[str, ...]) -> dict[str, str]:
    """What is read for resources, by name."""
    pairs = [one.partition("=") for one in given]
    for (name, equals, value), whole in zip(pairs, given, strict=True):
        if not (name and equals and value):
            raise UsageError(f"`given` takes NAME=VALUE, such as gpt2=my-models/gpt2, not {whole!r}.")
    replaced = {name: value for name, _, value in pairs}
    if len(replaced) < len(pairs):
        raise UsageError(f"`given` names a resource twice: {' '.join(given)}.")
    return replaced


def _steps_left(recipe: "Recipe", folder: "RecipeFolder") -> Output:
    """The steps, what is done, and what the rest will take."""
    from ralm.cli.output import print_line
    from ralm.recipes.runner import command_text, estimate, total

    found = [(step, folder.is_done(step), estimate(step, folder)) for step in folder.distinct_steps(recipe.steps)]
    rest = total([needed for _, done, needed in found if not done])

    def print_steps() -> None:
        for step, done, needed in found:
            state = "done" if done else _describe(needed)
            print_line(f"{folder.path_of(step).name}: {state}\n  {command_text(folder.command_line(step))}")
        print_line(
            f"\n{sum(not done for _, done, _ in found)} of {len(found)} steps are left: about {_describe(rest)}, and "
            f"{rest.memory / 1e9:,.1f} GB of memory. These are rough estimates from sizes and the speed of this "
            "machine."
        )

    return Output(
        lambda: {
            "steps": [
                {
                    "command": command_text(folder.command_line(step)),
                    "done": done,
                    "passages": needed.passages,
                    "tokens": needed.tokens,
                    "disk_bytes": needed.disk,
                    "memory_bytes": needed.memory,
                    "hours": needed.hours,
                }
                for step, done, needed in found
            ],
            "hours": rest.hours,
            "disk_bytes": rest.disk,
            "memory_bytes": rest.memory,
        },
        print_steps,
    )


def _describe(needed: "Estimate") -> str:
    parts = [f"{needed.passages:,} passages"] if needed.passages else []
    parts += [f"{needed.tokens:,} tokens"] if needed.tokens else []
    return ", ".join([*parts, f"{needed.disk / 1e9:,.2f} GB", f"{needed.hours:,.2f} hours"])
