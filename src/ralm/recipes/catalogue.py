"""All recipes by name, made of data; readings.toml describes its keys."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from ralm.errors import UsageError
from ralm.recipes.folder import REFERENCE, RecipeFolder
from ralm.recipes.recipe import RESOURCES, Cell, Measure, Order, Recipe, Resource, Step

_Keys: TypeAlias = dict[str, Any]
_Place: TypeAlias = tuple[str, str, str]
"""The model, the way of reading and the column of a cell."""

_PAPERS: Final = {"in-context-ralm": "In-Context RALM,", "replug": "REPLUG,", "analysis": "Analysis:"}


def _read_table(name: str) -> _Keys:
    return tomllib.loads(Path(__file__).with_name(f"{name.replace('-', '_')}.toml").read_text(encoding="utf-8"))


_READINGS: Final = _read_table("readings")
_RECIPES: Final[_Keys] = {f"{paper}/{name}": keys for paper in _PAPERS for name, keys in _read_table(paper).items()}
_NOT_OF_CELLS: Final = {"title", "about", "differs", "figure", "blocks", "orders", "columns", "published"}
"""Keys of a recipe; all others are of its cells."""


def recipes(folder: RecipeFolder | None = None) -> dict[str, Recipe]:
    """Return every recipe by name, with its steps in a folder."""
    return {name: _recipe(name, folder or RecipeFolder()) for name in _RECIPES}


def recipe_named(name: str, folder: RecipeFolder | None = None, *, only: str | None = None) -> Recipe:
    """Return a recipe, or its part about one model; UsageError with the nearest names if there is none."""
    if name not in _RECIPES:
        raise UsageError(f"there is no recipe {name!r}; {nearest_names(name, _RECIPES)}.")
    recipe = _recipe(name, folder or RecipeFolder())
    if only is None:
        return recipe
    if only not in recipe.models:
        raise UsageError(f"{name} has no model {only!r} that can be run; {nearest_names(only, recipe.models)}.")
    return recipe.only(only)


def nearest_names(name: str, names: Iterable[str]) -> str:
    """Return the names that are most like a wrong one, for a message."""
    like = get_close_matches(name, [*names], n=3, cutoff=0.4)
    return f"did you mean {', '.join(like)}?" if like else f"there are {', '.join(names)}"


def _recipe(name: str, folder: RecipeFolder) -> Recipe:
    table, keys = _RECIPES[name], _scale_keys(folder)
    paper, _, number = name.partition("/")
    common = {key: value for key, value in table.items() if key not in _NOT_OF_CELLS}
    blocks = [common | block for block in table.get("blocks", [{}])]
    cells = [(_cell(combined, folder), combined) for block in blocks for combined in _combinations(block, keys)]
    published = _published(table, list(dict.fromkeys(cell.column for cell, _ in cells)))
    places = [(cell.model, cell.how, cell.column) for cell, _ in cells]
    measured = (replace(cell, published=published.get(at)) for (cell, _), at in zip(cells, places, strict=True))
    beside = (
        Cell(model=model, how=how, column=column, measure=None, published=figure, why_not="the paper's alone")
        for (model, how, column), figure in published.items()
        if (model, how, column) not in places
    )
    return Recipe(
        name=name,
        paper=f"{_PAPERS[paper]} {table.get('title') or number.replace('-', ' ').capitalize()}",
        about=_value(table["about"], keys),
        cells=(*measured, *beside),
        orders=(*_orders(table.get("orders", ()), cells),),
        differs=tuple(_value(_READINGS["note"].get(note, note), keys) for note in table.get("differs", ())),
        **table.get("figure", {}),
    )


def _scale_keys(folder: RecipeFolder) -> _Keys:
    """Return the keys of the scale of recipes, which every cell has."""
    keys = _READINGS["defaults"] | _READINGS["scale"]["small" if folder.stand_in else "full"]
    lists = {f"{{{name}}}": values for name, values in (_READINGS["list"] | keys["list"]).items()}
    limit = {"limit_tokens": f"--limit-tokens {folder.limit_tokens}"} if folder.limit_tokens else {}
    return {**keys, **limit, "lists": lists, "at": None, "next_at": None}


def _combinations(block: Mapping[str, Any], keys: _Keys) -> Iterator[_Keys]:
    """Yield the keys of each cell of a block: those of the scale, of the entries that the block names, and its own."""
    combinations: list[tuple[_Keys, _Keys]] = [({}, {})]
    for key, value in block.items():
        combinations = [
            (named | _entry(key, choice) | brought, chosen | {key: choice})
            for named, chosen in combinations
            for choice, brought in _choices(key, value, keys["lists"])
        ]
    return (keys | named | chosen for named, chosen in combinations)


def _choices(key: str, value: Any, lists: _Keys) -> list[tuple[Any, _Keys]]:
    """Return the values of a key, each with the keys that it brings."""
    value = lists.get(value, value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return [*value.items()]
    if key in ("steps", "options") or not isinstance(value, list):
        return [(value, {})]
    return [(choice, {f"next_{key}": following}) for choice, following in zip(value, [*value[1:], None], strict=True)]


def _entry(key: str, value: Any) -> _Keys:
    """Return the keys of the entry that a value names: a model for `lm`, or an entry of the table of that key."""
    if key == "lm":
        return {"label": RESOURCES[value].label, "billions": RESOURCES[value].billions}
    entry: Any = _READINGS.get(key, {}).get(value) if isinstance(value, str) else None
    return _with_base(entry) if isinstance(entry, dict) else {}


def _with_base(entry: _Keys) -> _Keys:
    """Return an entry with the keys of the table that it `reads` by."""
    return _with_base(_READINGS[entry["reads"]]) | entry if "reads" in entry else entry


def _cell(keys: _Keys, folder: RecipeFolder) -> Cell:
    steps = tuple(_step(_value(name, keys), keys, folder) for name in keys["steps"])
    options = (_value(option, keys) for option in keys["options"])
    return Cell(
        model=_value(keys["model"], keys),
        how=keys["how"],
        column=_value(keys["column"], keys),
        measure=Measure(keys["measure"], steps, (*options,)),
        at=_value(keys["at"], keys),
        line=keys.get("line"),
    )


def _step(name: str, keys: _Keys, folder: RecipeFolder) -> Step:
    text = _value(_READINGS["step"][name], keys)
    references: dict[str, Step | Resource] = {
        reference: RESOURCES[reference[1:]] if reference[0] == "@" else _step(reference[1:], keys, folder)
        for reference in REFERENCE.findall(text)
    }
    return folder.step(text, references)


def _value(value: Any, keys: _Keys) -> Any:
    """Return a value, or the one that `{key}` names, or a text with values of keys."""
    if not isinstance(value, str) or "{" not in value:
        return value
    return _value(keys[value[1:-1]] if value[1:-1] in keys else value.format_map(keys), keys)


def _published(table: _Keys, columns: list[str]) -> dict[_Place, float]:
    """Return the figures of the paper, by their place in the table."""
    return {
        (model, how, column): figure
        for model, how, *figures in table.get("published", ())
        for column, figure in zip(table.get("columns", columns), figures, strict=False)
        if figure != "-"
    }


def _orders(templates: Iterable[list[str]], cells: list[tuple[Cell, _Keys]]) -> list[Order]:
    """Return the orders among the cells of each model and column; a fourth text is a part of the column."""
    places: dict[_Place, Measure | None] = {}
    for cell, _ in cells:
        for how in (cell.how, f"{cell.how} {cell.at or 0:g}"):
            places.setdefault((cell.model, cell.column, how), cell.measure)
    orders: dict[str, Order] = {}
    for cell, keys in cells:
        for better, worse, text, *columns in templates:
            sides = [places.get((cell.model, cell.column, _value(side, keys))) for side in (better, worse)]
            if sides[0] and sides[1] and all(column in cell.column for column in columns):
                orders.setdefault(_value(text, keys), Order(sides[0], sides[1], _value(text, keys)))
    return [*orders.values()]
