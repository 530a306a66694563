"""All recipes by name, made of data; readings.toml describes its keys."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from ralm.errors import UsageError
from ralm.recipes.measures import Measure
from ralm.recipes.recipe import FULL_SCALE, Cell, Figure, Order, Recipe, Scale
from ralm.recipes.steps import RESOURCES, NameOf, Resource, Step, Word, WordPart

_Keys: TypeAlias = dict[str, Any]
_Place: TypeAlias = tuple[str, str, str]
"""The model, the way of reading and the column of a cell."""

_PAPERS: Final = {"in-context-ralm": "In-Context RALM,", "replug": "REPLUG,", "analysis": "Analysis:"}


def _data(name: str) -> _Keys:
    return tomllib.loads(Path(__file__).with_name(f"{name.replace('-', '_')}.toml").read_text(encoding="utf-8"))


_DATA: Final = _data("readings")
_RECIPES: Final[_Keys] = {f"{paper}/{item}": keys for paper in _PAPERS for item, keys in _data(paper).items()}
_NOT_OF_CELLS: Final = {"title", "about", "differs", "figure", "blocks", "orders", "columns", "published"}
"""Keys of a recipe; all others are of its cells."""
_REFERENCE: Final = re.compile(r"([@$%][\w.-]*\w)")


def recipes(scale: Scale = FULL_SCALE) -> dict[str, Recipe]:
    """Return every recipe at a scale, by name."""
    return {name: _recipe(name, scale) for name in _RECIPES}


def recipe_named(name: str, scale: Scale = FULL_SCALE, *, only: str | None = None) -> Recipe:
    """Return a recipe, or its part about one model; UsageError with the nearest names if there is none."""
    if name not in _RECIPES:
        raise UsageError(f"there is no recipe {name!r}; {nearest_names(name, _RECIPES)}.")
    recipe = _recipe(name, scale)
    if only is None:
        return recipe
    if only not in recipe.models:
        raise UsageError(f"{name} has no model {only!r} that can be run; {nearest_names(only, recipe.models)}.")
    return recipe.only(only)


def resources_of(steps: Iterable[Step]) -> dict[str, Resource]:
    """Return the resources that steps read, by name."""
    read = {resource.name: resource for step in steps for resource in step.resources}
    return read | {part.name: part for resource in read.values() for part in resource.made_of}


def nearest_names(name: str, names: Iterable[str]) -> str:
    """Return the names that are most like a wrong one, for a message."""
    like = get_close_matches(name, [*names], n=3, cutoff=0.4)
    return f"did you mean {', '.join(like)}?" if like else f"there are {', '.join(names)}"


def _recipe(name: str, scale: Scale) -> Recipe:
    data, keys = _RECIPES[name], _scale_keys(scale)
    paper, _, item = name.partition("/")
    common = {key: value for key, value in data.items() if key not in _NOT_OF_CELLS}
    blocks = [common | block for block in data.get("blocks", [{}])]
    cells = [(_cell(combined), combined) for block in blocks for combined in _combinations(block, keys)]
    published = _published(data, list(dict.fromkeys(cell.column for cell, _ in cells)))
    places = [(cell, (cell.model, cell.how, cell.column)) for cell, _ in cells]
    measured = [replace(cell, published=published[at].published) if at in published else cell for cell, at in places]
    beside = [cell for at, cell in published.items() if at not in {place for _, place in places}]
    return Recipe(
        name=name,
        paper=f"{_PAPERS[paper]} {data.get('title') or item.replace('-', ' ').capitalize()}",
        about=_text(data["about"], keys),
        cells=(*measured, *beside),
        orders=(*_orders(data.get("orders", ()), cells),),
        figure=Figure(**data["figure"]) if "figure" in data else None,
        differs=tuple(_text(_DATA["note"].get(note, note), keys) for note in data.get("differs", ())),
    )


def _scale_keys(scale: Scale) -> _Keys:
    """The keys that a scale gives to every cell."""
    keys = _DATA["defaults"] | _DATA["scale"]["small" if scale.small else "full"]
    limits = {
        "limit_tokens": f"--limit-tokens {scale.limit_tokens}" if scale.limit_tokens else "",
        "limit": f"--limit {scale.limit}" if scale.limit else "",
        "limit_a_subject": f"--limit {max(1, scale.limit // 4)}" if scale.limit else "",
    }
    lists = {f"{{{name}}}": values for name, values in (_DATA["list"] | keys["list"]).items()}
    return {**keys, **limits, "lists": lists, "at": None, "next_at": None}


def _combinations(block: Mapping[str, Any], keys: _Keys) -> Iterator[_Keys]:
    """The keys of each cell of a block: those of the scale, of the entries that the block names, and its own."""
    combinations: list[tuple[_Keys, _Keys]] = [({}, {})]
    for key, value in block.items():
        combinations = [
            (named | _entry(key, choice) | brought, chosen | {key: choice})
            for named, chosen in combinations
            for choice, brought in _choices(key, value, keys["lists"])
        ]
    return (keys | named | chosen for named, chosen in combinations)


def _choices(key: str, value: Any, lists: _Keys) -> list[tuple[Any, _Keys]]:
    """The values of a key, each with the keys that it brings."""
    value = lists.get(value, value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return [*value.items()]
    if key in ("steps", "options") or not isinstance(value, list):
        return [(value, {})]
    return [(choice, {f"next_{key}": following}) for choice, following in zip(value, [*value[1:], None], strict=True)]


def _entry(key: str, value: Any) -> _Keys:
    """The keys of the entry that a value names: a model of resources.toml for `lm`, or one of the table of that key."""
    if key == "lm":
        return {"label": RESOURCES[value].label, "billions": RESOURCES[value].billions}
    entry: Any = _DATA.get(key, {}).get(value) if isinstance(value, str) else None
    return _with_base(entry) if isinstance(entry, dict) else {}


def _with_base(entry: _Keys) -> _Keys:
    """An entry with the keys of the table that it `reads` by."""
    return _with_base(_DATA[entry["reads"]]) | entry if "reads" in entry else entry


def _cell(keys: _Keys) -> Cell:
    steps = tuple(_step(_text(name, keys), keys) for name in keys["steps"])
    options = (_value(option, keys) for option in keys["options"])
    return Cell(
        model=_text(keys["model"], keys),
        how=keys["how"],
        column=_text(keys["column"], keys),
        measure=Measure(keys["measure"], steps, (*options,)),
        at=_value(keys["at"], keys),
        line=keys.get("line"),
    )


def _step(name: str, keys: _Keys) -> Step:
    words = _text(_DATA["step"][name], keys).split()
    end = 2 if words[0] == "train" else 1
    return Step(" ".join(words[:end]), tuple(_word(word, keys) for word in words[end:]))


def _word(word: str, keys: _Keys) -> Word:
    pieces = tuple(_piece(piece, keys) for piece in _REFERENCE.split(word) if piece)
    return pieces[0] if len(pieces) == 1 else pieces


def _piece(text: str, keys: _Keys) -> WordPart:
    match text[0]:
        case "@":
            return RESOURCES[text[1:]]
        case "$":
            return _step(text[1:], keys)
        case "%":
            return NameOf(_step(text[1:], keys))
        case _:
            return text


def _text(template: str, keys: _Keys) -> str:
    """A text with the values of keys in braces, in which other keys may be named."""
    while "{" in template:
        template = template.format_map(keys)
    return template


def _value(value: Any, keys: _Keys) -> Any:
    """A value, or the one that `{key}` names."""
    while isinstance(value, str) and value.startswith("{"):
        value = keys[value[1:-1]]
    return value


def _published(data: _Keys, columns: list[str]) -> dict[_Place, Cell]:
    """The cells of the paper alone, by their place in the table."""
    published: dict[_Place, Cell] = {}
    for model, how, *figures in data.get("published", ()):
        why_not = "no longer offered" if model in _DATA["no_longer_offered"] else "published only"
        for column, figure in zip(data.get("columns", columns), figures, strict=False):
            if figure != "-":
                published[model, how, column] = Cell(
                    model=model, how=how, column=column, measure=None, published=figure, why_not=why_not
                )
    return published


def _orders(templates: Iterable[list[str]], cells: list[tuple[Cell, _Keys]]) -> list[Order]:
    """The orders among the cells of each model and column; a fourth text is a part of the column."""
    places: dict[_Place, Measure | None] = {}
    for cell, _ in cells:
        for how in (cell.how, f"{cell.how} {cell.at or 0:g}"):
            places.setdefault((cell.model, cell.column, how), cell.measure)
    orders: dict[str, Order] = {}
    for cell, keys in cells:
        for better, worse, text, *columns in templates:
            sides = [places.get((cell.model, cell.column, _text(side, keys))) for side in (better, worse)]
            if sides[0] and sides[1] and all(column in cell.column for column in columns):
                orders.setdefault(_text(text, keys), Order(sides[0], sides[1], _text(text, keys)))
    return [*orders.values()]
