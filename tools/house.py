"""Print the sizes of the source tree and whatever breaks its rules; the exit status is 1 if anything does.

    python -m tools.house

The rules: sizes within their limits, public names and blocks of code that are defined once. A size whose aim is not
reached has a limit, which goes down with the size. codespell rejects the words of tools/house_words.txt.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "ralm"
GENERATED: Final = {"command-line.md", "python-api.md", "reference-figures.md"}
VAGUE: Final = frozenset(["one", "found", "own", "given", "known", "some", "wanted", "held", "left", "others"])
BLOCK: Final = 8
"""Two blocks of so many equal lines of code are a duplicate."""


class Figure(NamedTuple):
    """A size of the tree, its aim, and the limit that a change may not pass."""

    name: str
    value: float
    aim: float
    limit: float
    at_least: bool = False

    def within(self, bound: float) -> bool:
        """Whether the size is at most this much, or at least, if larger is better."""
        return self.value >= bound if self.at_least else self.value <= bound

    def __str__(self) -> str:
        mark = "ok" if self.within(self.aim) else "aim" if self.within(self.limit) else "NOT"
        return f"{mark:3} {self.name:32} {self.value:>10,.5g}   aim {self.aim:,g}, limit {self.limit:,g}"


class Module(NamedTuple):
    """A module of the package: its path below src/ralm, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.splitlines()


def figures(modules: list[Module]) -> list[Figure]:
    """Sizes of the tree, with the limits that they keep."""
    lengths = [len(module.lines) for module in modules]
    imports = sum(
        node.end_lineno - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno
    )
    names = sum(vague_names(module) for module in modules)
    pages = [path for path in tracked("docs/*.md") if path.name not in GENERATED]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    return [
        Figure("files in src", len(modules), aim=200, limit=197),
        Figure("lines in src", sum(lengths), aim=38_000, limit=40_491),
        Figure("lines in recipes", lines_of("src/ralm/recipes/*.py"), aim=1_200, limit=1_173),
        Figure("median lines of a file", statistics.median(lengths), aim=130, limit=130, at_least=True),
        Figure("lines of the longest file", max(lengths), aim=450, limit=399),
        Figure("names such as one and found", names, aim=150, limit=22),
        Figure("imports, % of lines", 100 * imports / sum(lengths), aim=6, limit=7.32),
        Figure("lines in tests", lines_of("tests/*.py"), aim=34_000, limit=37_681),
        Figure("lines in benchmarks", lines_of("benchmarks/*.py"), aim=2_500, limit=2_480),
        Figure("lines in tools", lines_of("tools/*.py"), aim=1_500, limit=1_491),
        Figure("words in docs, hand-written", words, aim=26_000, limit=24_899),
    ]


def vague_names(module: Module) -> int:
    """Return how often a module uses a name that is no noun of the domain."""
    names = (getattr(node, field, None) for node in ast.walk(module.tree) for field in ("id", "arg", "attr", "name"))
    return sum(str(name).strip("_") in VAGUE for name in names)


def lines_of(pattern: str) -> int:
    """Return the number of lines of files of the repository."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tracked(pattern))


def repeated_names(modules: list[Module]) -> Iterator[str]:
    """Public names that two modules define at their top level."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for name in defined(module.tree):
            if not name.startswith("_"):
                places[name].add(module.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{name} is defined in {', '.join(sorted(paths))}; rename one, or make it private."


def defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines at its top level."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def repeated_blocks(modules: list[Module]) -> Iterator[str]:
    """Pairs of places with the same BLOCK lines of code, each named once by its beginning."""
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    for module in modules:
        code = list(code_lines(module))
        latest: str | None = None
        for begin in range(len(code) - BLOCK + 1):
            numbers, texts = zip(*code[begin : begin + BLOCK], strict=True)
            first = seen.setdefault(texts, (module.path, numbers[0]))
            if first == (module.path, numbers[0]):
                latest = None
            elif latest is None:
                latest = first[0]
                yield f"{module.path}:{numbers[0]} repeats {first[0]}:{first[1]}; define it once."


def code_lines(module: Module) -> Iterator[tuple[int, str]]:
    """The numbers and texts of the lines that hold code: no imports, docstrings, comments, lone brackets."""
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if (text or isinstance(node, ast.Import | ast.ImportFrom)) and isinstance(node, ast.stmt):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(module.lines, 1):
        text_of_line = line.strip()
        if number not in skipped and re.search(r"\w", text_of_line) and not text_of_line.startswith("#"):
            yield number, text_of_line


def tracked(pattern: str) -> list[Path]:
    """The files of the repository that git tracks and that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(names)) if (ROOT / name).exists()]


def main() -> int:
    """Print figures and complaints; return the exit status."""
    modules = []
    for path in tracked("src/ralm/*.py"):
        text = path.read_text(encoding="utf-8")
        modules.append(Module(str(path.relative_to(SOURCE)), text, ast.parse(text)))
    measured = figures(modules)
    for figure in measured:
        print(figure)
    complaints = [*repeated_names(modules), *repeated_blocks(modules)]
    for complaint in complaints:
        print(complaint)
    return int(bool(complaints) or not all(figure.within(figure.limit) for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
