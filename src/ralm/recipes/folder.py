"""The folder of recipes: where each step's result is, found by everything that decides it.

    recipes.json     the version of ralm, and whether these are stand-ins
    inputs/          data sets of the hub that had to be written to files
    stand-ins/       what stands in for data and models
    steps/           a folder or file for each step: its command, and a hash of everything that decides its result
    tables/          a folder for each recipe: table, figure, cells

Recipes that need the same step find the same folder. A hash is of the arguments; for a file or folder of the user, of
its path, which ids of documents may begin with, and its content; for a name of the hub, of the name; for another step,
of that step's own hash.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Final

from ralm.corpus.files import read_text
from ralm.corpus.folder import fingerprint_of
from ralm.errors import DamagedFolderError, UsageError
from ralm.lm.api.endpoint import is_api
from ralm.lm.api.options import ApiOptions
from ralm.lm.named import ModelOptions
from ralm.options import flags_of
from ralm.recipes.inputs import STAND_IN_MODEL, make_stand_ins, stand_in, write_resource, write_titles
from ralm.recipes.measures import Measure
from ralm.recipes.recipe import Cell, Order, Recipe
from ralm.recipes.resources import Resource
from ralm.recipes.steps import Argument, NameOf, Step
from ralm.storage.atomic import try_file_lock
from ralm.storage.manifest import whole_checksum
from ralm.storage.outputs import replaced_file
from ralm.storage.remote import is_url
from ralm.version import __version__

MARK: Final = "recipes.json"
_READS_MODEL: Final = ("eval", "signals", "qa", "curve", "choice")
_TAKES_MODEL_OPTIONS: Final = (*_READS_MODEL, "train retriever")
_ON_CLUSTER: Final = (*_READS_MODEL, "train retriever")
_OF_RESULTS: Final = ("tokenizer", "likeliest", "context_length")
"""Options of models behind an API that may decide a result; the others say how they are asked, and what it may cost."""
_HASH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """How commands run: options of models, and the address of a Ray cluster."""

    model: ModelOptions = field(default_factory=ModelOptions)
    ray: str | None = None

    def flags(self, step: Step, *, api: bool) -> list[str]:
        """The flags that a command gets for it; `api`: whether its model is behind an API."""
        ray = [] if self.ray is None or not self._on_cluster(step) else ["--ray", self.ray]
        asking = flags_of(_without(self.model.api, _OF_RESULTS), ApiOptions()) if self._asks(step, api=api) else []
        return [*self.decisive(step, api=api), *asking, *self._device(step, api=api), *ray]

    def decisive(self, step: Step, *, api: bool) -> list[str]:
        """Those of these flags that may decide the result of a step."""
        if step.command not in _TAKES_MODEL_OPTIONS:
            return []
        if api:
            deciding = {name: getattr(self.model.api, name) for name in _OF_RESULTS}
            return flags_of(ApiOptions(**deciding), ApiOptions())
        return flags_of(replace(self.model, device="auto", api=ApiOptions()), ModelOptions())

    def _asks(self, step: Step, *, api: bool) -> bool:
        return api and step.command in _TAKES_MODEL_OPTIONS

    def _device(self, step: Step, *, api: bool) -> list[str]:
        """Several devices, and a model that is spread over them, are for commands that read with a language model."""
        device = self.model.device
        if step.command in _READS_MODEL:
            takes = not api
        else:
            trains = step.command.startswith("train") or (step.command == "index" and "--encoder" in step.arguments)
            takes = trains and device.partition(":")[0] in ("cpu", "cuda") and "," not in device
        return ["--device", device] if takes and device != "auto" else []

    def _on_cluster(self, step: Step) -> bool:
        return step.command in _ON_CLUSTER or (step.command == "index" and "--encoder" not in step.arguments)


class RecipeFolder:
    """The folder of recipes, and what the user gives instead of resources (`given`, by name).

    Nothing is read or written before `check` or `begin`.
    """

    def __init__(self, folder: Path, given: Mapping[str, str], *, stands_in: bool, ways: CommandOptions) -> None:
        self.folder = folder
        self.given = given
        self.stands_in = stands_in
        self.ways = ways
        self._keys: dict[Step, str] = {}
        self._identities: dict[Resource, str] = {}

    @property
    def _mark(self) -> dict[str, object]:
        return {"kind": "recipes", "ralm": __version__, "stand_in": self.stands_in}

    def check(self) -> None:
        """Raise UsageError if the folder belongs to another version of ralm, holds results of the other kind
        (stand-ins or not), or is something else; DamagedFolderError if that cannot be told."""
        _check_mark(self.folder, self._mark)

    def begin(self) -> None:
        """Make the folder and mark it; raises what `check` raises."""
        self.check()
        if not (self.folder / MARK).exists():
            with replaced_file(self.folder / MARK) as stream:
                json.dump(self._mark, stream)

    @cached_property
    def _stand_ins(self) -> Path:
        self.begin()
        folder = self.folder / "stand-ins"
        make_stand_ins(folder)
        return folder

    def folder_of(self, step: Step) -> Path:
        """Where the result of a step is, finished or not yet."""
        name = f"{step.command.replace(' ', '-')}-{self._key(step)}"
        return self.folder / "steps" / (f"{name}.json" if step.makes_file else name)

    def is_done(self, step: Step) -> bool:
        """Whether the result of a step is there; it appears at once, when it is complete."""
        return self.folder_of(step).exists()

    def command_line(self, step: Step) -> list[str]:
        """The arguments of `ralm` for a step."""
        arguments = [self._written(argument) for argument in step.arguments]
        flags = self.ways.flags(step, api=self.asks_api(step))
        return [*step.command.split(), *arguments, *flags, "--out", str(self.folder_of(step))]

    def asks_api(self, step: Step) -> bool:
        """Whether a model of a step is behind an API."""
        return any(one.kind == "model" and is_api(self.value(one)) for one in step.resources)

    def distinct_steps(self, steps: Sequence[Step]) -> list[Step]:
        """The steps without those whose result is that of an earlier one; only stand-ins have such."""
        distinct: dict[Path, Step] = {}
        for step in steps:
            distinct.setdefault(self.folder_of(step), step)
        return [*distinct.values()]

    def distinct(self, recipe: Recipe) -> Recipe:
        """A recipe without the cells and orders that repeat others: where one model stands in for all, its figures are
        those of every model. Such cells are named after what stands in."""
        if not self.stands_in:
            return recipe
        cells: dict[object, Cell] = {}
        for cell in recipe.cells:
            own = cell.model if cell.measure is None else self._measured(cell.measure)
            cells.setdefault((cell.how, cell.column, cell.at, own), cell)
        orders: dict[object, Order] = {}
        for order in recipe.orders:
            orders.setdefault((self._measured(order.better), self._measured(order.worse)), order)
        named = [
            replace(one, model=f"{STAND_IN_MODEL} for {one.model}") if one.measure else one for one in cells.values()
        ]
        return replace(recipe, cells=tuple(named), orders=tuple(orders.values()))

    def _measured(self, measure: Measure) -> tuple[object, ...]:
        """What a measure reads off which folders."""
        values = [getattr(measure, field.name) for field in fields(measure)]
        return (type(measure), *(self.folder_of(one) if isinstance(one, Step) else one for one in values))

    def value(self, resource: Resource) -> str:
        """What a command reads for a resource; the file may not be there yet (`provide`)."""
        if resource.name in self.given:
            return self.given[resource.name]
        if self.stands_in:
            return stand_in(resource.kind, self._stand_ins)
        return str(self._file(resource)) if resource.writes else resource.source

    def provide(self, step: Step) -> None:
        """Write the files of the hub's data sets that a step reads, unless they are there.

        Raises what `write_resource` raises.
        """
        for resource in step.resources:
            self._provide(resource)

    def is_from_hub(self, resource: Resource) -> bool:
        """Whether a resource is read from the hub."""
        return not self.stands_in and resource.name not in self.given

    def _provide(self, resource: Resource) -> None:
        if not (resource.writes and self.is_from_hub(resource)) or self._file(resource).exists():
            return
        for one in resource.of:
            self._provide(one)
        file = self._file(resource)
        file.parent.mkdir(parents=True, exist_ok=True)
        with try_file_lock(file.with_suffix(".lock"), wait=True):
            if file.exists():
                return
            if resource.writes == "titles":
                write_titles((read_text(Path(self.value(one))) for one in resource.of), file)
            else:
                write_resource(resource, file)

    def _file(self, resource: Resource) -> Path:
        suffix = ".jsonl" if resource.writes in ("articles", "lines") else ".txt"
        made_of = [self._identity_of(one) for one in resource.of]
        spelt = json.dumps([resource.source, resource.writes, resource.only, resource.most, made_of])
        return self.folder / "inputs" / f"{resource.name}-{_hash(spelt)[:8]}{suffix}"

    def _key(self, step: Step) -> str:
        if step not in self._keys:
            decides = [self._identity(argument) for argument in step.arguments]
            decides.append(self.ways.decisive(step, api=self.asks_api(step)))
            self._keys[step] = _hash(json.dumps([step.command, decides]))
        return self._keys[step]

    def _written(self, argument: Argument) -> str:
        match argument:
            case Step():
                return str(self.folder_of(argument))
            case NameOf(step=step):
                return self.folder_of(step).name
            case Resource():
                return self.value(argument)
            case _:
                return argument

    def _identity(self, argument: Argument) -> object:
        match argument:
            case Step():
                return ["step", self._key(argument)]
            case NameOf(step=step):
                return ["name", self._key(step)]
            case Resource():
                if argument not in self._identities:
                    self._identities[argument] = self._identity_of(argument)
                return ["resource", self._identities[argument]]
            case _:
                return argument

    def _identity_of(self, resource: Resource) -> str:
        """What decides what is read: a name and the content of files."""
        if resource.writes and self.is_from_hub(resource):
            return self._file(resource).name
        value = self.value(resource)
        path = Path(value)
        if is_url(value) and resource.kind == "corpus":
            return f"{value} {fingerprint_of([value])}"
        if value == STAND_IN_MODEL or not path.exists():
            return value
        name = path.relative_to(self.folder) if path.is_relative_to(self.folder) else path.resolve()
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        return " ".join([str(name), *(f"{one.name} {whole_checksum(one)}" for one in files)])


def check_given(given: Mapping[str, str], known: list[str]) -> None:
    """Raise UsageError if a name is that of no resource."""
    for name in given:
        if name not in known:
            raise UsageError(f"there is no resource {name!r} here; {nearest(name, known)}.")


def nearest(name: str, known: list[str]) -> str:
    """The names that are most like a wrong one, for a message."""
    like = get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(like)}?" if like else f"there are {', '.join(known)}"


def _without(options: ApiOptions, names: Sequence[str]) -> ApiOptions:
    """Options with the defaults of some."""
    plain = ApiOptions()
    return replace(options, **{name: getattr(plain, name) for name in names})


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH]


def _is_ours(path: Path) -> bool:
    """Whether this is what a killed process left when it made the folder."""
    return path.name.startswith(f".{MARK}")


def _check_mark(folder: Path, mark: Mapping[str, object]) -> None:
    file = folder / MARK
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(not _is_ours(one) for one in folder.iterdir())):
            raise UsageError(f"{folder} is not a folder of recipes, and is not empty: choose another `out`.")
        return
    try:
        found = json.loads(file.read_bytes())
        kind, version, stands_in = found["kind"], found["ralm"], found["stand_in"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFolderError(f"{folder} is damaged: its {MARK} cannot be read; choose another `out`.") from error
    if kind != mark["kind"]:
        raise UsageError(f"{folder} is not a folder of recipes: choose another `out`.")
    if version != mark["ralm"]:
        raise UsageError(
            f"{folder} holds results of ralm {version}, and this is {__version__}: figures of two versions are not "
            "mixed. Choose another `out`, or use that version."
        )
    if stands_in != mark["stand_in"]:
        held = "stand-ins" if stands_in else "no stand-ins"
        raise UsageError(f"{folder} holds results with {held}: choose another `out`.")
