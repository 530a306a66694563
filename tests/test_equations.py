"""Each equation of the papers stands in the docstring of what computes it, as the table in CONTRIBUTING.md says."""

import ast
import re
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ralm"
Equation: TypeAlias = tuple[str, int]

ROW = re.compile(r"\| (In-Context RALM|REPLUG), Eq\. (\d+) \| .+? \| `(\S+)` \| `(\w+)` \|")
TABLE = [
    ((paper, int(number)), file, name)
    for paper, number, file, name in ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
]


def equations_in(text: str) -> set[Equation]:
    """The equations that a text names, each of the paper that it names last."""
    found, paper = set(), "no paper"
    for mention in re.finditer(r"(In-Context\s+RALM|REPLUG)|Eq\. (\d+)(?:( and | to )(\d+))?", text):
        named, first, joined, last = mention.groups()
        if named:
            paper = " ".join(named.split())
        elif joined == " to ":
            found |= {(paper, number) for number in range(int(first), int(last) + 1)}
        else:
            found |= {(paper, int(number)) for number in (first, last) if number}
    return found


def docstring_of(file: Path, name: str) -> str:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
    pytest.fail(f"{file} has no {name}")


def test_the_table_has_every_equation_once() -> None:
    papers = [("In-Context RALM", number) for number in range(1, 10)] + [("REPLUG", number) for number in range(1, 7)]
    assert [equation for equation, _, _ in TABLE] == papers


@pytest.mark.parametrize(("equation", "file", "name"), TABLE)
def test_the_docstring_names_the_equation(equation: Equation, file: str, name: str) -> None:
    assert equation in equations_in(docstring_of(SOURCE / file, name))


def test_every_equation_in_the_source_is_in_the_table() -> None:
    known = {equation for equation, _, _ in TABLE}
    for file in sorted(SOURCE.rglob("*.py")):
        assert equations_in(file.read_text(encoding="utf-8")) <= known, file
