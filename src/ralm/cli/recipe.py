"""`ralm recipe`: lists, shows and runs tables and figures of the papers."""

import io
import shlex
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import JsonValue

from ralm.cli import flags, options
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions
from ralm.options import Checked, Option
from ralm.settings import LM_ARGS

if TYPE_CHECKING:
    from ralm.recipes.catalogue import RecipeFolder
    from ralm.recipes.recipe import Recipe

_NAMES: Final = options.argument("Recipes, as `ralm recipe list` lists them.", "NAME...")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions(Checked):
    """How recipes are run."""

    only: Annotated[str | None, Option("Run one model of the recipe alone.", default_text="all models")] = None
    use: Annotated[
        tuple[str, ...], Option("NAME=VALUE: read this file, folder or hub name for a resource; repeatable.")
    ] = ()
    stand_in: Annotated[
        bool, Option("Run the same steps on small local data and models, to see what the recipe does.")
    ] = False
    limit_tokens: Annotated[
        int | None,
        Option(
            "Use only this many tokens from the beginning of a text.",
            minimum=2,
            default_text="the whole text; 2,000 with --stand-in",
        ),
    ] = None
    model: Annotated[ModelOptions, LM_ARGS]


def list_command() -> None:
    """List the tables and figures of both papers, and analyses of our own.

    Example: `ralm recipe list`
    """
    from ralm.cli.output import print_line
    from ralm.recipes.catalogue import recipes

    listed = recipes().values()
    width = max(len(recipe.name) for recipe in listed)
    print_line("\n".join(f"{recipe.name:<{width}}  {recipe.about}" for recipe in listed))


def show_command(
    *,
    names: Annotated[list[str], _NAMES],
    out: Annotated[Path, Option("Folder for the steps.")] = Path("OUT"),
    how: RecipeOptions,
) -> None:
    """Print what recipes read, what differs from the paper, and their steps as a shell script.

    The script does what `ralm recipe run` does, which then writes the tables from its steps.

    Example: `ralm recipe show in-context-ralm/table-2 --stand-in -o my-tables > table-2.sh`
    """
    from ralm.cli.output import print_line

    for recipe in _open(names, out, how)[1]:
        print_line("\n".join(_script(recipe)))


def run_command(
    *,
    names: Annotated[list[str], _NAMES],
    out: Annotated[Path, Option("Folder for steps and tables.")],
    how: RecipeOptions,
) -> flags.Output:
    """Run recipes, and print each table with the paper's figures beside ours.

    Rerun the command to go on after an interruption. Recipes in one folder share their steps.

    Example: `ralm recipe run in-context-ralm/table-1 --stand-in -o my-tables`
    """
    from ralm.cli.output import print_line
    from ralm.cli.process import sharing_models
    from ralm.recipes.inputs import check_resources
    from ralm.runs.sweep import check_plot

    folder, recipes = _open(names, out, how)
    if any(recipe.over for recipe in recipes):
        check_plot()
    check_resources([step for recipe in recipes for step in recipe.steps])
    with sharing_models():
        results = [_run(recipe, folder, how) for recipe in recipes]
    tables = "\n\n".join(table for _, table in results)
    as_json: list[JsonValue] = [result for result, _ in results]
    return flags.Output(lambda: as_json[0] if len(as_json) == 1 else as_json, lambda: print_line(tables))


def _open(names: Sequence[str], out: Path, how: RecipeOptions) -> "tuple[RecipeFolder, list[Recipe]]":
    """Return the folder of recipes, and those of these names."""
    from ralm.recipes.catalogue import RecipeFolder, nearest_names, recipe_named

    resources = {key: resource for name in names for key, resource in recipe_named(name).resources.items()}
    if how.limit_tokens is not None and not any(resource.kind == "text" for resource in resources.values()):
        raise UsageError(f"`limit_tokens` has no effect: {' '.join(names)} reads questions, not texts.")
    replacements: dict[str, str] = {}
    for pair in how.use:
        name, _, value = pair.partition("=")
        if not (name and value):
            raise UsageError(f"`use` takes NAME=VALUE, such as gpt2=my-models/gpt2, not {pair!r}.")
        if name not in resources:
            raise UsageError(f"there is no resource {name!r} here; {nearest_names(name, resources)}.")
        if name in replacements:
            raise UsageError(f"`use` names a resource twice: {' '.join(how.use)}.")
        replacements[name] = value
    folder = RecipeFolder(out, replacements, stand_in=how.stand_in, limit_tokens=how.limit_tokens, model=how.model)
    return folder, [recipe_named(name, folder, only=how.only) for name in names]


def _script(recipe: "Recipe") -> Iterator[str]:
    """Yield the lines of a shell script: the inputs of a recipe, its models, differences from the paper, its steps."""
    yield from ("#!/bin/sh -e", f"# {recipe.paper}: {recipe.about}")
    yield from ("#", f"# Models, for --only: {', '.join(recipe.models)}")
    yield from ("#", "# Reads, each of which --use NAME=PATH replaces:")
    for resource in recipe.resources.values():
        source = resource.source or f"made from {', '.join(resource.made_of)}"
        yield f"#   {resource.name:<26} {source}{f' ({resource.note})' if resource.note else ''}"
    if recipe.differs:
        yield from ("#", "# What differs from the paper:", *(f"#   - {sentence}" for sentence in recipe.differs))
    yield ""
    yield from (f"test -e {shlex.quote(str(step.path))} || {step.command}" for step in recipe.steps)


def _run(recipe: "Recipe", folder: "RecipeFolder", how: RecipeOptions) -> tuple[dict[str, JsonValue], str]:
    """Run every step that is not done yet; return the paper's table with our figures beside, as data and as text."""
    from ralm.cli import program
    from ralm.cli.process import release_models
    from ralm.recipes.catalogue import run_steps
    from ralm.recipes.results import as_markdown, measure_recipe, write_result

    def perform(line: Sequence[str]) -> None:
        release_models(needed=line)
        with redirect_stdout(io.StringIO()):
            program()([*line], standalone_mode=False)

    run_steps(recipe.steps, perform)
    is_partial = how.limit_tokens is not None
    changes = [f"{name} is {value}" for name, value in folder.replacements.items()]
    changes += [f"texts have {how.limit_tokens:,} tokens"] if is_partial else []
    result = measure_recipe(recipe, changes, stand_in=how.stand_in, is_partial=is_partial)
    path = folder.table_of(recipe.name, how.only)
    write_result(recipe, result, path)
    text = f"{as_markdown(recipe, result)}\n\nWith the command and folder of every figure: {path}"
    return {**result, "folder": str(path)}, text
