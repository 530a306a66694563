"""The folder of recipes, where each step's result is found by everything that decides it.

    recipes.json     the version of ralm, and whether these are stand-ins
    inputs/          data sets of the hub that had to be written to files
    stand-ins/       stand-ins for data and models
    steps/           a folder or file for each step: its command, and a hash of everything that decides its result
    tables/          a folder for each recipe: table, figure, cells

Recipes that need the same step find the same folder. A hash is of the command line: with the names of the folders of
other steps, which have a hash themselves; for a file or folder of the user, its path, which ids of documents may begin
with, and its content; for a name of the hub, the name.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.corpus.files import read_text
from ralm.corpus.sources import fingerprint_of
from ralm.errors import DamagedFolderError, UsageError
from ralm.grammar import keys_text, quoted
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.lm.registry import ModelOptions
from ralm.recipes.inputs import STAND_IN_MODEL, make_stand_ins, stand_in, write_resource
from ralm.recipes.measures import Measure
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.steps import NameOf, Resource, Step, Word, in_order
from ralm.storage import atomic, manifest, outputs, remote
from ralm.version import __version__

MARK: Final = "recipes.json"
STEPS: Final = "steps"
_INPUTS: Final = "inputs"
_READS_MODEL: Final = ("eval", "signals", "qa")
_TAKES_MODEL_OPTIONS: Final = (*_READS_MODEL, "train retriever")
_DECISIVE: Final = ("tokenizer", "top_logprobs", "context_length")
"""Options of models behind an API that may decide a result; the others are about requests and their cost."""
_HASH: Final = 16


@dataclass(eq=False)
class RecipeFolder:
    """The folder of recipes, with the user's `replacements` of resources, by name, and how a `model` runs."""

    folder: Path
    replacements: Mapping[str, str] = field(default_factory=dict)
    _: KW_ONLY
    stand_in: bool = False
    model: ModelOptions = field(default_factory=ModelOptions)
    _keys: dict[Step, str] = field(default_factory=dict)
    _identities: dict[Resource, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError if the folder belongs to another version of ralm, holds results of the other kind
        (stand-ins or not), or is something else; DamagedFolderError if its mark cannot be read."""
        folder = self.folder
        if not (folder / MARK).exists():
            # A script of `ralm recipe NAME` made only these, and a killed process a hidden partial mark.
            if folder.exists() and not (
                folder.is_dir()
                and all(path.name in (STEPS, _INPUTS) or path.name.startswith(f".{MARK}") for path in folder.iterdir())
            ):
                raise UsageError(f"{folder} is not a folder of recipes, and is not empty: choose another `out`.")
            return
        try:
            mark = json.loads((folder / MARK).read_bytes())
            content = f"results {'with' if mark['stand_in'] else 'without'} stand-ins of ralm {mark['ralm']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedFolderError(
                f"{folder} is damaged: its {MARK} cannot be read; choose another `out`."
            ) from error
        if mark != self._mark:
            raise UsageError(f"{folder} holds {content}, which are not mixed with others: choose another `out`.")

    def begin(self) -> None:
        """Make the folder and mark it; raises what `check` raises."""
        self.check()
        if not (self.folder / MARK).exists():
            with outputs.replaced_file(self.folder / MARK) as stream:
                json.dump(self._mark, stream)

    @property
    def _mark(self) -> dict[str, JsonValue]:
        return {"kind": "recipes", "ralm": __version__, "stand_in": self.stand_in}

    @cached_property
    def _stand_ins(self) -> Path:
        self.begin()
        folder = self.folder / "stand-ins"
        make_stand_ins(folder)
        return folder

    def path_of(self, step: Step) -> Path:
        """Return the path of a step's result, finished or not yet."""
        name = f"{step.command.replace(' ', '-')}-{self._key(step)}"
        return self.folder / STEPS / (f"{name}.json" if step.command == "retrieve" else name)

    def is_done(self, step: Step) -> bool:
        """Return whether the result of a step exists; it appears at once, when it is complete."""
        return self.path_of(step).exists()

    def distinct_steps(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps without repetitions; with stand-ins, several steps have the same result."""
        distinct: dict[Path, Step] = {}
        for step in steps:
            distinct.setdefault(self.path_of(step), step)
        return [*distinct.values()]

    def command_line(self, step: Step) -> list[str]:
        """Return the arguments of `ralm` for a step."""
        words = [self._written(word, self._place_of) for word in step.words]
        device = self.model.device
        if device.partition(":")[0] in ("cpu", "cuda") and "," not in device:  # neither several, nor a model spread
            if step.command.startswith("train"):
                words += ["--device", device]
            elif step.command == "index" and "--encoder" in words:
                encoding = f"{words.pop()}," if words[-2] == "--encoder-args" else ""
                words += [] if encoding else ["--encoder-args"]
                words.append(f"{encoding}device={device}")
        return [*step.command.split(), *words, *self._model_flags(step), "--out", str(self.path_of(step))]

    def _model_flags(self, step: Step) -> list[str]:
        """The flags that the command of a step gets for its model and a cluster."""
        if step.command not in _TAKES_MODEL_OPTIONS:
            return []
        ray: list[str] = []
        used = ModelOptions(api=self.model.api) if self._uses_api(step) else replace(self.model, api=ApiOptions())
        if step.command not in _READS_MODEL:
            used = replace(used, device="auto", ray=None)
            ray = ["--ray", self.model.ray] if self.model.ray else []
        keys = keys_text(used, ModelOptions())
        return [*(["--lm-args", keys] if keys else []), *ray]

    def _decisive_keys(self, step: Step) -> str:
        """Those of the keys of `--lm-args` that may decide the result of a step."""
        if step.command not in _TAKES_MODEL_OPTIONS:
            return ""
        if self._uses_api(step):
            decisive = {name: getattr(self.model.api, name) for name in _DECISIVE}
            return keys_text(ApiOptions(**decisive), ApiOptions())
        return keys_text(replace(self.model, device="auto", ray=None, api=ApiOptions()), ModelOptions())

    def _uses_api(self, step: Step) -> bool:
        """Whether a model of a step is behind an API."""
        return any(resource.kind == "model" and is_api(self.source_of(resource)) for resource in step.resources)

    def _key(self, step: Step) -> str:
        """The hash of everything that decides a step."""
        if step not in self._keys:
            decides = [self._written(word, self._identity_of) for word in step.words]
            self._keys[step] = _hash(json.dumps([step.command, decides, self._decisive_keys(step)]))
        return self._keys[step]

    def _written(self, word: Word, text_of: Callable[[Step | Resource], str]) -> str:
        """A word of a command; a step or a resource is written as `text_of` says."""
        match word:
            case str():
                return word
            case tuple():
                return "".join(part if isinstance(part, str) else quoted(self._written(part, text_of)) for part in word)
            case NameOf():
                return self.path_of(word.step).name
            case _:
                return text_of(word)

    def _place_of(self, part: Step | Resource) -> str:
        return str(self.path_of(part)) if isinstance(part, Step) else self.source_of(part)

    def _identity_of(self, part: Step | Resource) -> str:
        """The name of a step's folder, or of a resource; for files, with their content."""
        if isinstance(part, Step):
            return self.path_of(part).name
        if part not in self._identities:
            self._identities[part] = self._identity_of_resource(part)
        return self._identities[part]

    def _identity_of_resource(self, resource: Resource) -> str:
        if self._is_written(resource):
            return self._file(resource).name
        source = self.source_of(resource)
        path = Path(source)
        if remote.is_url(source) and resource.kind == "corpus":
            return f"{source} {fingerprint_of([source])}"
        if source == STAND_IN_MODEL or not path.exists():
            return source
        name = path.relative_to(self.folder) if path.is_relative_to(self.folder) else path.resolve()
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        return " ".join([str(name), *(f"{file.name} {manifest.whole_checksum(file)}" for file in files)])

    def source_of(self, resource: Resource) -> str:
        """Return the argument of a command for a resource; a file may not exist yet (`write_input`)."""
        if resource.name in self.replacements:
            return self.replacements[resource.name]
        if self.stand_in:
            return stand_in(resource.kind, self._stand_ins)
        return str(self._file(resource)) if resource.form else resource.source

    def is_from_hub(self, resource: Resource) -> bool:
        """Return whether a resource is read from the hub."""
        return not self.stand_in and resource.name not in self.replacements

    def _is_written(self, resource: Resource) -> bool:
        """Whether a data set of the hub is written to a file."""
        return bool(resource.form) and self.is_from_hub(resource)

    def _file(self, resource: Resource) -> Path:
        suffix = ".jsonl" if resource.form in ("articles", "lines") else ".txt"
        made_of = [self._identity_of(part) for part in resource.made_of]
        spelt = json.dumps([resource.source, resource.form, resource.only, resource.max_rows, made_of])
        return self.folder / _INPUTS / f"{resource.name}-{_hash(spelt)[:8]}{suffix}"

    def parts_of(self, resource: Resource) -> tuple[Resource, ...]:
        """Return what a resource is made of, if its file has to be made, and otherwise itself."""
        is_made = self._is_written(resource) and not self._file(resource).exists()
        return (is_made and resource.made_of) or (resource,)

    def inputs_of(self, step: Step) -> Iterator[Resource]:
        """Yield the data sets of the hub that a step reads from files which don't exist yet, in order."""
        for resource in step.resources:
            for part in dict.fromkeys((*self.parts_of(resource), resource)):
                if self._is_written(part) and not self._file(part).exists():
                    yield part

    def input_line(self, resource: Resource) -> list[str]:
        """Return the arguments of `ralm.recipes.inputs` that write the file of a data set."""
        return [resource.name, self.source_of(resource), *map(self.source_of, resource.made_of)]

    def write_input(self, resource: Resource) -> None:
        """Write the file of a data set of the hub; raises what `write_resource` raises."""
        file = self._file(resource)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two recipes may share the folder: the second waits for the file instead of reading the data set again.
        with atomic.file_lock(file.with_suffix(".lock"), wait=True):
            if not file.exists():
                texts = (read_text(Path(self.source_of(part))) for part in resource.made_of)
                write_resource(resource, file, texts)

    def as_run(self, recipe: Recipe) -> Recipe:
        """Return a recipe whose models are named after those that took their place, without cells and orders whose
        figures repeat others: with one stand-in for all models, its figures are those of every model. The cells keep
        the paper's figures."""
        cells: dict[object, Cell] = {}
        for cell in recipe.cells:
            measured = self._identity_of_measure(cell.measure) if cell.measure else cell.model
            key = (cell.how, cell.column, cell.at, measured)
            if key not in cells:
                cells[key] = replace(cell, model=self._name_of(cell.model, cell.measure))
            elif cell.published is not None:
                cells[cell] = replace(cell, measure=None, why_not="same stand-in")
        orders: dict[object, Order] = {}
        for order in recipe.orders:
            orders.setdefault((self._identity_of_measure(order.better), self._identity_of_measure(order.worse)), order)
        return replace(recipe, cells=tuple(cells.values()), orders=tuple(orders.values()))

    def _name_of(self, model: str, measure: Measure | None) -> str:
        """The name of a model in a table, after the one that is used for it."""
        for step in in_order(measure.steps if measure else ()):
            for resource in step.resources:
                if model in (resource.name, resource.label) and not self.is_from_hub(resource):
                    return f"{Path(self.source_of(resource)).name} for {model}"
        return model

    def _identity_of_measure(self, measure: Measure) -> tuple[object, ...]:
        return measure.name, measure.options, *map(self.path_of, measure.steps)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]
