"""The pages of the documentation: links lead somewhere; generated pages, public names, equations and costs agree."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

import ralm
from benchmarks import cluster_cost
from benchmarks.cluster_cost import FIGURES, SIZES, Figure, Size, building, encoding, searching, tables, two
from ralm.distributed import indexing
from tools import python_api_page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ralm"
NAMES = re.findall(r"\bas (\w+)", (SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tools").rglob("*.md")]


def test_every_page_that_a_page_links_to_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_heading_that_a_page_links_to_is_there() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert heading in _anchors(linked.read_text(encoding="utf-8")), f"{page.name}: {target}#{heading}"


def test_the_index_and_the_menu_of_the_documentation_have_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert [name for name in sorted(pages) if f"]({name}" not in index] == []
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in sorted(pages) if f"- {name}" not in menu] == []


def test_the_page_of_the_python_api_is_what_the_docstrings_say() -> None:
    written = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert written == python_api_page.page(), "run `make docs`"


def test_the_page_of_the_python_api_has_every_public_name() -> None:
    assert sorted(re.findall(r"^### `?(\w+)`?$", python_api_page.page(), re.MULTILINE)) == sorted(NAMES)


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


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.words)
def test_the_figures_stand_where_they_are_said_to(figure: Figure) -> None:
    page = " ".join((ROOT / figure.page).read_text(encoding="utf-8").split())
    assert figure.words in page
    assert any(written in figure.words for written in (f"{figure.value:,}", f"{figure.value:,.0f}"))


def test_the_tables_of_the_page_are_those_that_are_printed() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert sum(f"\n\n{table}" in page for table in tables().values()) == 1, "run `python -m benchmarks.cluster_cost`"


def test_the_arithmetic() -> None:
    """By hand, as the page describes it."""
    middle = SIZES[1]
    hours = 300e6 * (4 / 3 * (9.8 + 2 * 6.6) + 0.3) / 240_000 / 3600
    assert building(middle, 2.0)["processor hours"] == two(hours)
    assert building(middle, 2.0)["price"] == two(2 * hours)
    assert building(middle, 1)["index, GB"] == two(300e6 * 977 / 1e9)
    assert building(middle, 1)["disk meanwhile, GB"] == two(3 * 300e6 * 977 / 1e9)
    terms = 213_709 * (64 * (1 << 25) / 599.6 / 250_539) ** 0.53
    first_round = terms * (200 + 8 * 64) + 4 * 64 * (1 << 25) / 599.6
    assert cluster_cost.joining_gb(middle) == pytest.approx(first_round / 1e9 + 0.256 + 0.220, rel=1e-3)
    assert encoding(middle, 1)["processor hours"] == two(300e6 / 29 / 3600)
    assert encoding(middle, 1)["vectors (`Flat`), GB"] == two(300e6 * 384 * 4 / 1e9)
    assert searching(middle, 1)["milliseconds a query, k = 1"] == two(0.161 * (300 / 16 / 2) ** 0.88 * 16)
    assert searching(middle, 1)["k = 16"] == two(0.254 * (300 / 16 / 2) ** 0.68 * 16)


def test_rounds_of_joining_are_those_of_the_program() -> None:
    assert cluster_cost._JOINED == indexing._MAX_JOINED
    assert [cluster_cost.rounds(Size(passages, 1, 1)) for passages in (1_000, 3_500_000, 3_600_000)] == [1, 1, 2]


def test_no_index_is_larger_than_bm25_can_number() -> None:
    with pytest.raises(AssertionError, match="cannot number"):
        Size(3_000_000_000, 1, 64)


@pytest.mark.parametrize(("value", "shown"), [(0.0344, "0.034"), (9.83, "9.8"), (28736.0, "29,000"), (0.0, "0")])
def test_two_digits(value: float, shown: str) -> None:
    assert two(value) == shown
