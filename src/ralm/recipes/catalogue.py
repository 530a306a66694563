"""All recipes by name, made of data, and the folder of their results.

The tables and figures of the papers are in in_context_ralm.toml and replug.toml, ours in analysis.toml; readings.toml
describes their keys. A folder of results has:

    inputs/          data sets of the hub that had to be written to files
    stand-ins/       stand-ins for data and models
    steps/           a folder or file for each step: its command, and a hash of everything that decides its result
    tables/          a folder for each recipe: table, figure, cells

Recipes that need the same step find the same folder. A hash is of the version of ralm and the words of the command:
with the names of the folders of other steps, which have a hash themselves; for a file or folder of the user, its path,
which ids of documents may begin with, and its content; for a name of the hub, the name.
"""

import hashlib
import json
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from ralm import __version__
from ralm.corpus.sources import fingerprint_of
from ralm.errors import RalmError, UsageError
from ralm.grammar import keys_text, quoted
from ralm.lm import TINY
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.lm.registry import ModelOptions
from ralm.recipes.inputs import stand_in, write_input
from ralm.recipes.recipe import RESOURCES, Cell, Measure, Order, Recipe, Resource, Step
from ralm.storage import manifest, remote

WRITES_INPUTS: Final = ("python", "-m", "ralm.recipes.inputs")
"""The program that writes the files of resources."""
REFERENCE: Final = re.compile(r"[@$%][\w.-]*\w")
"""What stands in the text of a step for a resource, the result of another step, or the name of that."""
_READS_MODEL: Final = ("eval", "signals", "qa", "train")
_DECISIVE: Final = ("tokenizer", "top_logprobs", "context_length")
"""Options of models behind an API that may decide a result; the others are about requests and their cost."""
_HASH: Final = 16
_LOG: Final = logging.getLogger(__name__)


class _Input(NamedTuple):
    """What is read for a resource: a file or name, what identifies it, and the step that writes it, if one does."""

    source: str
    identity: str
    writer: Step | None = None


@dataclass(eq=False)
class RecipeFolder:
    """The folder of recipes, with `replacements` of resources by name; with `stand_in`, the rest is small and local."""

    folder: Path = Path("OUT")
    replacements: Mapping[str, str] = field(default_factory=dict)
    _: KW_ONLY
    stand_in: bool = False
    limit_tokens: int | None = None
    model: ModelOptions = field(default_factory=ModelOptions)

    def table_of(self, recipe: str, only: str | None = None) -> Path:
        """Return the folder of a recipe's table, or of its part about one model."""
        parts = [*recipe.split("/"), *(["only", *only.lower().split()] if only else [])]
        return self.folder / "tables" / "-".join([*parts, *(["stand-in"] if self.stand_in else [])])

    def step(self, text: str, references: Mapping[str, Step | Resource]) -> Step:
        """Return the step of a command, in whose text resources and steps stand as REFERENCE says."""
        inputs = {
            reference: self._inputs[part.name]
            if isinstance(part, Resource)
            else _Input(part.path.name if reference.startswith("%") else str(part.path), part.path.name, part)
            for reference, part in references.items()
        }
        reads = {part: inputs[name].source for name, part in references.items() if isinstance(part, Resource)}
        words = text.split()
        model_args, decisive = "", ""
        if words[0] in _READS_MODEL and "--lm" in words:
            is_asked = any(part.kind == "model" and is_api(source) for part, source in reads.items())
            model_args, decisive = self._model_args(words[0], is_asked=is_asked)
        identities = {reference: read.identity for reference, read in inputs.items()}
        command = "-".join(words[: 2 if words[0] == "train" else 1])
        name = f"{command}-{_hash([__version__, *(_filled(word, identities) for word in words), decisive])}"
        path = self.folder / "steps" / (f"{name}.json" if command == "retrieve" else name)
        sources = {reference: read.source for reference, read in inputs.items()}
        how = ["--lm-args", model_args] if model_args else []
        return Step(
            path=path,
            words=("ralm", *(_filled(word, sources) for word in words), *how, "--out", str(path)),
            needs=tuple(read.writer for read in inputs.values() if read.writer),
            reads=tuple(reads.items()),
        )

    def _model_args(self, command: str, *, is_asked: bool) -> tuple[str, str]:
        """Return the keys of `--lm-args` for a step, whose model may be behind an API, and those that are decisive."""
        if is_asked:
            decisive = ApiOptions(**{name: getattr(self.model.api, name) for name in _DECISIVE})
            return keys_text(self.model.api, ApiOptions()), keys_text(decisive, ApiOptions())
        here = replace(self.model, api=ApiOptions())
        decides = keys_text(replace(here, device="auto", ray=None), ModelOptions())
        # in a training, the model runs where the training does
        return decides if command == "train" else keys_text(here, ModelOptions()), decides

    @cached_property
    def _inputs(self) -> Mapping[str, _Input]:
        """The input for each resource, by name."""
        inputs: dict[str, _Input] = {}
        for name, resource in RESOURCES.items():
            if name not in self.replacements and self.stand_in:
                inputs[name] = self._stand_in_for(resource)
            elif name not in self.replacements and resource.form:
                inputs[name] = self._written(resource, {part: inputs[part] for part in resource.made_of})
            else:
                source = self.replacements.get(name, resource.source)
                inputs[name] = _Input(source, _identity_of(source, resource))
        return inputs

    def _stand_in_for(self, resource: Resource) -> _Input:
        if resource.kind == "model":
            return _Input(TINY, TINY)
        file = stand_in(resource.kind, self._stand_ins.path)
        return _Input(str(file), file.name, self._stand_ins)

    @cached_property
    def _stand_ins(self) -> Step:
        path = self.folder / "stand-ins"
        return Step(path, (*WRITES_INPUTS, "stand-ins", str(path)))

    def _written(self, resource: Resource, texts: Mapping[str, _Input]) -> _Input:
        """Return the file of a data set, or of the texts that it is made of."""
        read = {RESOURCES[name]: text.source for name, text in texts.items()} or {resource: resource.source}
        made_of = [text.identity for text in texts.values()]
        decides = [resource.source, resource.form, resource.only, resource.max_rows, made_of]
        suffix = ".jsonl" if resource.form in ("articles", "lines") else ".txt"
        path = self.folder / "inputs" / f"{resource.name}-{_hash(decides)}{suffix}"
        writer = Step(
            path=path,
            words=(*WRITES_INPUTS, resource.name, str(path), *(text.source for text in texts.values())),
            needs=tuple(text.writer for text in texts.values() if text.writer),
            reads=tuple(read.items()),
        )
        return _Input(str(path), path.name, writer)


def run_steps(steps: Sequence[Step], run: Callable[[Sequence[str]], None]) -> None:
    """Run the steps, which are in order, unless their results exist; `run` executes a command of ralm."""
    for number, step in enumerate(steps, 1):
        at = f"[{number}/{len(steps)}] {step.path.name}"
        if step.is_done:
            _LOG.info("%s: done before", at)
            continue
        _LOG.info("%s: %s", at, step.command)
        try:
            if step.words[: len(WRITES_INPUTS)] == WRITES_INPUTS:
                name, _, *texts = step.words[len(WRITES_INPUTS) :]
                write_input(name, step.path, [*map(Path, texts)])
            else:
                run(step.words[1:])
        except RalmError as error:
            error.args = (f"{at}: {error}",)
            raise


def _identity_of(source: str, resource: Resource) -> str:
    """Return a text that identifies a name, or a file by its content."""
    path = Path(source)
    if remote.is_url(source) and resource.kind == "corpus":
        return f"{source} {fingerprint_of([source])}"
    if source == TINY or not path.exists():
        return source
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return " ".join([str(path.resolve()), *(f"{file.name} {manifest.whole_checksum(file)}" for file in files)])


def _filled(word: str, texts: Mapping[str, str]) -> str:
    """Return a word with texts in place of its references, in quotes if they are values of keys."""
    return texts.get(word) or REFERENCE.sub(lambda reference: quoted(texts[reference[0]]), word)


def _hash(decides: object) -> str:
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:_HASH]


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
