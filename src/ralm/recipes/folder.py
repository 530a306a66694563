"""The folder of recipes, where each step's result is found by everything that decides it.

    recipes.json     the version of ralm, and whether these are stand-ins
    inputs/          data sets of the hub that had to be written to files
    stand-ins/       stand-ins for data and models
    steps/           a folder or file for each step: its command, and a hash of everything that decides its result
    tables/          a folder for each recipe: table, figure, cells

Recipes that need the same step find the same folder. A hash is of the arguments; for a file or folder of the user, of
its path, which ids of documents may begin with, and its content; for a name of the hub, of the name; for another step,
of that step's own hash.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Final

from ralm.corpus.files import read_text
from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.sources import fingerprint_of
from ralm.errors import DamagedFolderError, InputError, UsageError
from ralm.grammar import keys_text, quoted
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.lm.registry import ModelOptions
from ralm.recipes import measures, resources
from ralm.recipes.inputs import STAND_IN_MODEL, make_stand_ins, stand_in, write_resource, write_titles
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.steps import Argument, Keyed, NameOf, Step, in_order
from ralm.retrieval.dense.options import EncoderOptions
from ralm.storage import atomic, manifest, outputs, remote
from ralm.version import __version__

MARK: Final = "recipes.json"
_READS_MODEL: Final = ("eval", "signals", "qa")
_TAKES_MODEL_OPTIONS: Final = (*_READS_MODEL, "train retriever")
_DECISIVE: Final = ("tokenizer", "top_logprobs", "context_length")
"""Options of models behind an API that may decide a result; the others are about requests and their cost."""
_HASH: Final = 16
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(eq=False)
class RecipeFolder:
    """The folder of recipes, with the user's `replacements` of resources, by name, and how a `model` runs.

    Nothing is read or written before `check` or `begin`.
    """

    folder: Path
    replacements: Mapping[str, str] = field(default_factory=dict)
    _: KW_ONLY
    stand_in: bool = False
    model: ModelOptions = field(default_factory=ModelOptions)
    _keys: dict[Step, str] = field(default_factory=dict)
    _identities: dict[resources.Resource, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise UsageError if the folder belongs to another version of ralm, holds results of the other kind
        (stand-ins or not), or is something else; DamagedFolderError if its mark cannot be read."""
        folder = self.folder
        if not (folder / MARK).exists():
            # A killed process leaves a hidden partial mark, which does not make the folder someone else's.
            if folder.exists() and not (
                folder.is_dir() and all(one.name.startswith(f".{MARK}") for one in folder.iterdir())
            ):
                raise UsageError(f"{folder} is not a folder of recipes, and is not empty: choose another `out`.")
            return
        try:
            found = json.loads((folder / MARK).read_bytes())
            kind, version, stand_in = found["kind"], found["ralm"], found["stand_in"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedFolderError(
                f"{folder} is damaged: its {MARK} cannot be read; choose another `out`."
            ) from error
        if kind != "recipes":
            raise UsageError(f"{folder} is not a folder of recipes: choose another `out`.")
        if version != __version__:
            raise UsageError(
                f"{folder} holds results of ralm {version}, and this is {__version__}: figures of two versions are not "
                "mixed. Choose another `out`, or use that version."
            )
        if stand_in != self.stand_in:
            held = "stand-ins" if stand_in else "no stand-ins"
            raise UsageError(f"{folder} holds results with {held}: choose another `out`.")

    def begin(self) -> None:
        """Make the folder and mark it; raises what `check` raises."""
        self.check()
        if not (self.folder / MARK).exists():
            with outputs.replaced_file(self.folder / MARK) as stream:
                json.dump({"kind": "recipes", "ralm": __version__, "stand_in": self.stand_in}, stream)

    @cached_property
    def _stand_ins(self) -> Path:
        self.begin()
        folder = self.folder / "stand-ins"
        make_stand_ins(folder)
        return folder

    def path_of(self, step: Step) -> Path:
        """The path of a step's result, finished or not yet."""
        name = f"{step.command.replace(' ', '-')}-{self._key(step)}"
        return self.folder / "steps" / (f"{name}.json" if step.command == "retrieve" else name)

    def is_done(self, step: Step) -> bool:
        """Whether the result of a step exists; it appears at once, when it is complete."""
        return self.path_of(step).exists()

    def command_line(self, step: Step) -> list[str]:
        """The arguments of `ralm` for a step."""
        arguments = [self._written(argument) for argument in step.arguments]
        device = self.model.device
        if device.partition(":")[0] in ("cpu", "cuda") and "," not in device:  # neither several, nor a model spread
            if step.command.startswith("train"):
                arguments += ["--device", device]
            elif step.has(EncoderOptions):
                encoding = arguments.pop() if arguments[-2] == "--encoder-args" else ""
                arguments += [] if encoding else ["--encoder-args"]
                arguments.append(f"{encoding},device={device}".lstrip(","))
        return [*step.command.split(), *arguments, *self._model_flags(step), "--out", str(self.path_of(step))]

    def _model_flags(self, step: Step) -> list[str]:
        """The flags that the command of a step gets for its model and a cluster."""
        if step.command not in _TAKES_MODEL_OPTIONS:
            return []
        ray: list[str] = []
        used = ModelOptions(api=self.model.api) if self.uses_api(step) else replace(self.model, api=ApiOptions())
        if step.command not in _READS_MODEL:
            used = replace(used, device="auto", ray=None)
            ray = ["--ray", self.model.ray] if self.model.ray else []
        keys = keys_text(used, ModelOptions())
        return [*(["--lm-args", keys] if keys else []), *ray]

    def _decisive_keys(self, step: Step) -> str:
        """Those of the keys of `--lm-args` that may decide the result of a step."""
        if step.command not in _TAKES_MODEL_OPTIONS:
            return ""
        if self.uses_api(step):
            decisive = {name: getattr(self.model.api, name) for name in _DECISIVE}
            return keys_text(ApiOptions(**decisive), ApiOptions())
        return keys_text(replace(self.model, device="auto", ray=None, api=ApiOptions()), ModelOptions())

    def uses_api(self, step: Step) -> bool:
        """Whether a model of a step is behind an API."""
        return any(one.kind == "model" and is_api(self.source_of(one)) for one in step.resources)

    def distinct_steps(self, steps: Sequence[Step]) -> list[Step]:
        """The steps without repetitions; with stand-ins, several steps have the same result."""
        distinct: dict[Path, Step] = {}
        for step in steps:
            distinct.setdefault(self.path_of(step), step)
        return [*distinct.values()]

    def as_run(self, recipe: Recipe) -> Recipe:
        """A recipe whose models are named after those that took their place.

        With stand-ins, cells and orders whose figures repeat others are not measured again: with one stand-in for all
        models, its figures are those of every model. The cells keep the paper's figures.
        """
        names = {cell.model: self._name_of(cell.model, cell.measure) for cell in recipe.cells if cell.measure}
        cells: dict[object, Cell] = {}
        for cell in recipe.cells:
            own = cell if cell.measure is None else self._identity_of_measure(cell.measure)
            key = (cell.how, cell.column, cell.at, own) if self.stand_in else cell
            if key not in cells:
                cells[key] = replace(cell, model=names[cell.model]) if cell.measure else cell
            elif cell.published is not None:
                cells[cell] = replace(cell, measure=None, why_not="same stand-in")
        orders: dict[object, Order] = {}
        for order in recipe.orders:
            pair = (self._identity_of_measure(order.better), self._identity_of_measure(order.worse))
            text = re.sub(r"[^:, ][^:,]*", lambda part: names.get(part[0], part[0]), order.text)
            orders.setdefault(pair if self.stand_in else order, replace(order, text=text))
        return replace(recipe, cells=tuple(cells.values()), orders=tuple(orders.values()))

    def _name_of(self, model: str, measure: measures.Measure) -> str:
        """The name of a model in a table, after the one that is used for it."""
        used = [
            self.source_of(one)
            for step in in_order(measure.steps)
            for one in step.resources
            if one.kind == "model" and model in (one.name, one.label) and not self.is_from_hub(one)
        ]
        return f"{Path(used[0]).name} for {model}" if used else model

    def _identity_of_measure(self, measure: measures.Measure) -> tuple[object, ...]:
        return measure.read, measure.options, *map(self.path_of, measure.steps)

    def source_of(self, resource: resources.Resource) -> str:
        """The argument of a command for a resource; a file may not exist yet (`write_inputs`)."""
        if resource.name in self.replacements:
            return self.replacements[resource.name]
        if self.stand_in:
            return stand_in(resource.kind, self._stand_ins)
        return str(self._file(resource)) if resource.form else resource.source

    def is_from_hub(self, resource: resources.Resource) -> bool:
        """Whether a resource is read from the hub."""
        return not self.stand_in and resource.name not in self.replacements

    def write_inputs(self, step: Step) -> None:
        """Write the files of the hub's data sets that a step reads, unless they exist.

        Raises what `write_resource` raises.
        """
        for resource in step.resources:
            self._write_input(resource)

    def _write_input(self, resource: resources.Resource) -> None:
        if not (resource.form and self.is_from_hub(resource)) or self._file(resource).exists():
            return
        for one in resource.made_of:
            self._write_input(one)
        file = self._file(resource)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two recipes may share the folder: the second waits for the file instead of reading the data set again.
        with atomic.try_file_lock(file.with_suffix(".lock"), wait=True):
            if file.exists():
                return
            if resource.form == "titles":
                write_titles((read_text(Path(self.source_of(one))) for one in resource.made_of), file)
            else:
                write_resource(resource, file)

    def _file(self, resource: resources.Resource) -> Path:
        suffix = ".jsonl" if resource.form in ("articles", "lines") else ".txt"
        made_of = [self._identity_of(one) for one in resource.made_of]
        spelt = json.dumps([resource.source, resource.form, resource.only, resource.max_rows, made_of])
        return self.folder / "inputs" / f"{resource.name}-{_hash(spelt)[:8]}{suffix}"

    def _key(self, step: Step) -> str:
        if step not in self._keys:
            decides = [self._identity(argument) for argument in step.arguments]
            decides.append(self._decisive_keys(step))
            self._keys[step] = _hash(json.dumps([step.command, decides]))
        return self._keys[step]

    def _written(self, argument: Argument) -> str:
        match argument:
            case Step():
                return str(self.path_of(argument))
            case NameOf(step=step):
                return self.path_of(step).name
            case Keyed(text=text, value=value):
                return text + quoted(self._written(value))
            case resources.Resource():
                return self.source_of(argument)
            case _:
                return argument

    def _identity(self, argument: Argument) -> object:
        match argument:
            case Step():
                return ["step", self._key(argument)]
            case NameOf(step=step):
                return ["name", self._key(step)]
            case Keyed(text=text, value=value):
                return [text, self._identity(value)]
            case resources.Resource():
                if argument not in self._identities:
                    self._identities[argument] = self._identity_of(argument)
                return ["resource", self._identities[argument]]
            case _:
                return argument

    def _identity_of(self, resource: resources.Resource) -> str:
        """The name of a resource; for files, with their content."""
        if resource.form and self.is_from_hub(resource):
            return self._file(resource).name
        source = self.source_of(resource)
        path = Path(source)
        if remote.is_url(source) and resource.kind == "corpus":
            return f"{source} {fingerprint_of([source])}"
        if source == STAND_IN_MODEL or not path.exists():
            return source
        name = path.relative_to(self.folder) if path.is_relative_to(self.folder) else path.resolve()
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        return " ".join([str(name), *(f"{one.name} {manifest.whole_checksum(one)}" for one in files)])


def check_replacements(replacements: Mapping[str, str], known: Mapping[str, resources.Resource]) -> None:
    """Raise UsageError if a name is that of no resource, or InputError if a file or folder does not exist."""
    for name, value in replacements.items():
        if name not in known:
            raise UsageError(f"there is no resource {name!r} here; {nearest_names(name, [*known])}.")
        match known[name].kind:
            case "model" | "encoder":
                may_be_elsewhere = _HUB_NAME.fullmatch(value) is not None or remote.is_url(value)
            case "text" | "titles":
                may_be_elsewhere = False
            case _:
                may_be_elsewhere = value.startswith(HUB_PREFIX) or remote.is_url(value)
        if not (may_be_elsewhere or Path(value).exists()):
            raise InputError(f"{value}, given for {name}, does not exist.")


def nearest_names(name: str, known: list[str]) -> str:
    """The names that are most like a wrong one, for a message."""
    like = get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(like)}?" if like else f"there are {', '.join(known)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]
