"""`ralm recipe`: lists, shows and runs tables and figures of the papers."""

import io
from collections.abc import Collection
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ralm.cli import options
from ralm.cli.flags import Output
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Needs, Option
from ralm.settings import LM_ARGS

if TYPE_CHECKING:
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.recipe import Recipe

_SHOWN: Final = Path("OUT")
_RUN: Final = Needs("`out`", lambda own: own.out is not None)


def recipe_command(
    *,
    names: Annotated[list[str] | None, options.argument("Recipes, as `ralm recipe` lists them.", "[NAME]...")] = None,
    out: Annotated[Path | None, Option("Run the recipes in this folder for steps and tables.")] = None,
    only: Annotated[
        str | None, Option("Run one model of the recipe alone.", default_text="all models", needs=_RUN)
    ] = None,
    use: Annotated[
        tuple[str, ...],
        Option("NAME=VALUE: read this file, folder or hub name for a resource; repeatable.", needs=_RUN),
    ] = (),
    stand_in: Annotated[
        bool, Option("Run the same steps on small local data and models, to see what the recipe does.", needs=_RUN)
    ] = False,
    limit_tokens: Annotated[
        int | None,
        Option(
            "Use only this many tokens from the beginning of a text.",
            minimum=2,
            default_text="the whole text; 2,000 with --stand-in",
            needs=_RUN,
        ),
    ] = None,
    model: Annotated[ModelOptions, replace(LM_ARGS, needs=_RUN)],
    dry_run: Annotated[
        bool, Option("Print the steps as a shell script, and which are done, and run nothing.", needs=_RUN)
    ] = False,
) -> Output:
    """List the tables and figures of the papers; print the commands of those that are named as a shell script, with
    their inputs and models; with --out, run them, and print each with the paper's figures beside ours.

    Rerun the command to go on after an interruption. Recipes in one folder share their steps.

    Example: `ralm recipe in-context-ralm/table-1 --stand-in -o my-tables`
    """
    from ralm.recipes.recipe import FULL_SCALE, STAND_IN_SCALE

    if out is None:
        return _together([_show(name) for name in names]) if names else _list()
    if not names:
        raise UsageError("`out` runs recipes, and none is named: give a NAME that `ralm recipe` lists.")
    scale = STAND_IN_SCALE if stand_in else FULL_SCALE
    if limit_tokens is not None:
        scale = replace(scale, limit_tokens=limit_tokens)

    from ralm.cli.models import sharing_models
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.runner import check_resources

    recipes = [recipe_named(name, scale, only=only) for name in names]
    resources = resources_of([step for recipe in recipes for step in recipe.steps])
    if limit_tokens is not None and not any(resource.kind == "text" for resource in resources.values()):
        raise UsageError(f"`limit_tokens` has no effect: {' '.join(names)} reads questions, not texts.")
    folder = RecipeFolder(out, _replaced(use, resources), stand_in=stand_in, model=model)
    folder.check()
    if dry_run:
        return _together([_steps(recipe, folder) for recipe in recipes])
    check_resources([step for recipe in recipes for step in recipe.steps], folder)
    with sharing_models():
        return _together([_run(recipe, folder, limit_tokens, only) for recipe in recipes])


def _together(outputs: list[Output]) -> Output:
    """The outputs of several recipes as one: in JSON an array, unless there is only one."""
    if len(outputs) == 1:
        return outputs[0]

    def print_texts() -> None:
        for output in outputs:
            output.print_text()

    return Output(lambda: [output.as_json() for output in outputs], print_texts)


def _list() -> Output:
    """Every recipe with what it is about."""
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipes

    listed = recipes().values()
    width = max(len(recipe.name) for recipe in listed)
    return Output(
        lambda: [
            {"name": recipe.name, "paper": recipe.paper, "about": recipe.about, "models": [*recipe.models]}
            for recipe in listed
        ],
        lambda: print_line("\n".join(f"{recipe.name:<{width}}  {recipe.about}" for recipe in listed)),
    )


def _show(name: str) -> Output:
    """The inputs of a recipe, its models, differences from the paper, and its commands as a shell script."""
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.runner import script

    recipe = recipe_named(name)
    reads = resources_of(recipe.steps)
    commands = [*script(recipe.steps, RecipeFolder(_SHOWN))]

    def print_script() -> None:
        print_line(f"#!/bin/sh -e\n# {recipe.paper}: {recipe.about}")
        print_line(f"#\n# Models, for --only: {', '.join(recipe.models)}")
        print_line("#\n# Reads, each of which --use NAME=PATH replaces:")
        for resource in reads.values():
            source = resource.source or f"made from {', '.join(part.name for part in resource.made_of)}"
            print_line(f"#   {resource.name:<26} {source}{f' ({resource.note})' if resource.note else ''}")
        if recipe.differs:
            print_line("#\n# What differs from the paper:")
        for sentence in recipe.differs:
            print_line(f"#   - {sentence}")
        print_line("\n".join(["", *commands]))

    return Output(
        lambda: {
            "name": recipe.name,
            "paper": recipe.paper,
            "about": recipe.about,
            "models": [*recipe.models],
            "reads": {
                resource.name: {"kind": resource.kind, "source": resource.source, "note": resource.note}
                for resource in reads.values()
            },
            "differs": [*recipe.differs],
            "commands": [*commands],
        },
        print_script,
    )


def _run(recipe: "Recipe", folder: "RecipeFolder", limit_tokens: int | None, only: str | None) -> Output:
    """Run every step that is not done yet; return the paper's table with our figures beside."""
    from ralm.cli import program
    from ralm.cli.models import release_models
    from ralm.cli.output import print_line
    from ralm.recipes.results import SOURCES, as_markdown, folder_name, measure_recipe, result_as_json, write_result
    from ralm.recipes.runner import run_steps
    from ralm.runs.sweep import check_plot

    if recipe.figure is not None:
        check_plot()

    def perform(line: list[str]) -> None:
        release_models(needed=line)
        with redirect_stdout(io.StringIO()):
            program()(line, standalone_mode=False)

    run_steps(recipe.steps, folder, perform)
    changes = [f"{name} is {value}" for name, value in folder.replacements.items()]
    changes += [] if limit_tokens is None else [f"texts have {limit_tokens:,} tokens"]
    result = measure_recipe(folder.as_run(recipe), folder, changes, is_partial=limit_tokens is not None)
    path = folder.folder / "tables" / folder_name(recipe.name, only)
    write_result(result, path)
    table, _, _ = as_markdown(result).partition(f"\n{SOURCES}")
    return Output(
        partial(result_as_json, result, path),
        partial(print_line, f"{table}\nWith the command and folder of every figure: {path}"),
    )


def _replaced(use: tuple[str, ...], resources: Collection[str]) -> dict[str, str]:
    """What is read in place of resources, by their names."""
    from ralm.recipes.catalogue import nearest_names

    replaced: dict[str, str] = {}
    for pair in use:
        name, _, value = pair.partition("=")
        if not (name and value):
            raise UsageError(f"`use` takes NAME=VALUE, such as gpt2=my-models/gpt2, not {pair!r}.")
        if name not in resources:
            raise UsageError(f"there is no resource {name!r} here; {nearest_names(name, resources)}.")
        if name in replaced:
            raise UsageError(f"`use` names a resource twice: {' '.join(use)}.")
        replaced[name] = value
    return replaced


def _steps(recipe: "Recipe", folder: "RecipeFolder") -> Output:
    """The steps as a shell script, and what is done."""
    from ralm.cli.output import print_line
    from ralm.recipes.runner import command_text, script

    steps = folder.distinct_steps(recipe.steps)
    done = {step: folder.is_done(step) for step in steps}
    left = f"# {len(steps) - sum(done.values())} of {len(steps)} steps are left."
    return Output(
        lambda: {"steps": [{"command": command_text(folder.command_line(step)), "done": done[step]} for step in steps]},
        lambda: print_line("\n".join([*script(steps, folder), left])),
    )
