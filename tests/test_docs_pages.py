"""The pages of the documentation: links lead somewhere; generated pages, public names and equations agree."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

import ralm
from tools import python_api_page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ralm"
NAMES = re.findall(r"\bas (\w+)", (SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tools").rglob("*.md")]


def test_every_page_and_heading_that_a_page_links_to_is_there() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                linked = page.parent / target if target else page
                assert linked.exists(), f"{page.name}: {target}"
                assert not heading or heading in _anchors(linked.read_text(encoding="utf-8")), (
                    f"{page.name}: #{heading}"
                )


def test_the_index_and_the_menu_of_the_documentation_have_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert [name for name in sorted(pages) if f"]({name}" not in index] == []
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in sorted(pages) if f"- {name}" not in menu] == []


def test_the_page_of_the_python_api_is_what_the_docstrings_say() -> None:
    written = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert written == python_api_page.page(), "run `make docs`"
    assert sorted(re.findall(r"^### `?(\w+)`?$", written, re.MULTILINE)) == sorted(NAMES)


def _anchors(text: str) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_public_names_are_there() -> None:
    assert sorted(dir(ralm)) == sorted(NAMES)
    assert all(getattr(ralm, name) is not None for name in NAMES)


def test_every_public_name_says_what_it_is() -> None:
    undocumented = [name for name in NAMES if not (getattr(ralm, name).__doc__ or "").strip()]
    assert undocumented == []


def test_importing_waits_for_nothing() -> None:
    script = "import sys, ralm; print([name for name in ('numpy', 'torch', 'pyarrow') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = ralm.nothing_of_the_kind  # type: ignore[attr-defined]


Equation: TypeAlias = tuple[str, int]

CELL = re.compile(r"\| Eq\. (\d+)(?: and (\d+))?, .+? \| `(\w+)` in `(\S+)` ")
TABLE = [
    ((("In-Context RALM", "REPLUG")[place], int(number)), file, name)
    for row in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    for place, (*numbers, name, file) in enumerate(CELL.findall(row))
    for number in filter(None, numbers)
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
    assert sorted(equation for equation, _, _ in TABLE) == papers


@pytest.mark.parametrize(("equation", "file", "name"), TABLE)
def test_the_docstring_names_the_equation(equation: Equation, file: str, name: str) -> None:
    assert equation in equations_in(docstring_of(SOURCE / file, name))


def test_every_equation_in_the_source_is_in_the_table() -> None:
    known = {equation for equation, _, _ in TABLE}
    for file in sorted(SOURCE.rglob("*.py")):
        assert equations_in(file.read_text(encoding="utf-8")) <= known, file
