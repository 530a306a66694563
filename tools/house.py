"""Prints the sizes of the source tree and whatever breaks its rules; the exit status is 1 if anything does.

    python -m tools.house

The rules: sizes within their limits, public names and blocks of code that are defined once, and none of the words of
tools/house_words.toml. A size whose aim is not reached has a limit, which goes down with the size.
"""

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "ralm"
WORDS: Final = Path(__file__).with_name("house_words.toml")
GENERATED: Final = {"command-line.md", "python-api.md", "reference-figures.md"}
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
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tracked("tests/*.py"))
    pages = [path for path in tracked("docs/*.md") if path.name not in GENERATED]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    return [
        Figure("files in src", len(modules), aim=220, limit=266),
        Figure("lines in src", sum(lengths), aim=40_000, limit=46_286),
        Figure("median lines of a file", statistics.median(lengths), aim=130, limit=130, at_least=True),
        Figure("lines of the longest file", max(lengths), aim=450, limit=414),
        Figure("imports, % of lines", 100 * imports / sum(lengths), aim=6, limit=7.942),
        Figure("lines in tests", tests, aim=32_000, limit=43_024),
        Figure("words in docs, hand-written", words, aim=36_000, limit=28_910),
    ]


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


def old_words(modules: list[Module]) -> Iterator[str]:
    """Names and phrases of house_words.toml, each with the one to use."""
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    names: dict[str, str] = words["names"]
    phrases = {re.compile(pattern): use for pattern, use in words["phrases"].items()}
    for module in modules:
        for line, name in identifiers(module):
            if name in names:
                yield f"src/ralm/{module.path}:{line} names something {name!r}; use {names[name]}."
        for line, text in prose(module):
            yield from found(phrases, f"src/ralm/{module.path}", line, text)
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *tracked("docs/*.md")]:
        for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            yield from found(phrases, str(page.relative_to(ROOT)), line, text)


def identifiers(module: Module) -> Iterator[tuple[int, str]]:
    """The names that a module gives: its own, and those of classes, functions and arguments in it, with their lines."""
    yield 1, Path(module.path).stem
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name.lstrip("_")


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """The lines of comments, docstrings and other strings of a module, with their numbers."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type in kinds:
            for offset, text in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, text


def found(phrases: dict[re.Pattern[str], str], path: str, line: int, text: str) -> Iterator[str]:
    """One complaint for each phrase in a line."""
    for pattern, use in phrases.items():
        if hit := pattern.search(text):
            yield f"{path}:{line} says {hit.group()!r}; use {use!r}."


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
    complaints = [*repeated_names(modules), *repeated_blocks(modules), *old_words(modules)]
    for complaint in complaints:
        print(complaint)
    return int(bool(complaints) or not all(figure.within(figure.limit) for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
