"""`ralm recipe`: lists, shows and runs tables and figures of the papers."""

import io
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
from ralm.removed import removal_of
from ralm.settings import LM_ARGS

if TYPE_CHECKING:
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.recipe import Recipe
    from ralm.recipes.runner import Estimate

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
        bool, Option("Show the steps, what is done, and what the rest will take, and run nothing.", needs=_RUN)
    ] = False,
) -> Output:
    """List the tables and figures of the papers; show the inputs, models and commands of those that are named; with
    --out, run them, and print each with the paper's figures beside ours.

    Rerun the command to go on after an interruption. Recipes in one folder share their steps.

    Example: `ralm recipe in-context-ralm/table-1 --stand-in -o my-tables`
    """
    from ralm.recipes.recipe import FULL_SCALE, STAND_IN_SCALE

    if names and (sentence := removal_of(f"recipe {names[0]}")):
        raise UsageError(sentence)
    if out is None:
        return _together([_show(name) for name in names]) if names else _list()
    if not names:
        raise UsageError("`out` runs recipes, and none is named: give a NAME that `ralm recipe` lists.")
    scale = STAND_IN_SCALE if stand_in else FULL_SCALE
    if limit_tokens is not None:
        scale = replace(scale, limit_tokens=limit_tokens)

    from ralm.cli.models import sharing_models
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import RecipeFolder, check_replacements

    recipes = [recipe_named(name, scale, only=only) for name in names]
    resources = resources_of([step for recipe in recipes for step in recipe.steps])
    if limit_tokens is not None and not any(resource.kind == "text" for resource in resources.values()):
        raise UsageError(f"`limit_tokens` has no effect: {' '.join(names)} reads questions, not texts.")
    replaced = _replaced(use)
    check_replacements(replaced, resources)
    folder = RecipeFolder(out, replaced, stand_in=stand_in, model=model)
    folder.check()
    if dry_run:
        return _together([_steps_left(recipe, folder) for recipe in recipes])
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

    known = recipes()
    width = max(map(len, known))
    return Output(
        lambda: [
            {"name": name, "paper": one.paper, "about": one.about, "models": [*one.models]}
            for name, one in known.items()
        ],
        lambda: print_line("\n".join(f"{name:<{width}}  {one.about}" for name, one in known.items())),
    )


def _show(name: str) -> Output:
    """The inputs of a recipe, its models, differences from the paper, and its commands."""
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipe_named, resources_of
    from ralm.recipes.folder import RecipeFolder
    from ralm.recipes.runner import command_text

    recipe = recipe_named(name)
    read = resources_of(recipe.steps)
    lines = [command_text(RecipeFolder(_SHOWN).command_line(step)) for step in recipe.steps]

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


def _run(recipe: "Recipe", folder: "RecipeFolder", limit_tokens: int | None, only: str | None) -> Output:
    """Run every step that is not done yet; return the paper's table with our figures beside."""
    from ralm.cli import program
    from ralm.cli.models import release_models
    from ralm.cli.output import print_line
    from ralm.recipes.results import as_markdown, measure_recipe, result_as_json, write_result
    from ralm.recipes.runner import run_steps
    from ralm.runs.run import check_plot

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
    written = write_result(result, only)
    table, _, _ = as_markdown(result).partition("\n## Where the figures come from")
    return Output(
        partial(result_as_json, result, written),
        partial(print_line, f"{table}\nWith the command and folder of every figure: {written}"),
    )


def _replaced(use: tuple[str, ...]) -> dict[str, str]:
    """What is read for resources, by name."""
    pairs = [one.partition("=") for one in use]
    for (name, equals, value), whole in zip(pairs, use, strict=True):
        if not (name and equals and value):
            raise UsageError(f"`use` takes NAME=VALUE, such as gpt2=my-models/gpt2, not {whole!r}.")
    replaced = {name: value for name, _, value in pairs}
    if len(replaced) < len(pairs):
        raise UsageError(f"`use` names a resource twice: {' '.join(use)}.")
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
